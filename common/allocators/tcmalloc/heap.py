"""The page heap of a gperftools tcmalloc: the state that lists, checks and statistics use."""

from __future__ import annotations

from collections import Counter
from functools import cached_property

from findleaks.allocators.tcmalloc.locate import Place
from findleaks.allocators.tcmalloc.spans import Span
from findleaks.allocators.tcmallocs.instance import PageHeap


class TcmallocHeap(PageHeap[Span]):
    """The data that instance.Tcmalloc finds. Readers add to `problems` and set `checked`."""

    place: Place
    listed: Counter[int]  # number of blocks on lists of spans, by size class

    @cached_property
    def _by_class(self) -> dict[int, list[Span]]:
        found: dict[int, list[Span]] = {}
        for span in self.spans:
            found.setdefault(span.number, []).append(span)
        return found

    def spans_of(self, number: int) -> list[Span]:
        """Return the spans of a size class."""
        return self._by_class.get(number, [])

    @cached_property
    def page_bytes(self) -> list[int]:
        """The bytes of spans by location."""
        found = [0, 0, 0]
        for span in self.spans:
            found[span.location] += span.end - span.start
        return found
