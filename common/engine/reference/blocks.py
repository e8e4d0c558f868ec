"""The block directory in pure Python: sorted arrays and bisection."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import compress, islice
from typing import Optional

from findleaks.engine import shared
from findleaks.engine.columns import BlockColumns
from findleaks.engine.contract import Blocks
from findleaks.engine.pages import PageLists, PageRead
from findleaks.engine.pointer_runs import Bounds
from findleaks.engine.reference import pages, sample
from findleaks.engine.reference.pointer_runs import PurePointerRuns
from findleaks.engine.sampling import NO_SAMPLE, Sample
from findleaks.engine.terms import RUN, Size, State, Totals
from findleaks.target.arch import Arch
from findleaks.target.base import Piece, Range

PAGE_BITS = 12
COUNT_BITS = 12  # a page has at most 2^10 starts, because granules have at least 4 bytes


class PureBlocks:
    """See contract.Blocks. Takes 17 bytes a block and about 100 bytes a page of heap."""

    def __init__(self, arch: Arch, granule: int) -> None:
        shared.check_granule(granule)
        self.arch = arch
        self.granule = granule
        self.starts: array[int] = array("Q")
        self.sizes: array[int] = array("Q")
        self.states = bytearray()
        self.pages: dict[int, int] = {}  # address >> PAGE_BITS: index << COUNT_BITS | starts
        self.pending = False  # the last block's state depends on the next chunk's PREV_INUSE bit
        self._sealed = False

    def append(self, starts: Sequence[int], sizes: Sequence[int], states: Sequence[int]) -> None:
        self.check_open()
        wrong = shared.check_ascending(starts, sizes, states, self.granule, self.floor(), self.arch.mask)
        if wrong:
            raise ValueError(wrong)
        if len(self.starts) + len(starts) > shared.MAX_BLOCKS:
            raise shared.TooManyBlocks("blocks")
        self.pending = False
        self.starts.extend(starts)
        self.sizes.extend(sizes)
        self.states.extend(states)

    def append_runs(self, runs: array[int], bits: bytes = b"") -> None:
        self.check_open()
        wrong = shared.check_runs(runs, len(bits) * 8, self.granule, self.floor(), self.arch.mask)
        if wrong:
            raise ValueError(wrong)
        if len(self.starts) + sum(runs[3::RUN]) > shared.MAX_BLOCKS:
            raise shared.TooManyBlocks("blocks")
        self.pending = False
        for at in range(0, len(runs), RUN):
            start, stride, size, count, bit, states = runs[at : at + RUN]
            self.starts.extend(range(start, start + stride * count, stride) if stride else [start] * count)
            self.sizes.extend([size] * count)
            clear, other = states & 255, states >> 8
            if clear == other:
                self.states += bytes((clear,)) * count
            else:
                self.states += bytes(other if bits[n >> 3] >> (n & 7) & 1 else clear for n in range(bit, bit + count))

    def append_blocks(self, other: Blocks, first: int, last: int) -> None:
        if not isinstance(other, PureBlocks):
            raise TypeError("blocks of another engine")
        self.append(other.starts[first:last], other.sizes[first:last], other.states[first:last])

    def append_nested(self, other: Blocks, first: int, last: int, slabs: array[int], runs: array[int]) -> array[int]:
        from findleaks.engine.reference.nested_slabs import append_nested

        if not isinstance(other, PureBlocks):
            raise TypeError("blocks of another engine")
        return append_nested(self, other, first, min(last, len(other)), slabs, runs)

    def seal(self) -> None:
        if self._sealed:
            return
        self._sealed = True
        starts_in = self.pages
        last, first = -1, 0
        for index, start in enumerate(self.starts):
            if start >> PAGE_BITS != last:
                if last >= 0:
                    starts_in[last] = first << COUNT_BITS | (index - first)
                last, first = start >> PAGE_BITS, index
        if last >= 0:
            starts_in[last] = first << COUNT_BITS | (len(self.starts) - first)

    def __len__(self) -> int:
        return len(self.starts)

    def find(self, address: int) -> int:
        self._ready()
        index = bisect_right(self.starts, address) - 1
        if index >= 0 and (address - self.starts[index] < self.sizes[index] or address == self.starts[index]):
            return index
        return -1

    def lookup(self, address: int) -> Optional[tuple[int, int, int, int]]:
        index = self.find(address)
        return (index, self.starts[index], self.sizes[index], self.states[index]) if index >= 0 else None

    def find_all(self, addresses: Sequence[int]) -> tuple[array[int], array[int]]:
        found = [self.find(address) for address in addresses]
        indices = array("I", [index if index >= 0 else 0xFFFFFFFF for index in found])
        return indices, array("Q", [self.sizes[index] if index >= 0 else 0 for index in found])

    def pointer_runs(self, bounds: Bounds) -> PurePointerRuns:
        self._ready()
        return PurePointerRuns(self, bounds)

    def claim(self, labels: array[int], indices: array[int], label: int) -> bool:
        if any(index >= len(labels) or labels[index] != 0xFFFFFFFF for index in indices):
            return False
        for index in indices:
            labels[index] = label
        return True

    def at_or_after(self, address: int) -> int:
        self._ready()
        return bisect_left(self.starts, address)

    def address(self, index: int) -> int:
        return self.starts[self._index(index)]

    def size(self, index: int) -> int:
        return self.sizes[self._index(index)]

    def state(self, index: int) -> State:
        return State(self.states[self._index(index)])

    def columns(self, first: int = 0, last: Optional[int] = None) -> BlockColumns:
        self._ready()
        first, last = shared.clip(first, last, len(self))
        made = self.starts[first:last], self.sizes[first:last], self.states[first:last]
        return BlockColumns(*(memoryview(one).toreadonly() for one in made))

    def indices_with(self, states: int, marks: bytearray, wanted: int) -> array[int]:
        self._ready()
        pairs = enumerate(zip(self.states, marks))
        return array("I", [index for index, (state, mark) in pairs if states >> state & 1 and wanted >> mark & 1])

    def columns_of(self, indices: array[int]) -> BlockColumns:
        self._ready()
        count = len(self)
        made = (
            array(code, [column[index] if index < count else 0 for index in indices])
            for code, column in (("Q", self.starts), ("Q", self.sizes), ("B", self.states))
        )
        return BlockColumns(*(memoryview(one).toreadonly() for one in made))

    def set_state(self, addresses: Iterable[int], state: State) -> list[int]:
        self._ready()
        unknown = []
        starts, states = self.starts, self.states
        for address in addresses:
            index = bisect_left(starts, address)
            if index < len(starts) and starts[index] == address:
                states[index] = state
            else:
                unknown.append(address)
        return unknown

    def resize(self, index: int, size: int) -> None:
        self._ready()
        start = self.starts[self._index(index)]
        limit = self.starts[index + 1] if index + 1 < len(self.starts) else self.arch.mask
        if not 0 <= size <= limit - start:
            raise ValueError(f"block {start:#x} cannot have {size} bytes")
        self.sizes[index] = size

    def totals(self, state: State, start: int = 0, end: int | None = None) -> Totals:
        self._ready()
        low = bisect_left(self.starts, start)
        high = len(self.starts) if end is None else bisect_left(self.starts, end)
        if high <= low:
            return Totals(0, 0)
        states, wanted = self.states[low:high], int(state)
        return Totals(states.count(wanted), sum(compress(self.sizes[low:high], map(wanted.__eq__, states))))

    def totals_in(self, ranges: array[int]) -> list[Totals]:
        self._ready()
        parts = list(zip(ranges[::2], ranges[1::2]))
        return [Totals.sum_of(self.totals(state, start, end) for start, end in parts) for state in State]

    def by_size(self, ranges: Optional[array[int]] = None) -> list[Size]:
        self._ready()
        found = [0, len(self)] if ranges is None else [bisect_left(self.starts, one) for one in ranges]
        counts: Counter[tuple[int, int]] = Counter()
        for low, high in zip(found[::2], found[1::2]):
            counts.update(zip(self.sizes[low:high], self.states[low:high]))
        return [Size(size, State(state), blocks) for (size, state), blocks in sorted(counts.items())]

    def of_sizes(self, least: int, greatest: int, most: int) -> array[int]:
        self._ready()
        wanted = (i for i, size in enumerate(self.sizes) if least <= size <= greatest and self.states[i] == State.IN_USE)
        return array("Q", islice(wanted, most))

    def sample(self, most: int, first: int = 0, last: Optional[int] = None, before: Sample = NO_SAMPLE) -> Sample:
        self._ready()
        return sample.sample(self, most, max(first, 0), len(self.starts) if last is None else last, before)

    def bytes_in(self, ranges: array[int]) -> list[int]:
        self._ready()
        sums = [0] * len(State)
        starts, sizes, states = self.starts, self.sizes, self.states
        for start, end in zip(ranges[::2], ranges[1::2]):
            low, high = bisect_left(starts, start), bisect_left(starts, end)
            if high > low:
                for state in State:
                    sums[state] += self.totals(state, start, end).bytes
                sums[states[high - 1]] -= max(starts[high - 1] + sizes[high - 1] - end, 0)
            if low and start < end:
                sums[states[low - 1]] += max(min(starts[low - 1] + sizes[low - 1], end) - start, 0)
        return sums

    def gaps(self, start: int, end: int, least: int) -> list[Range]:
        self._ready()
        starts, sizes = self.starts, self.sizes
        first, last = bisect_left(starts, start), bisect_left(starts, end)
        at = max(start, starts[first - 1] + sizes[first - 1]) if first else start
        found = []
        for index in range(first, last):
            if not sizes[index]:
                continue
            if starts[index] - at >= max(least, 1):
                found.append(Range(at, starts[index]))
            at = starts[index] + sizes[index]
        if end - at >= max(least, 1):
            found.append(Range(at, end))
        return found

    def by_page(self, ranges: array[int], page: int, lists: PageLists) -> PageRead:
        self._ready()
        return pages.by_page(self, ranges, page, lists)

    def free_runs(self, where: Range, least: int) -> array[int]:
        self._ready()
        return pages.free_runs(self, where, least)

    def page_words(self, piece: Piece, types: Sequence[Range], where: Range, page: int, found: array[int], weights: array[int]) -> None:
        self._ready()
        pages.page_words(self, piece, types, where, page, found, weights)

    def floor(self) -> int:
        """Lowest address at which the next block may start."""
        return self.starts[-1] + max(self.sizes[-1], 1) if self.starts else 0

    def _index(self, index: int) -> int:
        if not 0 <= index < len(self.starts):
            raise IndexError(f"no block {index}")
        return index

    def check_open(self) -> None:
        if self._sealed:
            raise RuntimeError("the directory of blocks is sealed")

    def _ready(self) -> None:
        if not self._sealed:
            raise RuntimeError("the directory of blocks is not sealed yet")
