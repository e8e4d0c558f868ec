"""Layouts of AddressSanitizer's allocator on x86-64 Linux, and on AArch64 since it is the same one.

Sources, in compiler-rt/lib of LLVM 12 to 19, and in libsanitizer of GCC 11 to 16:
asan/asan_allocator.cpp (ChunkHeader, LargeChunkHeader),
sanitizer_common/sanitizer_allocator_primary64.h (SizeClassAllocator64, RegionInfo),
sanitizer_allocator_secondary.h (LargeMmapAllocator), sanitizer_allocator_size_class_map.h."""

from __future__ import annotations

from typing import NamedTuple

PAGE = 4096  # least

# The primary allocator: a part of the address space for each size class.
SPACE = 1 << 42  # bytes: kAllocatorSize
SLACK = 1 << 20  # bytes of the range that has it, at most, for what follows it and for alignment
SPACE_BEGIN = 4
"""Word of SizeClassAllocator64 (NonConstSpaceBeg) with the address of the space where it is not
fixed, as from LLVM 21 and GCC 16 on; otherwise 0, and it is where its range begins. The range comes
first: {base_, size_, name_, os_handle_}."""
CLASSES = 64  # kNumClassesRounded
CHUNK_CLASSES = range(2, 53)  # those of chunks: the first has no space for a block
REGION = 1 << 36  # bytes of addresses of a class (kRegionSize)
FREE_ARRAY = REGION - REGION // 8
"""Offset in a region of its free array, the 32-bit offsets of free chunks."""
UNIT = 1 << 16  # bytes: what is mapped for chunks or the free array is a multiple

# A chunk, and the header in it.
HEADER = 16
"""Bytes of a ChunkHeader, right before the block. Word 0: the state in byte 0, the requested size's
low 32 bits in the upper half, its next 16 bits in bytes 2 and 3. Word 1: the number of the stack
that allocated it in the lower half, of the thread in the upper. The block of a quarantined chunk,
if it has 8 bytes, begins with a word like this one, about its free."""
UNUSED, ALLOCATED, QUARANTINED = 0, 2, 3  # CHUNK_INVALID, CHUNK_ALLOCATED, CHUNK_QUARANTINE
MAGIC = 0xCC6E96B9CC6E96B9
"""kAllocBegMagic, the first word of a chunk whose header is farther behind: at the second word."""

# The secondary allocator: a mapping for each large chunk, which begins with a page for a header.
LARGE_HEADER = 4  # words: map_beg, map_size, size, chunk_idx
MOST_LARGE = 1 << 20  # kMaxNumChunks


def class_size(number: int) -> int:
    """Bytes of a chunk of a class: DefaultSizeClassMap, which is SizeClassMap<3, 4, 8, 17>.
    Multiples of 16 up to 256; then four steps to each power of two."""
    if number <= 16:
        return 16 * number
    power, step = divmod(number - 16, 4)
    return (256 << power) + (64 << power) * step


class RegionInfo(NamedTuple):
    """A RegionInfo, of which an array follows the space: its bytes, and the words that are
    mapped_free_array, allocated_user and mapped_user, which come behind a mutex."""

    size: int
    free_array: int
    allocated: int
    mapped: int


REGION_INFOS = (RegionInfo(128, 3, 4, 6), RegionInfo(128, 2, 3, 5), RegionInfo(192, 12, 13, 15))
"""By the mutex, the newest first: Mutex (LLVM 14, GCC 12), StaticSpinMutex, BlockingMutex (LLVM 12,
GCC 11)."""


# Words of LargeMmapAllocator, from page_size_ on: page_size_, chunks_, the range reserved for the
# array {base_, size_, name_, os_handle_}, n_reserved_, n_chunks_. It follows SizeClassAllocator64,
# which begins with the range of the space in the same form, by a few words.
LARGE_CHUNKS, LARGE_BASE, LARGE_COUNT, LARGE_WORDS = 1, 2, 7, 8
PRIMARY_WORDS = 16  # of SizeClassAllocator64, at most; 8 in LLVM 19


def state_of(first: int) -> int:
    """The state in a header's first word."""
    return first & 0xFF


def used_size(first: int) -> int:
    """The requested size in a header's first word."""
    return first >> 32 | (first >> 16 & 0xFFFF) << 32
