"""Layouts of scudo's standalone allocator on 64-bit Linux in its default configuration.

Sources, in compiler-rt/lib/scudo/standalone of LLVM 14 to 23: combined.h (Allocator), chunk.h
(UnpackedHeader), primary64.h (SizeClassAllocator64, RegionInfo), size_class_map.h
(DefaultSizeClassConfig), secondary.h (LargeBlock::Header, MapAllocator, CachedBlock), local_cache.h
and size_class_allocator.h (PerClass), stats.h (LocalStats, GlobalStats), quarantine.h. The layout
of the guarded pool is that of gwp_asan/common.h and guarded_pool_allocator.h."""

from __future__ import annotations

from typing import NamedTuple, Optional

MARKER = 0x44554353
"""BlockMarker: the low half of a block's first word if the chunk's header is further inside. The
upper half is the distance in bytes."""
HEADER = 16  # bytes from the packed header to the chunk; the header itself has 8
AVAILABLE, ALLOCATED, QUARANTINED = 0, 1, 2  # Chunk::State

CLASSES = 45  # NumClasses of DefaultSizeClassMap; class 0 has the allocator's own batches
REGION_BITS = 32  # RegionSizeLog: each class has 4 GiB of addresses
REGION = 1 << REGION_BITS
MOST_OFFSET = 16  # pages; each region begins 1 to 16 pages after the start of its addresses
MOST_SIZE = 1 << 17  # bytes of the largest class


def class_size(number: int) -> int:
    """Return the bytes of a block of class 1 to 44 (DefaultSizeClassConfig): multiples of 32 up to
    256, then four steps to each power of two."""
    if number <= 8:
        return 32 * number
    power, step = divmod(number - 9, 4)
    return (256 << power) + (64 << power) * (step + 1)


class Header(NamedTuple):
    """A chunk's header (UnpackedHeader). `size` has the unused bytes for large blocks. `offset` is
    in units of 16 bytes."""

    number: int
    state: int
    size: int
    offset: int
    checksum: int


def unpack(word: int) -> Header:
    """Return the members of a packed header."""
    return Header(word & 0xFF, word >> 8 & 3, word >> 12 & 0xFFFFF, word >> 32 & 0xFFFF, word >> 48)


def without_checksum(word: int) -> int:
    """Return a packed header whose checksum is 0."""
    return word & 0xFFFFFFFFFFFF


class RegionInfo(NamedTuple):
    """A layout of RegionInfo, as offsets in bytes from its member RegionBeg, and the distance from
    the start of Allocator to the first RegionBeg. `reserved` is the offset of the start of the
    class's addresses, or None if that is derived from `primary`, the offset of PrimaryBase from the
    first RegionBeg. `large_words` is the number of words of LargeBlock::Header, which precedes a
    large block and begins with {prev, next, start of the mapping, its size}."""

    version: str
    allocator: int
    popped: int
    pushed: int
    mapped: int
    allocated: int
    reserved: Optional[int] = None
    primary: int = 0
    large_words: int = 6


STRIDE = 0xC0  # bytes of a RegionInfo
LAYOUTS = (
    RegionInfo("18-23", allocator=0xD0, popped=0x28, pushed=0x30, mapped=0x48, allocated=0x50, reserved=0x38),
    RegionInfo("17", allocator=0xC8, popped=0x28, pushed=0x30, mapped=0x58, allocated=0x60, reserved=0x38, large_words=8),
    RegionInfo("14-16", allocator=0xE0, popped=0x8, pushed=0x10, mapped=0x20, allocated=0x28, primary=-0x58),
)
"""Newest first. The oldest one has no MemMap, and the classes' addresses are in order."""

COOKIE = 0  # offset of a 32-bit number in Allocator
STATS = 0x38  # offset of the list of LocalStats {count, first, last} in Allocator
PRIMARY = 0x80  # offset of SizeClassAllocator64 in Allocator
RECORDS = 0xC0  # offset of the array of RegionInfo in Allocator

# LocalStats {next, prev, three counters} follows the PerClass array of a thread cache. After it:
# the address of SizeClassAllocator64, then the thread's quarantine.
STATS_ALLOCATOR = 0x28
STATS_QUARANTINE = 0x30
PER_CLASS = (256, 240)  # bytes of a PerClass, newest first; {count 2 or 4, max, size 8, pointers}
PER_CLASS_SIZE = 8  # offset of the class's block size
PER_CLASS_POINTERS = 16
"""The offset of the addresses of free blocks, or their distances from the start of the region."""

BATCH_WORDS = 3  # words of QuarantineBatch that are read: next, size, count
BATCH_BYTES = 8176  # bytes of QuarantineBatch

SECONDARY_BYTES = 0x1C00
"""The most bytes between the last RegionInfo and the end of MapAllocator: its cache has 32 entries,
of 48 or 56 bytes."""

LIST_BYTES = 0x38  # bytes of the list of large blocks and its counters in MapAllocator
QUARANTINE_BYTES = 0xC8
"""The most bytes from the end of MapAllocator to the end of the list of the quarantine."""

GUARDED_MAGICS = (0x14E415341, 0x24E415341)  # "ASAN" and version: AllocatorState of GWP-ASan
GUARDED_STATE_WORDS = 5  # magic, slots, start and end of the pool, page size
GUARDED_METADATA = 0x90  # offset of the address of AllocationMetadata
GUARDED_BYTES = 0xA0  # bytes of AllocatorState, and of the addresses that follow it
RING_BUFFER = 0x101000
"""The bytes of the mapping in which LLVM 17 and 18 record stacks on Android. Elsewhere nothing is
written to it."""
SLOT_RECORD = 568  # bytes of AllocationMetadata {address, size, trace, trace, freed}
SLOT_FREED = 560  # offset of IsDeallocated, a byte
MOST_SLOTS = 1 << 16
