"""Find arrays of structs without pointers, such as `struct span *spans; int count;`.

The content of such a block does not show that it is an array: it may also be one struct followed by
other data. But if a number at the same place near all pointers of one member is always the number
of elements that the block has room for, it is the length of an array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

from findleaks.engine.type_spread import ROOT, Level, Pointers
from findleaks.types.embedding import is_structure
from findleaks.types.heap import HeapView
from findleaks.types.layouts import Layouts
from findleaks.types.references import Sort
from findleaks.types.rules import Rules
from findleaks.types.specs import Candidate, Spec

LEAST_WITNESSES = 16
"""Fewest pointers of one member to blocks of a type."""
LEAST_SIZES = 3
"""Fewest different sizes of the blocks. Many numbers fit blocks of one small size."""
FARTHEST = 64
"""Maximum number of bytes between the pointer and the number."""
_BYTES = 4

_Key = tuple[int, int, int]
_Slot = tuple[int, int]  # Layout of an owner, and offset in it.


class MemberCounts:
    """Finds pointers to arrays of structs without pointers among the pointers that the search has
    put off, because their rules do not determine the types of the blocks."""

    def __init__(self, heap: HeapView, layouts: Layouts, rules: Rules) -> None:
        self._heap, self._layouts, self._rules = heap, layouts, rules

    def find(self, pending: Iterable[Pointers]) -> Iterator[tuple[_Key, int]]:
        """Yield, for each rule of pointers that refer to such arrays, the rule's key (reference,
        offset, size of the block) and its answer: the claim of an array."""
        by_reference: dict[int, list[Pointers]] = {}
        for found in pending:
            if found.untyped and self._may_be_array(found):
                by_reference.setdefault(found.reference, []).append(found)
        for reference, some in by_reference.items():
            of = self._layouts.references[reference]
            slots = self._group_by_slot(some)
            counted = {
                slot for slot, rows in slots.items() if self._find_number(rows, self._layouts.table.size_of(of.pointees[0])) is not None
            }
            for found in some if counted else ():
                owners = [self._slot(found.untyped[at], found.untyped[at + 1]) for at in range(0, len(found.untyped), 3)]
                if all(slot in counted for slot in owners):
                    claim = self._rules.claim(Candidate(Spec(of.pointees[0], True, of.node), Level.LEARNED))
                    yield (reference, found.offset, found.size), claim

    def _may_be_array(self, found: Pointers) -> bool:
        """Whether each block must be an array of structs without pointers, or one such struct
        followed by other data."""
        of, layouts = self._layouts.references[found.reference], self._layouts
        pointee = of.pointees[0] if of.sort == Sort.POINTER else 0
        if found.offset or not pointee or of.counted or not is_structure(layouts.table, pointee) or layouts.has_pointers(pointee):
            return False
        candidates = self._rules.candidates(found.reference, found.offset, found.size)
        specs = {one.spec for one in candidates}
        return Spec(pointee, True, of.node) in specs and all(spec.type == pointee and not spec.parts for spec in specs)

    def _group_by_slot(self, some: Sequence[Pointers]) -> dict[Optional[_Slot], list[tuple[int, int]]]:
        """Return, by member, the address of each pointer in this member, and the size of the block
        to which the pointer refers."""
        found: dict[Optional[_Slot], list[tuple[int, int]]] = {}
        for one in some:
            for at in range(0, len(one.untyped), 3):
                owner, place = one.untyped[at : at + 2]
                found.setdefault(self._slot(owner, place), []).append((place, one.size))
        found.pop(None, None)
        return found

    def _slot(self, owner: int, place: int) -> Optional[_Slot]:
        """Return the layout of a pointer's owner, and the offset of the pointer in it or in an
        element of an array; None for owners that are not blocks."""
        layout = self._heap.layout(owner) if owner < ROOT else 0
        if not layout:
            return None
        spec, offset = self._layouts.specs[layout], place - self._heap.blocks.address(owner)
        own = self._layouts.size_of(spec)
        return (layout, offset % own if spec.many and own else offset)

    def _find_number(self, rows: Sequence[tuple[int, int]], own: int) -> Optional[int]:
        """Return the distance from the pointers at which there is always the length of the array;
        None if there is none. `rows`: the address of each pointer, and the size of its block.
        `own`: the bytes of an element."""
        if len(rows) < LEAST_WITNESSES or len({size for _, size in rows}) < LEAST_SIZES:
            return None
        fits, number = self._rules.sizes.fits, self._heap.number
        distances = range(-FARTHEST, FARTHEST + 1, _BYTES)
        return next((at for at in distances if all(fits(number(place + at, _BYTES) * own, size) for place, size in rows)), None)
