"""Long lists of address ranges. They may have millions of ranges, in flat arrays of 16 bytes a
range, in the layout of the kernel."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import accumulate, chain

from findleaks.target.base import Range


class Runs:
    """Sorted, disjoint ranges that do not touch. `words` has the start and the end of each range in
    turn."""

    def __init__(self, words: array[int]) -> None:
        self.words = words

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> Runs:
        """Build a list from ascending, disjoint ranges. Ranges that touch are joined, empty ones
        dropped. Raises ValueError if the ranges do not ascend."""
        words: array[int] = array("Q")
        for start, end in ranges:
            if end <= start:
                continue
            if words and start <= words[-1]:
                if start < words[-1]:
                    raise ValueError(f"{start:#x} lies below {words[-1]:#x}, where the range before ends")
                words[-1] = end
            else:
                words.append(start)
                words.append(end)
        return cls(words)

    def __len__(self) -> int:
        return len(self.words) // 2

    def __iter__(self) -> Iterator[Range]:
        words = self.words
        return (Range(words[at], words[at + 1]) for at in range(0, len(words), 2))

    def __contains__(self, address: int) -> bool:
        return bool(bisect_right(self.words, address) & 1)

    @cached_property
    def _sums(self) -> array[int]:
        """Total bytes of the first 0, 1, 2 … ranges."""
        lengths = (end - start for start, end in zip(self.words[::2], self.words[1::2]))
        return array("Q", accumulate(chain((0,), lengths)))

    def _below(self, address: int) -> int:
        at = bisect_right(self.words, address)
        return self._sums[at // 2] + (address - self.words[at - 1] if at & 1 else 0)

    @property
    def total(self) -> int:
        """Total bytes of all ranges."""
        return self._sums[-1]

    def bytes(self, start: int, end: int) -> int:
        """Return how many bytes of [start, end) are in a range. Takes two binary searches."""
        return self._below(end) - self._below(start) if start < end else 0

    def within(self, start: int, end: int) -> Iterator[Range]:
        """Yield the parts of the ranges that are in [start, end), ascending."""
        words = self.words
        at = bisect_right(words, start)
        at -= at & 1
        while at < len(words) and words[at] < end:
            low, high = max(words[at], start), min(words[at + 1], end)
            if low < high:
                yield Range(low, high)
            at += 2

    def cut(self, start: int, end: int) -> array[int]:
        """Return the result of `within` in the layout of `words`."""
        low, high = bisect_right(self.words, start), bisect_left(self.words, end)
        made = self.words[low - (low & 1) : high + (high & 1)] if start < end else array("Q")
        if made:
            made[0], made[-1] = max(made[0], start), min(made[-1], end)
        return made
