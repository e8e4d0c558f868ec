"""Native memory held by managed objects: blocks freed if all objects of one type were."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Optional

from findleaks.engine.contract import Graph
from findleaks.engine.dominators import IGNORED, NO_ROOT
from findleaks.engine.terms import Kind, Totals
from findleaks.formatting import blocks, number, printable, size
from findleaks.runtimes.base import Holders, Runtime, Type
from findleaks.session import Session

if TYPE_CHECKING:
    from findleaks.results.verdict import ManagedMemory

_LEAKED = re.compile(b"[" + bytes([Kind.DEFINITE, Kind.INDIRECT]) + b"]")  # in Graph.kinds

STEP = 1 << 19  # objects handled between two checks for Ctrl-C


class TypeHoldings(NamedTuple):
    """The objects of a type, with the blocks in use that only they hold."""

    type: Type
    native: Optional[Totals]  # None: not known
    reported: Optional[int]  # see Runtime.reported_bytes
    leaked: Optional[Totals]  # objects definitely or indirectly lost; None: not known

    @property
    def held(self) -> Totals:
        """`native`, or nothing."""
        return self.native or Totals(0, 0)

    @property
    def bytes(self) -> int:
        """Bytes of the objects and of the blocks."""
        return self.type.bytes + self.held.bytes


class Holdings(NamedTuple):
    """A runtime with its types, largest first by bytes of objects and what they hold."""

    runtime: Runtime
    types: list[TypeHoldings]
    native: Optional[Totals]  # sum over types; blocks that others hold too are not in it

    @property
    def name(self) -> str:
        return self.runtime.name

    @property
    def held(self) -> Totals:
        """`native`, or nothing."""
        return self.native or Totals(0, 0)

    @property
    def objects(self) -> int:
        return sum(row.type.objects for row in self.types)

    @property
    def object_bytes(self) -> int:
        """Bytes of the objects themselves."""
        return sum(row.type.bytes for row in self.types)

    @property
    def bytes(self) -> int:
        """Bytes of the objects and of the native memory that they hold."""
        return self.object_bytes + self.held.bytes

    @property
    def unreported(self) -> int:
        """Bytes not reported, of types that reported less than half of what they hold."""
        reporting = ((row.held.bytes, row.reported) for row in self.types if row.reported is not None)
        return sum(held - reported for held, reported in reporting if 2 * reported < held)

    @property
    def by_native(self) -> list[TypeHoldings]:
        """The types, those that hold most native memory first."""
        return sorted(self.types, key=lambda row: -row.held.bytes)

    def sentence(self) -> str:
        """ "986 MiB of native memory in 52,000 blocks are held by objects of Ruby's" """
        if self.object_bytes > self.held.bytes:
            count = f"{_objects(self.objects)} of {self.name}'s"
            return f"{count} take {size(self.object_bytes)}, and native memory that they hold {size(self.held.bytes)}"
        return f"{size(self.held.bytes)} of native memory in {blocks(self.held.blocks)} are held by objects of {self.name}'s"

    def cause(self) -> str:
        """The type that has most, and whether the runtime knows of it."""
        if self.object_bytes > self.held.bytes:
            most = max(self.by_native, key=lambda row: row.bytes)
            count = _objects(most.type.objects)
            return f"the largest type is {printable(most.type.name)}: {count}, {size(most.bytes)} with what only these hold"
        top = self.by_native[0]
        words = f"{_objects(top.type.objects)} of {printable(top.type.name)} hold {size(top.held.bytes)}"
        if self.unreported:
            return f"{words}; {self.name} does not know of {size(self.unreported)} that objects hold: its collector sees no reason to run"
        return words

    def result(self) -> ManagedMemory:
        """The figures as a result, with the three types that hold most."""
        from findleaks.results.verdict import HoldingType, ManagedMemory  # only `verdict` needs it

        reported = [row.reported for row in self.types if row.reported is not None]
        return ManagedMemory(
            self.name,
            native_blocks=self.held.blocks,
            native_bytes=self.held.bytes,
            objects=self.objects,
            object_bytes=self.object_bytes,
            reported_bytes=sum(reported) if reported else None,
            unreported_bytes=self.unreported if reported else None,
            types=[HoldingType(row.type.name, row.type.objects, row.held.blocks, row.held.bytes) for row in self.by_native[:3]],
        )


def _objects(count: int) -> str:
    return f"{number(count)} object{'' if count == 1 else 's'}"


def runtime_holdings(
    session: Session, runtimes: Sequence[Runtime], native: bool = True, group: Callable[[str], str] = str, leaked_too: bool = True
) -> list[Holdings]:
    """Each runtime's objects by type. Without `native` no graph is made: what objects hold, and
    which of them are leaked, is unknown. Types with one `group` name count as one, also for what
    only they hold together. Without `leaked_too`, what leaked objects hold is left out."""
    holders = [_grouped(runtime.holders(), group) for runtime in runtimes] if native else [None for _ in runtimes]
    totals = held_by_types(session, [one for one in holders if one is not None], leaked_too) if any(holders) else []
    found, which = [], iter(totals)
    for runtime, one in zip(runtimes, holders):
        session.report_progress(f"counting the objects of {runtime.name}", 0.0)
        mine: dict[str, Totals] = {}
        for name, total in zip(one.names, next(which)) if one is not None else ():
            mine[name] = Totals.sum_of((mine.get(name, Totals(0, 0)), total))
        leaked = _leaked_objects(session, runtime, group) if native else None
        nothing = Totals(0, 0)
        rows = [
            TypeHoldings(
                kind,
                mine.get(kind.name, nothing) if one else None,
                reported,
                leaked.get(kind.name, nothing) if leaked is not None else None,
            )
            for kind, reported in _types(runtime, group)
        ]
        rows.sort(key=lambda row: (-row.bytes, -row.type.objects, row.type.name))
        summed = Totals.sum_of(mine.values()) if one else None
        found.append(Holdings(runtime, rows, summed))
    return found


def _leaked_objects(session: Session, runtime: Runtime, group: Callable[[str], str]) -> Optional[dict[str, Totals]]:
    """By type, the runtime's objects that are definitely or indirectly lost; None if unknown."""
    known = session.object_types
    if known is None or known.runtime != runtime.name:
        return None
    found: dict[str, Totals] = {}
    for name, total in zip(known.names, session.graph().label_totals((Kind.DEFINITE, Kind.INDIRECT))):
        if total.blocks:
            key = group(name)
            found[key] = Totals.sum_of((found.get(key, Totals(0, 0)), total))
    return found


