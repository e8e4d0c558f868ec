"""Check whether an object in a slot of Go's heap may have a type that code or a channel shows."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.engine.terms import State
from findleaks.runtimes.go.engine import HEADER, NO_HEADER, NONE, TypeSearch
from findleaks.runtimes.go.span_table import ObjectSpans
from findleaks.runtimes.go.spans import smaller_sizes
from findleaks.runtimes.go.type_table import TypeNames


class SlotFit:
    """`has_headers`: whether large slots begin with the type of the object (since Go 1.22)."""

    def __init__(self, names: TypeNames, spans: ObjectSpans, has_headers: bool) -> None:
        self._names, self._spans, self._has_headers = names, spans, has_headers
        self._below = smaller_sizes(spans)

    def is_possible(self, search: TypeSearch, index: int, address: int, value: int) -> bool:
        """Return whether the object that begins at an address may have this type: its size class
        and its pointers."""
        blocks = search.blocks
        if value == NONE or not 0 <= index < len(blocks) or blocks.state(index) != State.IN_USE or search.type_of(index) != NONE:
            return False
        start, room, size = blocks.address(index), blocks.size(index), self._names.size(value)
        span, pointers = self._spans.at(start), self._names.has_pointers(value)
        if span is None or not size or (pointers is not None and pointers != span.has_pointers):
            return False
        header = HEADER if self._has_headers and span.has_pointers and room > NO_HEADER and not span.large else 0
        if address != start + header:
            return False
        if value & 1 or pointers is None:
            return size <= room - header
        return self._below[span.kind >> 1] < size + header <= room

    def list_possible(self, search: TypeSearch, objects: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the index and the type value of those of some objects (address, type value) that
        may have their type, and whose type is not known yet."""
        indices = search.blocks.find_all([address for address, _ in objects])[0]
        return [(index, one[1]) for index, one in zip(indices, objects) if self.is_possible(search, index, *one)]
