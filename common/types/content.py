"""Compares the content of blocks with types: the pointers must refer to what the type says."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.debuginfo.type_table import VOID
from findleaks.types.heap import HeapView
from findleaks.types.layouts import Layouts, Leaf, Role, Sort, Spec
from findleaks.types.rules import Rules
from findleaks.value_classes import NamedTuple

MOST_WORDS = 1024  # Words of one block that are compared.


class Match(NamedTuple):
    """How well a block's content fits a type."""

    wrong: int  # Words that contradict the type.
    strong: int  # Pointers to blocks of the expected type.
    weak: int  # Pointers to blocks of a possible type and size, and to functions.

    @property
    def fits(self) -> bool:
        return not self.wrong


class Content:
    """Compares blocks with layouts."""

    def __init__(self, heap: HeapView, layouts: Layouts, rules: Rules) -> None:
        self._heap, self._layouts, self._rules = heap, layouts, rules

    def match(self, spec: Spec, start: int, size: int, depth: int = 1) -> Match:
        """Compare the block at `start` with a type. `depth`: how many pointers to blocks without a type
        are followed one after the other."""
        wrong = strong = weak = 0
        for address, leaf in self._leaves(spec, start, size):
            verdict = self._word(leaf, address, depth)
            wrong += verdict < 0
            strong += verdict == 2
            weak += verdict == 1
        return Match(wrong, strong, weak)

    def _leaves(self, spec: Spec, start: int, size: int) -> Iterator[tuple[int, Leaf]]:
        seen = 0
        for one in self._layouts.shape(spec):
            room = (size - one.start) // one.stride if size > one.start else 0
            for element in range(min(one.count, room) if one.count else room):
                for leaf in one.leaves:
                    yield start + one.start + element * one.stride + leaf.offset, leaf
                seen += len(one.leaves)
                if seen > MOST_WORDS:
                    return

    def _word(self, leaf: Leaf, address: int, depth: int) -> int:
        """Return -1 if a word contradicts a leaf, 0 if it says nothing, 1 if it fits, 2 if it refers
        to a block of the expected type."""
        heap = self._heap
        value = heap.word(address)
        if not value:
            return 0
        if leaf.role == Role.CODE:
            return 1 if heap.is_code(value) else -1
        place = heap.place(value)
        if leaf.role == Role.PLAIN:
            return -1 if place is not None and place.offset == 0 else 0
        if leaf.role == Role.DATA:
            if not heap.is_mapped(value):
                return -1
            # The target of a pointer to characters or numbers has no type of its own.
            if place is None or place.offset:
                return 0
            return -1 if heap.layout(place.index) else 1
        of = self._layouts.references[leaf.reference]
        if of.sort == Sort.ANY:
            return 0
        optional = of.sort == Sort.CHOICE
        if place is None:
            return 0 if optional or heap.is_mapped(value) else -1
        layout = heap.layout(place.index)
        if layout:
            known = self._layouts.specs[layout]
            if any(self._agrees(pointee, known, place.offset) for pointee in of.pointees):
                return 2
            return 0 if optional and VOID in of.pointees else -1
        possible = self._rules.candidates(leaf.reference, place.offset, place.size)
        if depth:
            possible = [one for one in possible if self.match(one.spec, place.start, place.size, depth - 1).fits]
        return 1 if possible else (0 if optional else -1)

    def _agrees(self, pointee: int, known: Spec, offset: int) -> bool:
        table = self._layouts.table
        own = table.sizes[table.bare(known.type)]
        if known.many and own:
            offset %= own
        return self._layouts.embedding.has(known.type, offset, pointee)
