"""The results of `map`: heaps page by page, and the saved residency of pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Optional

from findleaks.results.record import ADDRESS, Record
from findleaks.value_classes import dataclass, field

PageWord = Literal["in_use", "untouched", "cached", "metadata", "kept", "returned", "free", "unknown"]
"""The state of a page. in_use: blocks in use. untouched: blocks in use that were never written to.
cached: blocks in thread caches. metadata: allocator metadata. kept: free and resident. returned:
free and returned to the kernel. free: free, residency unknown."""


@dataclass(frozen=True, eq=False, repr=False)
class Residency(Record):
    """How findleaks knows which pages were resident."""

    source: str
    """The source of the residency; "" if residency is unknown."""
    rss: Optional[int]
    """The resident size that the kernel reports, in bytes."""
    saved: Optional[str]
    """The time, in UTC, at which the file of --residency was written: "2026-01-31T12:00:00Z". None
    without this option."""


@dataclass(frozen=True, eq=False, repr=False)
class MapTotals(Record):
    """Sums over all heaps, in bytes."""

    mapped: int
    """Mapped bytes."""
    resident: Optional[int]
    """Resident bytes; None if unknown."""
    in_use: int
    """Bytes of blocks in use, including headers."""
    pages: Mapping[PageWord, int]
    """Bytes of pages by state."""


@dataclass(frozen=True, eq=False, repr=False)
class Trimmable(Record):
    """Memory that a call of the allocator would return to the kernel."""

    allocator: str
    """The allocator's name."""
    instance: int
    """The index of the allocator among all allocators of the process."""
    bytes: int
    """Resident bytes that the call would return."""


@dataclass(frozen=True, eq=False, repr=False)
class HeapRange(Record):
    """A contiguous part of a heap."""

    start: int = field(metadata=ADDRESS)
    """The first address of the part."""
    end: int = field(metadata=ADDRESS)
    """The first address after the part."""


@dataclass(frozen=True, eq=False, repr=False)
class PageRun(Record):
    """Adjacent pages in the same state."""

    address: int = field(metadata=ADDRESS)
    """The address of the first page."""
    pages: int
    """Number of pages."""
    state: PageWord
    """The state of these pages."""
    in_use: int
    """Bytes of blocks in use in these pages, including headers."""


@dataclass(frozen=True, eq=False, repr=False)
class MappedHeap(Record):
    """The heaps of one arena, in bytes."""

    allocator: str
    """The allocator's name."""
    instance: int
    """The index of the allocator among all allocators of the process."""
    version: str
    """The version of the allocator; "" if unknown."""
    arena: Optional[str]
    """The arena's name; None if the allocator's heap has no arenas."""
    mapped: int
    """Mapped bytes."""
    resident: Optional[int]
    """Resident bytes; None if unknown."""
    swapped: int
    """Bytes in swap."""
    in_use: int
    """Bytes of blocks in use, including headers."""
    cached: int
    """Bytes of blocks in thread caches, including headers."""
    metadata: int
    """Bytes of allocator metadata."""
    states: Mapping[PageWord, int]
    """Bytes of pages by state."""
    parts: Sequence[HeapRange]
    """The contiguous parts of these heaps."""
    pages: Sequence[PageRun]
    """The pages of these heaps, ascending by address."""


@dataclass(frozen=True, eq=False, repr=False)
class ManagedMemoryMap(Record):
    """Memory of a managed runtime that is not in an allocator's heap."""

    name: str
    """The runtime and the part: "V8 old space"."""
    mapped: int
    """Mapped bytes."""
    resident: Optional[int]
    """Resident bytes; None if unknown."""
    ranges: Sequence[Sequence[int]] = field(metadata=ADDRESS)
    """The ranges of this memory: for each, the first address, and the first address after the
    range."""


@dataclass(frozen=True, eq=False, repr=False)
class HeapMap(Record):
    """The result of `map`."""

    page: int
    """Bytes of a page."""
    residency: Residency
    """How findleaks knows which pages were resident."""
    totals: MapTotals
    """Sums over all heaps."""
    trim: Sequence[Trimmable]
    """The memory that each allocator's release call would return to the kernel. Allocators for
    which this is unknown are missing."""
    heaps: Sequence[MappedHeap]
    """The heaps, those with the most resident memory first."""
    managed: Sequence[ManagedMemoryMap]
    """Memory of managed runtimes."""
    notes: Sequence[str]
    """Sentences about what findleaks knows, or does not know, about runtimes."""


@dataclass(frozen=True, eq=False, repr=False)
class SavedFile(Record):
    """The file of --save-residency."""

    source: str
    """The source of the residency."""
    rss: Optional[int]
    """The resident size that the kernel reports, in bytes."""
    file: str
    """The name of the file."""


@dataclass(frozen=True, eq=False, repr=False)
class SavedResidency(Record):
    """The result of `map --save-residency`."""

    residency: SavedFile
    """What was saved, and the file."""
