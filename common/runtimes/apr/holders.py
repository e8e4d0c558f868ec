"""Find the variable from which most of the memory of a pool is reachable.

Objects in a pool have no headers. An object begins at each address in the pool that a variable or
another object refers to, and ends at the next such address, or where the used part of its node
ends."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Optional

from findleaks.allocators.apr_nodes import NODE
from findleaks.allocators.bulk import MOST_RANGES, find_pointers_into
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.apr.pools import FIRST, Pool
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges, merge_to_most
from findleaks.value_classes import NamedTuple

PART = 0.5  # least fraction of the pool's used memory that must be reachable from a holder
MOST_POINTERS = 1 << 20  # maximum number of pointers in a pool; following this many takes about 4 s
MOST_SEARCHES = 256  # maximum number of memory ranges that are searched for pointers
_NONE, _SEVERAL = "", "\0"  # labels of objects: reachable from no holder; from several holders


class Reference(NamedTuple):
    """A variable of the loaded file `module`. Its value is an address in the pool. `name` is "" if
    unknown."""

    name: str
    module: str
    value: int


class Holder(NamedTuple):
    """A variable ("sessions (mod_sessions.so, data)"), or the variables of one file ("variables of
    mod_sessions.so"). `bytes` of the pool are reachable only from them."""

    name: str
    bytes: int


def find_spans(memory: Memory, pool: Pool) -> list[tuple[int, int]]:
    """Return the parts of the pool's nodes (start, end) that contain objects, ascending and
    disjoint. The first node also contains the pool itself."""
    first, found = memory.word(pool.address + FIRST * memory.size) or pool.address, list[tuple[int, int]]()
    for node in sorted(pool.nodes):
        start = first if node.start <= pool.address < node.end else node.start + NODE
        start = max(start, found[-1][1]) if found else start
        if start < node.free:
            found.append((start, node.free))
    return found


def list_pointers(target: Target, engine: Engine, spans: Sequence[tuple[int, int]]) -> Optional[tuple[array[int], array[int]]]:
    """Return the addresses ("Q", ascending) and values ("Q") of the words in `spans` that refer to
    memory in `spans`; None if there are more than MOST_POINTERS. Memory between spans may be
    included, because few large searches are faster than one for each span."""
    memory = merge_ranges(Range(start, end) for start, end in spans)
    few, places, values = merge_to_most(memory, MOST_RANGES), array("Q"), array("Q")
    for start, end in merge_to_most(memory, MOST_SEARCHES):
        for piece in target.pieces(start, end):
            found = find_pointers_into(engine, piece, few)
            places.extend(found[0])
            values.extend(found[1])
            if len(places) > MOST_POINTERS:
                return None
    return places, values


class PoolObjects:
    """The objects of a pool. `spans` are the parts of the pool that contain objects; see
    `find_spans`. `places` and `values` are the result of `list_pointers`."""

    def __init__(
        self, spans: Sequence[tuple[int, int]], places: Sequence[int], values: Sequence[int], references: Sequence[Reference]
    ) -> None:
        self._spans, self._references = spans, references
        self._starts = sorted(filter(self._span_end, {*values, *(one.value for one in references)}))
        ends = map(self._span_end, self._starts)
        self._sizes = [min(end, following) - start for start, end, following in zip(self._starts, ends, [*self._starts[1:], 1 << 64])]
        self._numbers = {start: number for number, start in enumerate(self._starts)}
        pairs = [(place, self._numbers[value]) for place, value in zip(places, values) if value in self._numbers]
        self._to = [to for _, to in pairs]
        inner = [place for place, _ in pairs]
        # The pointers in object N have the indices first[N] to last[N] - 1.
        self._first = [bisect_left(inner, start) for start in self._starts]
        self._last = [bisect_left(inner, start + size) for start, size in zip(self._starts, self._sizes)]

    def _span_end(self, address: int) -> int:
        """Return the end of the span that contains an address, or 0."""
        at = bisect_right(self._spans, (address, 1 << 64)) - 1
        return self._spans[at][1] if at >= 0 and address < self._spans[at][1] else 0

    def find_holder(self) -> Optional[Holder]:
        """If most of the memory is reachable only from one variable, return this variable. Else, if
        it is reachable only from variables of one file, return this file. Else return None."""
        by_variable = (f"{one.name} ({one.module}, data)" if one.name else f"variables of {one.module}" for one in self._references)
        by_module = (f"variables of {one.module}" for one in self._references)
        return self._find_label(by_variable) or self._find_label(by_module)

    def _find_label(self, labels: Iterable[str]) -> Optional[Holder]:
        reached, sums = self._spread(labels), dict[str, int]()
        for label, size in zip(reached, self._sizes):
            sums[label] = sums.get(label, 0) + size
        sums.pop(_NONE, None), sums.pop(_SEVERAL, None)
        best = max(sums, key=lambda label: (sums[label], label), default="")
        enough = PART * sum(end - start for start, end in self._spans)
        return Holder(best, sums[best]) if best and sums[best] >= enough else None

    def _spread(self, labels: Iterable[str]) -> list[str]:
        """Return for each object the label of the references from which it is reachable, _NONE, or
        _SEVERAL. The label of an object changes at most twice, so the time is proportional to the
        number of pointers."""
        found = [_NONE] * len(self._starts)
        todo = [(self._numbers[one.value], label) for one, label in zip(self._references, labels) if one.value in self._numbers]
        while todo:
            at, label = todo.pop()
            if found[at] not in (label, _SEVERAL):
                found[at] = _SEVERAL if found[at] else label
                todo += [(to, found[at]) for to in self._to[self._first[at] : self._last[at]]]
        return found