def package(name: str) -> str:
    """The package, module or outermost class of a type: "sqlite3" of sqlite3.Connection, "PG" of
    PG::Result; else the type."""
    return name.partition("::")[0] if "::" in name else name.partition(".")[0]


def _types(runtime: Runtime, group: Callable[[str], str]) -> Iterator[tuple[Type, Optional[int]]]:
    """The runtime's types, grouped, each with the bytes reported to it; None if no type reports."""
    groups: dict[str, list[Type]] = {}
    for kind in runtime.types():
        groups.setdefault(group(kind.name), []).append(kind)
    for name, kinds in groups.items():
        own: Counter[str] = Counter()
        for kind in kinds:
            own.update(kind.own)
        reported = [count for count in map(runtime.reported_bytes, {kind.name for kind in kinds}) if count is not None]
        merged = Type(name, sum(kind.objects for kind in kinds), sum(kind.bytes for kind in kinds), own)
        yield merged, sum(reported) if reported else None


def _grouped(one: Optional[Holders], group: Callable[[str], str]) -> Optional[Holders]:
    """The same objects, with types merged into groups. Where types of a group own only in part what
    they hold, the two parts stay apart."""
    if one is None or group is str:
        return one
    numbers: dict[tuple[bool, str], int] = {}
    places = [numbers.setdefault((at >= one.owning, group(name)), len(numbers)) for at, name in enumerate(one.names)]
    number = {**dict(enumerate(places)), NO_ROOT: NO_ROOT, IGNORED: IGNORED}.__getitem__
    return one._replace(
        types=array("I", map(number, one.types)),
        names=[name for _, name in numbers],
        blocks=array("I", map(number, one.blocks)),
        owning=sum(not rest for rest, _ in numbers),
        owned=[(places[kind], owned) for kind, owned in one.owned],
    )


