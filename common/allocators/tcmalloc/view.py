"""The parts of one tcmalloc from which its checks and counts are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional, Protocol

from findleaks.allocators.base import Heap, Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.tcmalloc.caches import Found
from findleaks.allocators.tcmalloc.lists import Lists
from findleaks.allocators.tcmalloc.locate import Place
from findleaks.allocators.tcmalloc.spans import Span, Tree
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target


class TcmallocView(Protocol):
    """See instance.Tcmalloc. Readers add to `problems` and set `checked`."""

    target: Target
    engine: Engine
    memory: Memory
    place: Place
    tree: Tree
    spans: list[Span]
    found: Found
    lists: Lists
    problems: list[Problem]
    checked: Mapping[str, int]

    def heaps(self) -> Sequence[Heap]: ...

    def metadata(self) -> Sequence[Range]: ...

    def span_at(self, address: int) -> Optional[Span]: ...

    def spans_of(self, number: int) -> list[Span]: ...
