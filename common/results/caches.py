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
    """All of these blocks."""


@dataclass(frozen=True, eq=False, repr=False)
class Instance(Record):
    """A part of the result that belongs to one allocator."""

    allocator: str
    """The allocator's name."""
    instance: int
    """The index of the allocator in `totals`. It is needed because two allocators may have the same
    name."""


@dataclass(frozen=True, eq=False, repr=False)
class AllocatorTotals(Instance):
    """The memory of one allocator. All fields except `blocks` are bytes."""

    version: str
    """The version of the allocator; "" if unknown."""
    where: str
    """The file that contains the allocator."""
    in_use: int
    """Bytes of blocks in use."""
    cached: int
    """Bytes of blocks in thread caches."""
    free: int
    """Bytes of free blocks."""
    spare: int
    """Bytes that are free but not divided into blocks."""
    lent: int
    """Bytes of blocks in use that contain another allocator's heap."""
    memory: int
    """Bytes of slabs, spans or chunks, including headers."""
    mapped: int
    """Mapped bytes."""
    blocks: BlockCounts
    """Numbers of blocks."""
    counted: Mapping[str, Optional[int]]
    """Counters that the allocator maintains, with the allocator's names."""


@dataclass(frozen=True, eq=False, repr=False)
class SizeClass(Instance):
    """A size class of an allocator."""

    arena: Optional[str]
    """The arena; None unless there are rows for each arena."""
    name: str
    """The allocator's name for the size class."""
    size: int
    """Usable bytes of each block; 0 if the blocks differ in size."""
    in_use: int
    """Number of blocks in use."""
    cached: int
    """Number of blocks in thread caches."""
    free: int
    """Number of free blocks."""
    total: int
    """Number of blocks in any of these states."""
    in_use_bytes: int
    """Bytes of blocks in use."""
    cached_bytes: int
    """Bytes of blocks in thread caches."""
    free_bytes: int
    """Bytes of free blocks."""
    memory: int
    """Bytes of the slabs, spans or chunks of this class, including headers."""
    allocs: Optional[int]
    """Number of allocations; None if the allocator does not count them."""
    fails: Optional[int]
    """Number of failed allocations; None if the allocator does not count them."""
    own: Mapping[str, int]
    """Further counters of the allocator for this class, with the allocator's names."""


@dataclass(frozen=True, eq=False, repr=False)
class ArenaTotals(Instance):
    """An arena. All figures are bytes."""

    name: str
    """The name of the arena."""
    in_use: int
    """Bytes of blocks in use."""
    cached: int
    """Bytes of blocks in thread caches."""
    free: int
    """Bytes of free blocks."""
    spare: int
    """Bytes that are free but not divided into blocks."""
    mapped: int
    """Mapped bytes, including metadata."""
    own: Mapping[str, int]
    """Further counters of the allocator for this arena, with the allocator's names."""


@dataclass(frozen=True, eq=False, repr=False)
class ThreadCache(Instance):
    """The blocks of one size class in one thread cache."""

    thread: Optional[int]
    """The kernel's number (tid) of the thread; None if unknown."""
    address: int = field(metadata=ADDRESS)
    """The address of the thread cache."""
    name: str
    """The allocator's name for the size class."""
    size: int
    """Usable bytes of each block; 0 if the blocks differ in size."""
    blocks: int
    """Number of blocks."""
    bytes: int
    """Usable bytes of these blocks."""


@dataclass(frozen=True, eq=False, repr=False)
class SizeClassSite(Instance):
    """Blocks in use of one size class that were allocated by one call stack."""

    name: str
    """The allocator's name for the size class."""
    size: int
    """Usable bytes of each block; 0 if the blocks differ in size."""
    blocks: int
    """Number of these blocks that were recorded."""
    bytes: int
    """Usable bytes of the recorded blocks."""
    estimated: Optional[Amount]
    """Estimated number and bytes of all blocks; None unless the recorder samples."""
    site: Site
    """The call stack."""


@dataclass(frozen=True, eq=False, repr=False)
class Caches(Record):
    """The result of `caches`."""

    totals: Sequence[AllocatorTotals]
    """All allocators of the process."""
    caches: Sequence[SizeClass]
    """The size classes of these allocators."""
    arenas: Sequence[ArenaTotals]
    """The arenas of these allocators."""
    threads: Sequence[ThreadCache]
    """The thread caches of these allocators."""
    recorders: Optional[Sequence[Recorder]] = field(default=None, metadata=OPTIONAL)
    """The recorders of call stacks, if sites were requested."""
    sites: Optional[Sequence[SizeClassSite]] = field(default=None, metadata=OPTIONAL)
    """The call stacks of each size class, if sites were requested."""
    recording_hints: Sequence[str] = field(default=(), metadata=OPTIONAL)
    """How to start the program so that allocation stacks are recorded, one text for each allocator.
    Only if sites were requested, and no stacks were recorded."""
