"""Native memory that managed objects retain: the blocks that would be freed if all objects of one
type were."""

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
from findleaks.formatting import blocks, number, shortened, size
from findleaks.runtimes.base import Holders, Runtime, Type
from findleaks.session import Session

if TYPE_CHECKING:
    from findleaks.results.verdict import ManagedMemory

_LEAKED = re.compile(b"[" + bytes([Kind.DEFINITE, Kind.INDIRECT]) + b"]")  # in Graph.kinds

STEP = 1 << 19  # objects handled between two checks for Ctrl-C


class TypeHoldings(NamedTuple):
    """The objects of one type, with the blocks in use that only they retain."""

    type: Type
    native: Optional[Totals]  # None if unknown
    reported: Optional[int]  # see Runtime.reported_bytes
    leaked: Optional[Totals]  # objects that are definitely or indirectly lost; None if unknown

    @property
    def held(self) -> Totals:
        """`native`; 0 blocks if it is unknown."""
        return self.native or Totals(0, 0)

    @property
    def bytes(self) -> int:
        """Bytes of the objects and of the blocks that they retain."""
        return self.type.bytes + self.held.bytes


class RuntimeHoldings(NamedTuple):
    """A runtime with its types; the most bytes (objects and the blocks they retain) first."""

    runtime: Runtime
    types: list[TypeHoldings]
    native: Optional[Totals]  # sum over the types; blocks that several retain are not included

    @property
    def name(self) -> str:
        return self.runtime.name

    @property
    def held(self) -> Totals:
        """`native`; 0 blocks if it is unknown."""
        return self.native or Totals(0, 0)

    @property
    def objects(self) -> int:
        return sum(row.type.objects for row in self.types)

    @property
    def object_bytes(self) -> int:
        """Bytes of the objects, without native memory."""
        return sum(row.type.bytes for row in self.types)

    @property
    def bytes(self) -> int:
        """Bytes of the objects and of the native memory that they retain."""
        return self.object_bytes + self.held.bytes

    @property
    def unreported(self) -> int:
        """Bytes that were not reported to the runtime, of types that reported less than half of
        what they retain."""
        reporting = ((row.held.bytes, row.reported) for row in self.types if row.reported is not None)
        return sum(held - reported for held, reported in reporting if 2 * reported < held)

    @property
    def by_native(self) -> list[TypeHoldings]:
        """The types, the most native memory first."""
        return sorted(self.types, key=lambda row: -row.held.bytes)

    def sentence(self) -> str:
        """Return "objects of Ruby retain 986 MiB of native memory in 52,000 blocks"."""
        if self.object_bytes > self.held.bytes:
            count = f"{_objects(self.objects)} of {self.name}'s"
            return f"{count} occupy {size(self.object_bytes)} and retain {size(self.held.bytes)} of native memory"
        return f"objects of {self.name} retain {size(self.held.bytes)} of native memory in {blocks(self.held.blocks)}"

    def cause(self) -> str:
        """Return a clause on the largest type, and on memory that the runtime does not know of."""
        if self.object_bytes > self.held.bytes:
            most = max(self.by_native, key=lambda row: row.bytes)
            count = _objects(most.type.objects)
            return f"the largest type is {shortened(most.type.name)}: {count}, {size(most.bytes)} with the memory that only these retain"
        top = self.by_native[0]
        verb = "retains" if top.type.objects == 1 else "retain"
        words = f"{_objects(top.type.objects)} of {shortened(top.type.name)} {verb} {size(top.held.bytes)}"
        if self.unreported:
            return f"{words}; {size(self.unreported)} of this memory was not reported to {self.name}, so its collector is not triggered"
        return words

    def result(self) -> ManagedMemory:
        """Return the figures as a typed result, with the three types that retain the most."""
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


def list_runtime_holdings(
    session: Session, runtimes: Sequence[Runtime], native: bool = True, group: Callable[[str], str] = str, leaked_too: bool = True
) -> list[RuntimeHoldings]:
    """Return the objects of each runtime by type.

    native: if False, no graph is computed, and the memory that objects retain, and which of them
    are leaked, is unknown. group: maps a type's name to the name of its row. Types with one name
    count as one type, also for the memory that only they retain together. leaked_too: if False,
    memory that leaked objects retain is left out."""
    holders = [_group_holders(runtime.holders(), group) for runtime in runtimes] if native else [None for _ in runtimes]
    totals = sum_retained_by_type(session, [one for one in holders if one is not None], leaked_too) if any(holders) else []
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
        found.append(RuntimeHoldings(runtime, rows, summed))
    return found


