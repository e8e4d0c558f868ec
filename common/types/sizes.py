"""Size classes: which requests result in blocks of a usable size."""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property

from findleaks.allocators.directory import Directory

LEAST_STEP = 16  # Bytes between size classes of small blocks, at most, in most allocators.
PART = 4  # Size classes of large blocks differ by at most this part of their size.
PAGE = 4096
MOST_UNREQUESTED = 1 << 30  # The engine's answers have 32 bits.


class SizeClasses:
    """The requests that may result in a block of some usable size.

    glibc rounds requests up to a multiple of its alignment less a word, and to pages from the mmap
    threshold on (malloc.c, request2size). The size classes of other allocators are those of their
    blocks."""

    def __init__(self, directory: Directory, word: int) -> None:
        self._directory, self._word = directory, word

    @cached_property
    def _sizes(self) -> list[int]:
        return sorted({row.size for row in self._directory.blocks.by_size()})

    @cached_property
    def _is_glibc(self) -> bool:
        """Whether all heaps are glibc's."""
        return all(one.name == "glibc" for one in self._directory.allocators)

    @cached_property
    def _step(self) -> int:
        """Bytes between the sizes of glibc's chunks: 16 in 64-bit programs and in those for i386
        since glibc 2.26, else 8 (MALLOC_ALIGNMENT)."""
        return max((one.granule for one in self._directory.allocators), default=2 * self._word)

    def least(self, size: int) -> int:
        """Return the smallest request for which the allocator returns a block of `size` bytes."""
        if self._is_glibc:
            # A mmapped chunk begins where its block is aligned: on i386, 8 bytes into the page.
            header = 2 * self._word + -2 * self._word % self._step
            if (size + header) % PAGE == 0 and size > 1 << 16:
                return size - PAGE + 1
            return 1 if size <= 3 * self._word else size - self._step + 1
        at = bisect_left(self._sizes, size)
        before = self._sizes[at - 1] if at else 0
        return max(before + 1, size - max(LEAST_STEP, size // PART) + 1)

    def least_request(self, size: int) -> int:
        """Return the smallest request, like `least`, if the block may also be larger than its size
        class: glibc does not split a chunk if the rest would be smaller than a chunk, which has
        four words (malloc.c, MINSIZE). If chunk sizes are multiples of this, the rest is never
        smaller."""
        unsplit = max(4 * self._word - self._step, 0)
        return max(self.least(size) - unsplit, 1) if self._is_glibc else self.least(size)

    def most_unrequested(self, size: int) -> int:
        """Return how many bytes of a block of `size` bytes the program may not have requested, up
        to MOST_UNREQUESTED."""
        return min(size - self.least_request(size), MOST_UNREQUESTED)

    def fits(self, wanted: int, size: int) -> bool:
        """Whether a request for `wanted` bytes results in a block of `size` bytes."""
        return 0 < wanted <= size and wanted >= self.least(size)
