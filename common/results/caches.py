"""The result of `caches`: size classes, arenas and thread caches of allocators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

from findleaks.results.amounts import Amount
from findleaks.results.record import ADDRESS, OPTIONAL, Record
from findleaks.results.sites import Recorder, Site
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class BlockCounts(Record):
    """Numbers of blocks by state."""

    in_use: int
    """Blocks in use."""
    cached: int
    """Freed blocks in thread caches."""
    free: int
    """Other free blocks."""
    total: int
    """All of them."""


@dataclass(frozen=True, eq=False, repr=False)
class Instance(Record):
    """A part of a result that belongs to one allocator."""

    allocator: str
    """The allocator's name."""
    instance: int
    """Its index in `totals`, as two allocators may have the same name."""


@dataclass(frozen=True, eq=False, repr=False)
class AllocatorTotals(Instance):
    """The memory of one allocator; all fields but `blocks` are bytes."""

    version: str
    """Its version; "" if it is not known."""
    where: str
    """The file that contains the allocator."""
    in_use: int
    """Bytes of blocks in use."""
    cached: int
    """Bytes of blocks in thread caches."""
    free: int
    """Bytes of free blocks."""
    spare: int
    """Bytes that are not cut into blocks."""
    lent: int
    """Bytes of blocks in use that contain another allocator's heap."""
    memory: int
    """Bytes of slabs, spans or chunks, with headers."""
    mapped: int
    """Mapped bytes."""
    blocks: BlockCounts
    """Numbers of blocks."""
    counted: Mapping[str, Optional[int]]
    """Counters that the allocator keeps, by their names in the allocator."""


@dataclass(frozen=True, eq=False, repr=False)
class SizeClass(Instance):
    """A size class of an allocator."""

    arena: Optional[str]
    """The arena, if the rows are by arena."""
    name: str
    """The allocator's name for it."""
    size: int
    """Usable bytes of each block; 0: sizes differ."""
    in_use: int
    """Number of blocks in use."""
    cached: int
    """Number of blocks in thread caches."""
    free: int
    """Number of free blocks."""
    total: int
    """Number of all of these."""
    in_use_bytes: int
    """Bytes of blocks in use."""
    cached_bytes: int
    """Bytes of blocks in thread caches."""
    free_bytes: int
    """Bytes of free blocks."""
    memory: int
    """Bytes of its slabs, spans or chunks, with headers."""
    allocs: Optional[int]
    """Number of allocations, if it is counted."""
    fails: Optional[int]
    """Number of failed allocations, if it is counted."""
    own: Mapping[str, int]
    """The allocator's own counters, by its names."""


@dataclass(frozen=True, eq=False, repr=False)
class ArenaTotals(Instance):
    """An arena, in bytes."""

    name: str
    """Its name."""
    in_use: int
    """Bytes of blocks in use."""
    cached: int
    """Bytes of blocks in thread caches."""
    free: int
    """Bytes of free blocks."""
    spare: int
    """Bytes that are not cut into blocks."""
    mapped: int
    """Mapped bytes, metadata included."""
    own: Mapping[str, int]
    """The allocator's own counters, by its names."""


@dataclass(frozen=True, eq=False, repr=False)
class ThreadCache(Instance):
    """The blocks of one size class in one thread cache."""

    thread: Optional[int]
    """The kernel's number of the thread; None: not known."""
    address: int = field(metadata=ADDRESS)
    """Where the cache is."""
    name: str
    """The allocator's name for the size class."""
    size: int
    """Usable bytes of each block; 0: sizes differ."""
    blocks: int
    """Number of blocks."""
    bytes: int
    """Their usable bytes."""


@dataclass(frozen=True, eq=False, repr=False)
class SizeClassSite(Instance):
    """Blocks in use of one size class that one call stack allocated."""

    name: str
    """The allocator's name for the size class."""
    size: int
    """Usable bytes of each block; 0: sizes differ."""
    blocks: int
    """Number of blocks that were recorded."""
    bytes: int
    """Their usable bytes."""
    estimated: Optional[Amount]
    """Estimate for all blocks, if the recorder samples."""
    site: Site
    """The call stack."""


@dataclass(frozen=True, eq=False, repr=False)
class Caches(Record):
    """The result of `caches`."""

    totals: Sequence[AllocatorTotals]
    """Every allocator."""
    caches: Sequence[SizeClass]
    """The size classes."""
    arenas: Sequence[ArenaTotals]
    """The arenas."""
    threads: Sequence[ThreadCache]
    """The thread caches."""
    recorders: Optional[Sequence[Recorder]] = field(default=None, metadata=OPTIONAL)
    """The recorders of call stacks, if sites were requested."""
    sites: Optional[Sequence[SizeClassSite]] = field(default=None, metadata=OPTIONAL)
    """The call stacks of each size class, if sites were requested."""
