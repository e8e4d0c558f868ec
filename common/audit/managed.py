"""Compute the native memory that managed objects retain: the blocks that would be freed if all
objects of one type were freed."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Optional

from findleaks.engine.contract import Graph
from findleaks.engine.dominators import IGNORED, NO_ROOT
from findleaks.engine.terms import Kind, Totals
from findleaks.formatting import blocks, number, shorten, size
from findleaks.runtimes.base import Holders, Runtime, Type
from findleaks.runtimes.garbage import FREED_NATIVE_BYTES, GARBAGE_NATIVE_BLOCKS, GARBAGE_NATIVE_BYTES, GARBAGE_OBJECTS
from findleaks.session import Session
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.results.verdict import ManagedMemory

# Matches leaked blocks in Graph.kinds, which has one byte for each block
_LEAKED = re.compile(b"[" + bytes([Kind.DEFINITE, Kind.INDIRECT]) + b"]")

_NAMED = 2  # number of types that a sentence names after the largest

STEP = 1 << 19  # objects processed between two checks for Ctrl-C


class TypeHoldings(NamedTuple):
    """The objects of one type, and the blocks in use that only they retain."""

    type: Type
    native: Optional[Totals]  # None if unknown
    reported: Optional[int]  # see Runtime.reported_bytes
    # Number and bytes of the objects that are definitely or indirectly lost; None if unknown
    leaked: Optional[Totals]
    # Bytes that the objects of the type retain, including their own bytes; see `with_retained`
    retained: Optional[int] = None

    @property
    def held(self) -> Totals:
        """The value of `native`, or 0 blocks if it is unknown."""
        return self.native or Totals(0, 0)

    @property
    def bytes(self) -> int:
        """Bytes of the objects and of the blocks that they retain."""
        return self.type.bytes + self.held.bytes


class RuntimeHoldings(NamedTuple):
    """A runtime and its types. The types with the most bytes (objects and the blocks they retain)
    are first."""

    runtime: Runtime
    types: list[TypeHoldings]
    # Sum over the types; a block that several types retain together is not included
    native: Optional[Totals]

    @property
    def name(self) -> str:
        return self.runtime.name

    @property
    def held(self) -> Totals:
        """The value of `native`, or 0 blocks if it is unknown."""
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
        """Bytes that were not reported to the runtime. Only types that reported less than half of
        what they retain are included."""
        reporting = ((row.held.bytes, row.reported) for row in self.types if row.reported is not None)
        return sum(held - reported for held, reported in reporting if 2 * reported < held)

    @property
    def garbage_native(self) -> int:
        """Bytes of native memory that garbage retains, without those that a collection frees."""
        return sum(row.type.own.get(GARBAGE_NATIVE_BYTES, 0) for row in self.types)

    @property
    def freed_native(self) -> int:
        """Bytes of native memory that garbage retains until its finalizers run."""
        return sum(row.type.own.get(FREED_NATIVE_BYTES, 0) for row in self.types)

    @property
    def is_native_garbage(self) -> bool:
        """Whether a path to a live object would mislead: the objects retain more native memory than
        they occupy, and of the type that retains the most, most of the memory belongs to
        garbage."""
        if self.object_bytes > self.held.bytes:
            return False
        top = self.by_native[0]
        return 2 * sum(top.type.own.get(key, 0) for key in (GARBAGE_NATIVE_BYTES, FREED_NATIVE_BYTES)) > top.held.bytes

    @property
    def is_leaked_garbage(self) -> bool:
        """Whether garbage retains at least half of the native memory, and a collection does not
        free the garbage of the type whose garbage retains the most. In this case, the memory is
        probably leaked."""
        if not self.runtime.garbage_remedy or 2 * self.garbage_native < self.held.bytes or not self.held.bytes:
            return False
        top = max(self.types, key=lambda row: row.type.own.get(GARBAGE_NATIVE_BYTES, 0))
        return not self.runtime.frees_garbage(top.type.name)

    @property
    def by_native(self) -> list[TypeHoldings]:
        """The types, those that retain the most native memory first."""
        return sorted(self.types, key=lambda row: -row.held.bytes)

    def sentence(self) -> str:
        """Return "objects of Ruby retain 986 MiB of native memory in 52,000 blocks"."""
        if self.object_bytes > self.held.bytes:
            native = f" and retain {size(self.held.bytes)} of native memory" if self.held.bytes else ""
            return f"{_objects(self.objects)} of {self.name} occupy {size(self.object_bytes)}{native}"
        return f"objects of {self.name} retain {size(self.held.bytes)} of native memory in {blocks(self.held.blocks)}"

    def cause(self, example: Optional[int]) -> str:
        """Return a clause about the largest type, and about memory that was not reported to the
        runtime. The clause has the path to `example`, which comes from the method of that name."""
        if self.object_bytes > self.held.bytes:
            most, *others = sorted(self.types, key=lambda row: -row.bytes)
            count = _objects(most.type.objects)
            words = f"the largest type is {shorten(most.type.name)}: {count}, {size(most.bytes)} with the memory that only these retain"
            more = [f"{shorten(row.type.name)}: {_objects(row.type.objects)}, {size(row.bytes)}" for row in others[:_NAMED] if row.bytes]
            words = f"{words}; then {'; '.join(more)}" if 2 * most.bytes < self.bytes else words
            graph = self.runtime.object_graph()
            path = graph.describe_example(example) if graph is not None and example is not None else ""
            return f"{words}; one of the {shorten(most.type.name)} objects is reached by {shorten(path, 400)}" if path else words
        top = self.by_native[0]
        unused, lost = top.type.own.get(GARBAGE_NATIVE_BYTES, 0), top.type.own.get(GARBAGE_OBJECTS, 0)
        freed = top.type.own.get(FREED_NATIVE_BYTES, 0)
        total = top.type.objects + (lost if unused or freed else 0)
        verb = "retains" if total == 1 else "retain"
        words = f"{_objects(total)} of {shorten(top.type.name)} {verb} {size(top.held.bytes)}"
        if unused:
            words += f"; {number(lost)} of these are garbage that was not collected yet, and retain {size(unused)}"
        words += f"; garbage whose finalizers have not run yet retains {size(freed)} of this" if freed else ""
        if self.is_native_garbage and self.runtime.garbage_cause and not self.is_leaked_garbage:
            words += f"; {self.runtime.garbage_cause}"
        chain = self.runtime.reference_chain(top.type.name) if not self.is_native_garbage else ""
        words += f"; one of them is reached by {shorten(chain, 400)}" if chain else ""
        if self.unreported:
            return f"{words}; {size(self.unreported)} of this memory was not reported to {self.name}, so its collector is not triggered"
        return words

    def example(self) -> Optional[int]:
        """Return the address of a live object of the type that `cause` names first; None if it is
        unknown, or if most objects are garbage."""
        if self.object_bytes <= self.held.bytes:
            return self.runtime.native_example(self.by_native[0].type.name) if not self.is_native_garbage else None
        graph = self.runtime.object_graph()
        return graph.example(max(self.types, key=lambda row: row.bytes).type.name) if graph is not None else None

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

    native: if False, no graph is computed. Then it is unknown how much memory objects retain and
    which objects are leaked. group: maps the name of a type to the name of its row. Types with the
    same row count as one type, also for the memory that only they retain together. leaked_too: if
    False, memory that leaked objects retain is left out."""
    holders = [_group_holders(runtime.holders(), group) for runtime in runtimes] if native else [None for _ in runtimes]
    totals = sum_retained_by_type(session, [one for one in holders if one is not None], leaked_too) if any(holders) else []
    found, which = [], iter(totals)
    for runtime, one in zip(runtimes, holders):
        session.report_progress(f"counting the objects of {runtime.name}", 0.0)
        names, retained = (one.names, next(which)) if one is not None else ((), [])
        first = one.garbage if one is not None and one.garbage else len(names)
        last = one.freed if one is not None and one.freed else len(names)
        mine, unused = _sum_by_name(names, retained), _sum_by_name(names[first:last], retained[first:last])
        freed = _sum_by_name(names[last:], retained[last:])
        leaked = _leaked_objects(session, runtime, group) if native else None
        nothing = Totals(0, 0)
        rows = [
            TypeHoldings(
                _with_garbage(kind, unused.get(kind.name, nothing), freed.get(kind.name, nothing)),
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


def with_retained(session: Session, holdings: RuntimeHoldings, group: Callable[[str], str] = str) -> RuntimeHoldings:
    """Return the holdings with the bytes that the objects of each type retain: objects in the
    runtime's own heap, or blocks if the objects are blocks. `group`: see
    `list_runtime_holdings`."""
    graph = holdings.runtime.object_graph()
    session.report_progress(f"computing memory retained by objects of {holdings.name}", 0.0)
    if graph is not None:
        retained = graph.retained_by_type(group) or {}
    else:
        from findleaks.audit.object_retention import retained_by_type  # only `runtime` needs it

        retained = retained_by_type(session, holdings.runtime, group)
    return holdings._replace(types=[row._replace(retained=retained.get(row.type.name)) for row in holdings.types])


def _sum_by_name(names: Iterable[str], totals: Iterable[Totals]) -> dict[str, Totals]:
    found: dict[str, Totals] = {}
    for name, total in zip(names, totals):
        found[name] = Totals.sum_of((found.get(name, Totals(0, 0)), total))
    return found


def _with_garbage(kind: Type, native: Totals, freed: Totals) -> Type:
    """Add to the type's counts the native memory that garbage of the type retains. `freed`: the
    part of this memory that garbage with finalizers retains."""
    own = {GARBAGE_NATIVE_BLOCKS: native.blocks, GARBAGE_NATIVE_BYTES: native.bytes} if native.blocks else {}
    own.update({FREED_NATIVE_BYTES: freed.bytes} if freed.blocks else {})
    return kind._replace(own={**kind.own, **own}) if own else kind


def _leaked_objects(session: Session, runtime: Runtime, group: Callable[[str], str]) -> Optional[dict[str, Totals]]:
    """Return the number and bytes of the runtime's objects that are definitely or indirectly lost,
    by type; None if unknown."""
    known = session.object_types
    if known is None or known.runtime != runtime.name:
        return None
    return _sum_by_name(map(group, known.names), session.graph().label_totals((Kind.DEFINITE, Kind.INDIRECT)))


def package_of_type(name: str) -> str:
    """Return the package, module or outermost class of a type: "sqlite3" for sqlite3.Connection,
    "PG" for PG::Result; else the name itself."""
    return name.partition("::")[0] if "::" in name else name.partition(".")[0]


def _types(runtime: Runtime, group: Callable[[str], str]) -> Iterator[tuple[Type, Optional[int]]]:
    """Yield the runtime's types, grouped. The second value is the number of bytes that the type
    reported to the runtime; None if no type reports."""
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
    """Merge types into groups.
    Types that own all of the memory that they retain, and types that own only part of it, are
    merged separately."""
    if one is None or group is str:
        return one
    numbers: dict[tuple[bool, int, str], int] = {}
    first, last = one.garbage or len(one.names), one.freed or len(one.names)
    owning = {*range(one.owning), *range(first, first + one.owning_garbage)}
    places = [
        numbers.setdefault((at not in owning, (at >= first) + (at >= last), group(name)), len(numbers)) for at, name in enumerate(one.names)
    ]
    number = {**dict(enumerate(places)), NO_ROOT: NO_ROOT, IGNORED: IGNORED}.__getitem__
    return one._replace(
        types=array("I", map(number, one.types)),
        names=[name for _, _, name in numbers],
        blocks=array("I", map(number, one.blocks)),
        owning=sum(not rest and not unused for rest, unused, _ in numbers),
        garbage=sum(not unused for _, unused, _ in numbers) if one.garbage else 0,
        freed=sum(unused < 2 for _, unused, _ in numbers) if one.freed else 0,
        owning_garbage=sum(not rest and unused > 0 for rest, unused, _ in numbers),
        owned=[(places[kind], owned) for kind, owned in one.owned],
        data=[(places[kind], owned) for kind, owned in one.data],
    )


def sum_retained_by_type(session: Session, holders: Sequence[Holders], leaked_too: bool = True) -> list[list[Totals]]:
    """Return the memory that only objects of one type retain: a list for each runtime, indexed by
    the number of the type. Garbage retains only memory that no live object and no root refers to.
    For example, a garbage object may still contain the address of a block that was freed and
    allocated again. Blocks that contain the objects themselves (CPython) do not count. leaked_too:
    if False, leaked objects do not count either."""
    # The roots of one priority must have consecutive numbers. With two runtimes, which is rare,
    # their numbers are not consecutive.
    alone = holders[0] if len(holders) == 1 else Holders(array("Q"), array("I"), array("I"), ())
    garbage = alone.garbage
    if garbage:
        holders = [_insert_type(alone, garbage)]
    first = list(accumulate((len(one.names) for one in holders), initial=0))
    # The root for all root memory that is not in managed objects; it has the priority of live ones
    rest = garbage or first[-1]
    graph = session.graph()
    bounds, owners = _all_bounds(session, holders, first, rest)
    priorities = [alone.owning] if alone.owning else []
    priorities += [garbage + 1, garbage + 1 + alone.owning_garbage] if garbage else []
    pages = [part for one in holders for part in one.pages]
    tree = graph.dominators(max(first[-1], rest + 1), bounds, owners, priorities=priorities)
    roots_of_blocks = _roots_of_blocks(holders, first)
    if pages:
        roots_of_blocks = roots_of_blocks if roots_of_blocks is not None else array("I", [NO_ROOT]) * len(session.directory.blocks)
        for part in pages:
            index = session.directory.blocks.find(part.start)
            if index >= 0:
                # The words of this block are read object by object
                roots_of_blocks[index] = IGNORED
    if roots_of_blocks is not None:
        tree.merge_into_roots(roots_of_blocks if leaked_too else _exclude_leaked(graph, roots_of_blocks))
    for one, start in zip(holders, first):
        for kind, owned in one.owned:
            tree.refer(start + kind, owned)
    for piece in session.pieces(sorted([*session.roots, *pages]), "reading references of managed objects"):
        tree.scan_roots(piece)
    tree.root_words(session.register_words(), rest)
    totals = session.compute(tree, "computing memory retained by managed objects").by_root()
    for one, start in zip(holders, first):
        for kind, data in one.data:
            sizes = session.directory.blocks.columns_of(data).size
            totals[start + kind] = Totals.sum_of((totals[start + kind], Totals(len(sizes), sum(sizes))))
    if garbage:
        return [[*totals[:garbage], *totals[garbage + 1 : first[-1]]]]
    return [totals[start:end] for start, end in zip(first, first[1:])]


def _insert_type(one: Holders, place: int) -> Holders:
    """Return the holders with a new type at index `place`. No object has the new type."""

    def number(kind: int) -> int:
        return kind + 1 if place <= kind < len(one.names) else kind

    return one._replace(
        types=array("I", map(number, one.types)),
        names=[*one.names[:place], "", *one.names[place:]],
        blocks=array("I", map(number, one.blocks)),
        owned=[(number(kind), owned) for kind, owned in one.owned],
        data=[(number(kind), data) for kind, data in one.data],
    )


def _exclude_leaked(graph: Graph, roots_of_blocks: array[int]) -> array[int]:
    """Return a copy of `roots_of_blocks` in which objects in leaked blocks have NO_ROOT."""
    made = roots_of_blocks[:]
    for match in _LEAKED.finditer(graph.kinds()):
        made[match.start()] = NO_ROOT
    return made


def _all_bounds(session: Session, holders: Sequence[Holders], first: Sequence[int], rest: int) -> tuple[array[int], array[int]]:
    """Return the bounds of the objects that are in no block, and the root of the memory after each
    bound."""
    made = [_object_bounds(session, one, start, rest) for one, start in zip(holders, first) if one.addresses]
    if len(made) > 1:  # rare: two runtimes in a process
        parts = sorted((item for bounds, owners in made for item in zip(bounds, owners)), key=lambda item: item[0])
        made = [(array("Q", [bound for bound, _ in parts]), array("I", [owner for _, owner in parts]))]
    bounds, owners = made[0] if made else (array("Q"), array("I"))
    return array("Q", [0]) + bounds, array("I", [rest]) + owners


def _roots_of_blocks(holders: Sequence[Holders], first: Sequence[int]) -> Optional[array[int]]:
    """Return the root of the type of the object in each block, NO_ROOT for other blocks; None if no
    object is in a block."""
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