def held_by_types(session: Session, holders: Sequence[Holders], leaked_too: bool = True) -> list[list[Totals]]:
    """Per runtime and type number, what only this type's objects hold, without leaked objects if
    wanted. Blocks that contain the objects themselves (CPython's) are left out."""
    first = list(accumulate((len(one.names) for one in holders), initial=0))
    rest = first[-1]  # the root of all root memory outside managed objects
    graph = session.graph()
    bounds, owners = _all_bounds(session, holders, first, rest)
    # The roots of one priority must have consecutive numbers; two runtimes in a process are rare.
    owning = holders[0].owning if len(holders) == 1 else 0
    pages = [part for one in holders for part in one.pages]
    tree = graph.dominators(rest + 1, bounds, owners, priorities=[owning] if owning else ())
    roots_of_blocks = _roots_of_blocks(holders, first)
    if pages:
        roots_of_blocks = roots_of_blocks if roots_of_blocks is not None else array("I", [NO_ROOT]) * len(session.directory.blocks)
        for part in pages:
            index = session.directory.blocks.find(part.start)
            if index >= 0:
                roots_of_blocks[index] = IGNORED  # its words are read object by object
    if roots_of_blocks is not None:
        tree.merge_into_roots(roots_of_blocks if leaked_too else _without_leaked(graph, roots_of_blocks))
    for one, start in zip(holders, first):
        for kind, owned in one.owned:
            tree.refer(start + kind, owned)
    for piece in session.pieces(sorted([*session.roots, *pages]), "reading what managed objects refer to"):
        tree.scan_roots(piece)
    tree.root_words(session.register_words(), rest)
    totals = session.computed(tree, "finding what managed objects hold").by_root()
    return [totals[start:end] for start, end in zip(first, first[1:])]


def _without_leaked(graph: Graph, roots_of_blocks: array[int]) -> array[int]:
    """The same, with NO_ROOT for the objects in leaked blocks."""
    made = roots_of_blocks[:]
    for match in _LEAKED.finditer(graph.kinds()):
        made[match.start()] = NO_ROOT
    return made


def _all_bounds(session: Session, holders: Sequence[Holders], first: Sequence[int], rest: int) -> tuple[array[int], array[int]]:
    """Bounds of the objects that are in no block, and the root that each gets."""
    made = [_object_bounds(session, one, start, rest) for one, start in zip(holders, first) if one.addresses]
    if len(made) > 1:  # rare: two runtimes in a process
        parts = sorted((item for bounds, owners in made for item in zip(bounds, owners)), key=lambda item: item[0])
        made = [(array("Q", [bound for bound, _ in parts]), array("I", [owner for _, owner in parts]))]
    bounds, owners = made[0] if made else (array("Q"), array("I"))
    return array("Q", [0]) + bounds, array("I", [rest]) + owners


def _roots_of_blocks(holders: Sequence[Holders], first: Sequence[int]) -> Optional[array[int]]:
    """Per block, the root of its object's type, or NO_ROOT; None if no object is in a block."""
    made: Optional[array[int]] = None
    for one, start in zip(holders, first):
        if one.blocks:
            mine = array("I", (kind if kind in (NO_ROOT, IGNORED) else start + kind for kind in one.blocks)) if start else one.blocks
            made = mine if made is None else array("I", (old if new == NO_ROOT else new for old, new in zip(made, mine)))
    return made


def _object_bounds(session: Session, one: Holders, start: int, rest: int) -> tuple[array[int], array[int]]:
    count = len(one.addresses)
    bounds, owners = array("Q", bytes(16 * count)), array("I", [rest]) * (2 * count)
    bounds[0::2] = one.addresses
    for low in range(0, count, STEP):
        high = min(low + STEP, count)
        bounds[2 * low + 1 : 2 * high : 2] = array("Q", map(int.__add__, one.addresses[low:high], one.sizes[low:high]))
        if start:
            owners[2 * low : 2 * high : 2] = array("I", (kind if kind == NO_ROOT else start + kind for kind in one.types[low:high]))
        session.report_progress("looking at what managed objects hold", low / count)
    if not start:
        owners[0::2] = one.types
    return bounds, owners
