"""Determine which part of each Go array is used by slices and strings. An array stays in memory as
a whole while anything refers to a part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Optional

from findleaks.allocators.bulk import MOST_RANGES, find_pointers_into
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine, Graph
from findleaks.runtimes.go.engine import NONE, PAGE, SLICE, TEXT
from findleaks.runtimes.go.objects import HeapObjects
from findleaks.runtimes.object_graph import LIVE
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges, merge_to_most, subtract

_MOST_WORDS = 1 << 20  # references that are read
_MOST_UNUSED = 6  # in a small slot, at most 1 / this of the bytes follow the array's capacity


class SliceUses:
    """The references to the blocks with the indices `arrays`. `uses`: by index of an array, the
    ranges that slices and strings use. `holders`: by index of an array, the type of an object, or
    the name of a variable, that contains such a slice or string. `inexact`: the indices of arrays
    of which slices use at most these ranges. They use exactly the ranges of the other arrays.

    `name` returns the name of the variable at an address."""

    def __init__(
        self, memory: Memory, objects: HeapObjects, engine: Engine, graph: Graph, arrays: Iterable[int], name: Callable[[int], str]
    ) -> None:
        self._memory, self._objects, self._engine, self._graph, self._name = memory, objects, engine, graph, name
        self.uses: dict[int, list[Range]] = {index: [] for index in arrays}
        self.holders: dict[int, str] = {}
        self.inexact: set[int] = set()
        self._sizes, _, self._first, self._offsets, self._kinds, self._targets = objects.names.columns()

    def run(self) -> bool:
        """Find all references. Returns False if there are too many. If anything other than
        a slice or string refers to an array, the array is removed: its used part is unknown."""
        objects, blocks, seen = self._objects, self._objects.blocks, 0
        ranges = merge_to_most(
            [Range(blocks.address(index), blocks.address(index) + blocks.size(index)) for index in self.uses], MOST_RANGES
        )
        for words in (*objects.other_root_words(), *objects.stacks.words(objects.stacks.threads())):
            for index in blocks.find_all(words)[0]:
                self.uses.pop(index, None)
        for pairs in objects.variable_words():
            for (place, value), index in zip(pairs, blocks.find_all([value for _, value in pairs])[0]):
                if index in self.uses:
                    self._add(index, value, self._used_by_variable(place, value, index), partial(self._name, place))
        for piece in objects.pointers.all_pieces():
            places, values = find_pointers_into(self._engine, piece, ranges)
            seen += len(places)
            if seen > _MOST_WORDS:
                return False
            for place, referrer, value, index in zip(places, blocks.find_all(places)[0], values, blocks.find_all(values)[0]):
                if index in self.uses and referrer < len(blocks) and self._graph.kind(referrer) in LIVE:
                    used = self._used_by_object(place, referrer)
                    self._add(index, value, used, partial(self._objects.title_at, referrer))
        self.uses = {index: merge_ranges(parts) for index, parts in self.uses.items() if parts}
        return True

    def extent(self, index: int) -> Range:
        """Return the memory of an array, without its header."""
        start = self._objects.blocks.address(index)
        return Range(start + self._objects.header_of(index), start + self._objects.blocks.size(index))

    def list_unused(self, index: int) -> list[Range]:
        """Return the parts of an array that no slice includes."""
        return subtract([self.extent(index)], self.uses[index])

    def _add(self, index: int, value: int, used: Optional[int], holder: Callable[[], str]) -> None:
        if used is None:
            del self.uses[index]
        else:
            self.uses[index].append(Range(value, value + used))
            self.holders[index] = holder()

    def _used_by_object(self, place: int, referrer: int) -> Optional[int]:
        """Return the number of bytes that the slice or string at `place` uses; None if there is
        neither. `referrer`: the index of the object that contains `place`."""
        kind = self._objects.type_value(referrer)
        stride = self._sizes[kind >> 1] if kind != NONE else 0
        if not stride:
            return None
        offset = place - self._objects.blocks.address(referrer) - self._objects.header_of(referrer)
        slots = range(self._first[kind >> 1], self._first[(kind >> 1) + 1])
        at = next((at for at in slots if self._offsets[at] == (offset % stride if kind & 1 else offset)), None)
        if at is None or self._kinds[at] not in (SLICE, TEXT):
            return None
        length = self._memory.word(place + 8)
        if length is None:
            return None
        return length * (self._sizes[self._targets[at] >> 1] if self._kinds[at] == SLICE and self._targets[at] != NONE else 1)

    def _used_by_variable(self, place: int, value: int, index: int) -> Optional[int]:
        """Return the most bytes that the slice in the global variable at `place` can use; None if
        there is no slice. `value`: the first word, which refers to array `index`.

        The types of variables are unknown. Three words are a slice if its capacity extends to the
        end of the array. The end is not exact, because Go rounds sizes up. If the size of an
        element is unknown, the largest possible size is assumed.

        Example: 0xc000180000, 10, 20 in an array of 8-byte elements that ends at 0xc0001800a0."""
        length, capacity = self._memory.words(place + 8, 2) or (0, 0)
        span, kind = self._objects.span_of(index), self._objects.type_value(index)
        room = self.extent(index).end - value
        if span is None or not capacity or length > capacity or capacity > room:
            return None
        spare = span.size // _MOST_UNUSED if span.kind >> 1 else PAGE
        is_typed = kind != NONE and kind & 1 == 1
        stride = self._sizes[kind >> 1] if is_typed else room // capacity
        if not room - spare < capacity * stride <= room:
            return None
        if not is_typed:
            self.inexact.add(index)
        return length * stride