def _leaked_objects(session: Session, runtime: Runtime, group: Callable[[str], str]) -> Optional[dict[str, Totals]]:
    """Count the runtime's objects that are definitely or indirectly lost, by type; None if
    unknown."""
    known = session.object_types
    if known is None or known.runtime != runtime.name:
        return None
    found: dict[str, Totals] = {}
    for name, total in zip(known.names, session.graph().label_totals((Kind.DEFINITE, Kind.INDIRECT))):
        if total.blocks:
            key = group(name)
            found[key] = Totals.sum_of((found.get(key, Totals(0, 0)), total))
    return found


def package_of_type(name: str) -> str:
    """Return the package, module or outermost class of a type: "sqlite3" for sqlite3.Connection,
    "PG" for PG::Result; else the name itself."""
    return name.partition("::")[0] if "::" in name else name.partition(".")[0]


def _types(runtime: Runtime, group: Callable[[str], str]) -> Iterator[tuple[Type, Optional[int]]]:
    """Yield the runtime's types, grouped, with the bytes that they reported to it; None if no type
    reports."""
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


def _group_holders(one: Optional[Holders], group: Callable[[str], str]) -> Optional[Holders]:
    """Merge the types of the same objects into groups.
    If some types of a group own only part of the memory that they retain, the two parts stay
    separate."""
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


def sum_retained_by_type(session: Session, holders: Sequence[Holders], leaked_too: bool = True) -> list[list[Totals]]:
    """Return, by runtime and by number of the type, the memory that only objects of this type
    retain.
    Blocks that contain the objects themselves (CPython) are left out, and on request leaked
    objects."""
    first = list(accumulate((len(one.names) for one in holders), initial=0))
    rest = first[-1]  # the root for all root memory outside managed objects
    graph = session.graph()
    bounds, owners = _all_bounds(session, holders, first, rest)
    # The roots of one priority must have consecutive numbers. Two runtimes in a process are rare.
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
        tree.merge_into_roots(roots_of_blocks if leaked_too else _exclude_leaked(graph, roots_of_blocks))
    for one, start in zip(holders, first):
        for kind, owned in one.owned:
            tree.refer(start + kind, owned)
    for piece in session.pieces(sorted([*session.roots, *pages]), "reading references of managed objects"):
        tree.scan_roots(piece)
    tree.root_words(session.register_words(), rest)
    totals = session.computed(tree, "computing memory retained by managed objects").by_root()
    return [totals[start:end] for start, end in zip(first, first[1:])]


def _exclude_leaked(graph: Graph, roots_of_blocks: array[int]) -> array[int]:
    """Return a copy with NO_ROOT for objects in leaked blocks."""
    made = roots_of_blocks[:]
    for match in _LEAKED.finditer(graph.kinds()):
        made[match.start()] = NO_ROOT
    return made


def _all_bounds(session: Session, holders: Sequence[Holders], first: Sequence[int], rest: int) -> tuple[array[int], array[int]]:
    """Return the bounds of the objects that are in no block, and the root of each."""
    made = [_object_bounds(session, one, start, rest) for one, start in zip(holders, first) if one.addresses]
    if len(made) > 1:  # rare: two runtimes in a process
        parts = sorted((item for bounds, owners in made for item in zip(bounds, owners)), key=lambda item: item[0])
        made = [(array("Q", [bound for bound, _ in parts]), array("I", [owner for _, owner in parts]))]
    bounds, owners = made[0] if made else (array("Q"), array("I"))
    return array("Q", [0]) + bounds, array("I", [rest]) + owners


def _roots_of_blocks(holders: Sequence[Holders], first: Sequence[int]) -> Optional[array[int]]:
    """Return, by block, the root of its object's type, or NO_ROOT; None if no object is in a
    block."""
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
        session.report_progress("locating managed objects", low / count)
    if not start:
        owners[0::2] = one.types
    return bounds, owners
