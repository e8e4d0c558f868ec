"""Layouts of AddressSanitizer's allocator on x86-64 and AArch64 Linux, which have the same layout.

Sources, in compiler-rt/lib of LLVM 12 to 19, and in libsanitizer of GCC 11 to 16:
asan/asan_allocator.cpp (ChunkHeader, LargeChunkHeader),
sanitizer_common/sanitizer_allocator_primary64.h (SizeClassAllocator64, RegionInfo),
sanitizer_allocator_secondary.h (LargeMmapAllocator), sanitizer_allocator_size_class_map.h."""

from __future__ import annotations

from typing import NamedTuple

PAGE = 4096  # the least page size

# The primary allocator has a part of its address range for each size class.
SPACE = 1 << 42  # bytes: kAllocatorSize
SLACK = 1 << 20  # most bytes that follow the space in the range, alignment included
SPACE_BEGIN = 4
"""The index of the word of SizeClassAllocator64 with the address of the space (NonConstSpaceBeg),
which is set if the address is not fixed (since LLVM 21 and GCC 16). Otherwise the word is 0, and
the space is at the start of its range. The range precedes this word: {base_, size_, name_,
os_handle_}."""
CLASSES = 64  # kNumClassesRounded
CHUNK_CLASSES = range(2, 53)  # classes of chunks; the first class has no space for a block
REGION = 1 << 36  # bytes of addresses of a class (kRegionSize)
FREE_ARRAY = REGION - REGION // 8
"""The offset of the free array in a region, which has the 32-bit offsets of free chunks."""
UNIT = 1 << 16  # bytes; memory for chunks and for the free array is mapped in multiples of this

# A chunk and its header.
HEADER = 16
"""Bytes of a ChunkHeader, which is right before the block.

Word 0 has the state in byte 0, the low 32 bits of the requested size in its upper half, and the
next 16 bits of the size in bytes 2 and 3. Word 1 has the number of the stack that allocated the
block in its lower half, and the thread in its upper half. If the block of a quarantined chunk has
at least 8 bytes, it begins with a word of the same form: the stack and the thread that freed it."""
UNUSED, ALLOCATED, QUARANTINED = 0, 2, 3  # CHUNK_INVALID, CHUNK_ALLOCATED, CHUNK_QUARANTINE
MAGIC = 0xCC6E96B9CC6E96B9
"""kAllocBegMagic. If it is the first word of a chunk, the header is further inside the chunk, at
the address in the second word."""

# The secondary allocator maps each large chunk separately. The first page is for a header.
LARGE_HEADER = 4  # words: map_beg, map_size, size, chunk_idx
MOST_LARGE = 1 << 20  # kMaxNumChunks


def class_size(number: int) -> int:
    """Return the size of a chunk of a class (DefaultSizeClassMap, which is SizeClassMap<3, 4, 8,
    17>): multiples of 16 up to 256, then four steps to each power of two."""
    if number <= 16:
        return 16 * number
    power, step = divmod(number - 16, 4)
    return (256 << power) + (64 << power) * step


class RegionInfo(NamedTuple):
    """The layout of a RegionInfo. An array of RegionInfos follows the address range of the regions.
    `size` is in bytes. The others are indices of the words mapped_free_array, allocated_user and
    mapped_user, which follow a mutex."""

    size: int
    free_array: int
    allocated: int
    mapped: int


REGION_INFOS = (
    RegionInfo(size=128, free_array=3, allocated=4, mapped=6),
    RegionInfo(size=128, free_array=2, allocated=3, mapped=5),
    RegionInfo(size=192, free_array=12, allocated=13, mapped=15),
)
"""By the mutex, newest first: Mutex (LLVM 14, GCC 12), StaticSpinMutex, BlockingMutex (LLVM 12, GCC
11)."""


# The words of LargeMmapAllocator, from page_size_ on: page_size_, chunks_, the range reserved for
# the array {base_, size_, name_, os_handle_}, n_reserved_, n_chunks_. It follows
# SizeClassAllocator64, which begins with the range of the space in the same form, with a few words
# in between.
LARGE_CHUNKS, LARGE_BASE, LARGE_COUNT, LARGE_WORDS = 1, 2, 7, 8
PRIMARY_WORDS = 16  # the largest number of words of SizeClassAllocator64; 8 in LLVM 19


def state_of(first: int) -> int:
    """Return the state in a header's first word."""
    return first & 0xFF


def used_size(first: int) -> int:
    """Return the requested size in a header's first word."""
    return first >> 32 | (first >> 16 & 0xFFFF) << 32
