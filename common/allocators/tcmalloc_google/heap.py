"""The page heap of one of Google's tcmallocs: the state that checks and statistics use."""

from __future__ import annotations

from collections import Counter
from functools import cached_property

from findleaks.allocators.tcmalloc_google.locate import Place
from findleaks.allocators.tcmalloc_google.spans import Span, Spans
from findleaks.allocators.tcmallocs.instance import PageHeap


class GoogleHeap(PageHeap[Span]):
    """The data that instance.GoogleTcmalloc finds. Readers add to `problems` and set `checked`."""

    place: Place
    records: Spans

    @cached_property
    def kept(self) -> Counter[tuple[str, int]]:
        """The number of blocks in caches by kind of cache and size class."""
        found: Counter[tuple[str, int]] = Counter()
        for held in self.held:
            found[held.kind, held.number] += len(held.blocks)
        return found
