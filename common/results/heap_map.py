"""The results of `map`: heaps page by page, and the residency of pages that was saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Optional

from findleaks.results.record import ADDRESS, Record
from findleaks.value_classes import dataclass, field

PageWord = Literal["in_use", "untouched", "cached", "metadata", "kept", "returned", "free", "unknown"]
"""The state of a page: blocks in use; blocks in use that were never written to; blocks in thread
caches; allocator metadata; free and resident (kept); free and returned to the kernel (returned);
free, residency not known (free)."""


@dataclass(frozen=True, eq=False, repr=False)
class Residency(Record):
    """The source of the information which pages were resident."""

    source: str
    """The source; "" if it is not known which were."""
    rss: Optional[int]
    """The resident size that the kernel reports, in bytes."""
    saved: Optional[str]
    """When the file of --residency was written."""


@dataclass(frozen=True, eq=False, repr=False)
class MapTotals(Record):
    """Sums of all heaps, in bytes."""

    mapped: int
    """Mapped bytes."""
    resident: Optional[int]
    """Resident bytes; None: not known."""
    in_use: int
    """Bytes of blocks in use, with headers."""
    pages: Mapping[PageWord, int]
    """Bytes of pages by state."""


@dataclass(frozen=True, eq=False, repr=False)
class Trimmable(Record):
    """Memory that a call of the allocator would return to the kernel."""

    allocator: str
    """The allocator's name."""
    instance: int
    """Its index among all allocators of the process."""
    bytes: int
    """Resident bytes that the call would return."""


@dataclass(frozen=True, eq=False, repr=False)
class HeapRange(Record):
    """A contiguous part of a heap."""

    start: int = field(metadata=ADDRESS)
    """Its first address."""
    end: int = field(metadata=ADDRESS)
    """The first address after it."""


@dataclass(frozen=True, eq=False, repr=False)
class PageRun(Record):
    """Adjacent pages in one state."""

    address: int = field(metadata=ADDRESS)
    """Where they begin."""
    pages: int
    """Number of pages."""
    state: PageWord
    """What they hold."""
    in_use: int
    """Bytes of blocks in use in them, with headers."""


@dataclass(frozen=True, eq=False, repr=False)
class MappedHeap(Record):
    """The heaps of one arena, in bytes."""

    allocator: str
    """The allocator's name."""
    instance: int
    """Its index among all allocators of the process."""
    version: str
    """Its version; "" if it is not known."""
    arena: Optional[str]
    """The arena's name; None if the allocator's heap has no arenas."""
    mapped: int
    """Mapped bytes."""
    resident: Optional[int]
    """Resident bytes; None: not known."""
    swapped: int
    """Bytes in swap."""
    in_use: int
    """Bytes of blocks in use, with headers."""
    cached: int
    """Bytes of blocks in thread caches, with headers."""
    metadata: int
    """Bytes of allocator metadata."""
    states: Mapping[PageWord, int]
    """Bytes of pages by state."""
    parts: Sequence[HeapRange]
    """Its contiguous parts."""
    pages: Sequence[PageRun]
    """Its pages, by address."""


@dataclass(frozen=True, eq=False, repr=False)
class ManagedMemoryMap(Record):
    """Memory of a managed runtime outside of allocators' heaps."""

    name: str
    """The runtime and the part: "V8 old space"."""
    mapped: int
    """Mapped bytes."""
    resident: Optional[int]
    """Resident bytes; None: not known."""
    ranges: Sequence[Sequence[int]] = field(metadata=ADDRESS)
    """The first address of each range, and the first address after it."""


@dataclass(frozen=True, eq=False, repr=False)
class HeapMap(Record):
    """The result of `map`."""

    page: int
    """Bytes of a page."""
    residency: Residency
    """The source of the information which pages were resident."""
    totals: MapTotals
    """Sums of all heaps."""
    trim: Sequence[Trimmable]
    """What release calls would return to the kernel, for allocators for which this is known."""
    heaps: Sequence[MappedHeap]
    """The heaps, most resident first."""
    managed: Sequence[ManagedMemoryMap]
    """Memory of managed runtimes."""
    notes: Sequence[str]
    """Sentences on what findleaks knows, or does not know, of runtimes."""


@dataclass(frozen=True, eq=False, repr=False)
class SavedFile(Record):
    """The file of --save-residency."""

    source: str
    """The source of the residency."""
    rss: Optional[int]
    """The resident size that the kernel reports, in bytes."""
    file: str
    """The file."""


@dataclass(frozen=True, eq=False, repr=False)
class SavedResidency(Record):
    """The result of `map --save-residency`."""

    residency: SavedFile
    """What was saved, and where."""
