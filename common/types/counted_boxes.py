"""Find the types of lost cycles of Rust's Rc and Arc.

No typed pointer refers to such a cycle. Its blocks begin with two reference counts, and at least
one member of each block is an Rc or Arc that refers to a block of the cycle. Layouts: RcInner
(RcBox before Rust 1.83) in library/alloc/src/rc.rs, and ArcInner in library/alloc/src/sync.rs:
strong count, weak count, value."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping

from findleaks.engine.type_spread import Role
from findleaks.types.content import MOST_COMPARED, Content
from findleaks.types.heap import HeapView
from findleaks.types.layouts import Layouts
from findleaks.types.references import Sort
from findleaks.types.rules import Rules
from findleaks.types.specs import Spec

_NAMES = ("alloc::rc::RcInner<", "alloc::rc::RcBox<", "alloc::sync::ArcInner<")
_MOST_COUNTED = 1 << 24  # Blocks with larger reference counts are not examined.


class CountedBoxes:
    """Compares untyped blocks with the boxes of Rc and Arc that the debug information has."""

    def __init__(self, heap: HeapView, layouts: Layouts, content: Content, rules: Rules) -> None:
        self._heap, self._layouts, self._content, self._rules = heap, layouts, content, rules
        self._boxes: dict[int, list[Spec]] = {}  # by size of block

    def find(self, blocks: array[int]) -> Iterator[tuple[int, array[int]]]:
        """Yield a layout and those of the untyped blocks ("I") that are boxes of this type."""
        by_size: dict[int, list[int]] = {}
        for index, size in zip(blocks, self._heap.blocks.columns_of(blocks).size):
            if self._of_size(size):
                by_size.setdefault(size, []).append(index)
        fitting = {index: spec for size, some in by_size.items() for index, spec in self._only(size, some)}
        found: dict[int, array[int]] = {}
        for index, spec in fitting.items():
            if self._is_evident(index, spec, fitting):
                found.setdefault(self._layouts.number(spec), array("I")).append(index)
        yield from sorted(found.items())

    def _of_size(self, size: int) -> list[Spec]:
        if size not in self._boxes:
            specs = [one.spec for one in self._rules.of_size(size)]
            self._boxes[size] = [spec for spec in specs if self._layouts.table.name(spec.type).startswith(_NAMES)]
        return self._boxes[size]

    def _only(self, size: int, blocks: list[int]) -> Iterator[tuple[int, Spec]]:
        """Yield the blocks with valid reference counts that exactly one box fits, with this box."""
        heap, specs = self._heap, self._boxes[size][:MOST_COMPARED]
        starts = heap.blocks.columns_of(array("I", blocks)).address
        counted = [index for index, start in zip(blocks, starts) if self._is_counted(start)]
        for index, mask in zip(counted, self._content.fits([self._layouts.number(one) for one in specs], counted)):
            if mask and not mask & (mask - 1):
                yield index, specs[mask.bit_length() - 1]

    def _is_counted(self, start: int) -> bool:
        counts = (self._heap.word(start), self._heap.word(start + self._heap.arch.word))
        return all(count is not None and 1 <= count < _MOST_COUNTED for count in counts)

    def _is_evident(self, index: int, spec: Spec, fitting: Mapping[int, Spec]) -> bool:
        """Whether a pointer of a block refers to a block of the type that it declares. `fitting`:
        the blocks that exactly one box fits."""
        heap, start = self._heap, self._heap.blocks.address(index)
        for leaf in (leaf for part in self._layouts.shape(spec) if part.number == 1 for leaf in part.leaves):
            reference = self._layouts.references[leaf.reference] if leaf.role == Role.REFERENCE else None
            if reference is None or reference.sort != Sort.POINTER:
                continue
            value = heap.word(start + leaf.offset)
            place = heap.place(value) if value else None
            target = fitting.get(place.block) if place is not None and not place.offset else None
            if target is not None and target.type in reference.pointees:
                return True
        return False
