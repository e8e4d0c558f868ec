"""What an allocator's reader offers; adding an allocator is adding one file (or folder) that registers a finder here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional, Protocol

from findleaks.graph.base import Blocks, Engine, State
from findleaks.target.base import Range, Target


class Problem(NamedTuple):
    """Corruption: where, what, and what it means for the result (one line for the user)."""

    address: int
    what: str


@dataclass
class Heap:
    """A contiguous range whose blocks one `walk` appends in ascending order.

    `arena` labels it ("main", "arena 3", "mmapped"). `metadata` are the parts that are the allocator's own (heap_info, arena
    headers); the whole of [start, end) is never root memory, but for `foreign`: parts that are somebody else's, or that corruption
    hides, known once `walk` has run. `walk` may be called once; it appends to `blocks`, reports corruption
    by appending to `problems` and then returns normally, so that the next heap is still walked.
    """

    start: int
    end: int
    arena: str
    walk: Callable[[Blocks], None]
    metadata: list[Range] = field(default_factory=list)
    foreign: list[Range] = field(default_factory=list)

    def owned(self) -> list[Range]:
        """[start, end) less `foreign`: what is never root memory."""
        owned, at = [], self.start
        for start, end in [*sorted(self.foreign), Range(self.end, self.end)]:
            if start > at:
                owned.append(Range(at, start))
            at = max(at, end)
        return owned


class Allocator(Protocol):
    name: str  # "glibc"
    version: str  # "2.36", or "2.26-2.42" when only the layout is known
    where: str  # "libc.so.6"
    granule: int
    problems: list[Problem]

    def heaps(self) -> Sequence[Heap]: ...

    def sealed(self, blocks: Blocks) -> None:
        """Called once after all heaps are walked and `blocks` is sealed: mark cached, free and metadata blocks, reconcile totals."""
        ...

    def metadata(self) -> Sequence[Range]:
        """Ranges outside its heaps that are the allocator's own and must not be roots (main_arena and mp_ in libc's data, …)."""
        ...

    def summary(self) -> dict[str, object]:
        """For `allocators[]` in the JSON: arenas, and how the totals reconcile."""
        ...

    def locate(self, address: int) -> str:
        """One phrase on where in the allocator an address lies ("top of arena 3", "heap_info"), or ""."""
        ...


class Finder(Protocol):
    """Finds every instance of one allocator in a target by structure (symbols are a shortcut only); [] if it is not there."""

    def __call__(self, target: Target, engine: Engine) -> Sequence[Allocator]: ...


__all__ = ["Allocator", "Finder", "Heap", "Iterator", "Optional", "Problem", "State"]
