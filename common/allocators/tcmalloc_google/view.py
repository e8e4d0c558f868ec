"""The parts of one of Google's tcmallocs from which its checks and counts are made."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Optional, Protocol

from findleaks.allocators.base import Heap, Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.tcmalloc_google.caches import Found, Held
from findleaks.allocators.tcmalloc_google.lists import Lists
from findleaks.allocators.tcmalloc_google.locate import Place
from findleaks.allocators.tcmalloc_google.spans import Span, Spans, Tree
from findleaks.target.base import Range


class GoogleView(Protocol):
    """See instance.GoogleTcmalloc. Readers add to `problems` and set `checked`."""

    memory: Memory
    place: Place
    tree: Tree
    spans: Spans
    found: Found
    lists: Lists
    regions: list[Range]
    own: list[Range]
    free: array[int]
    problems: list[Problem]
    checked: Mapping[str, int]

    def heaps(self) -> Sequence[Heap]: ...

    def held(self) -> Sequence[Held]: ...

    def kept(self) -> Mapping[tuple[str, int], int]: ...

    def span_at(self, address: int) -> Optional[Span]: ...
