"""oldmalloc as an Allocator. It has chunks with sizes at both ends, 64 bins, and mapped chunks.

layout.py has the sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import add
from typing import Optional

from findleaks.allocators.base import Allocator, Arena, Cache, Heap, Problem, count_by_size
from findleaks.allocators.images import Image, find_images
from findleaks.allocators.mappings import MMAPPED, MappedChunk, group_adjacent, make_mapped_heap
from findleaks.allocators.memory import Memory
from findleaks.allocators.musl import old_verify
from findleaks.allocators.musl.layout import Mal, Old, bin_of, number64
from findleaks.allocators.musl.old_heaps import Segment, find_heaps
from findleaks.engine.contract import Blocks, Engine
from findleaks.target.base import Range, Target
from findleaks.target.ranges import nonzero_pieces

_FEW = 512 << 10  # bytes: in smaller files without an empty bin, bins are found by their chunks
_MOST_BINS = 4096  # maximum number of words in one file that are examined as heads of bins


def find(target: Target, engine: Engine, taken: Sequence[Range]) -> list[Allocator]:
    """Find the oldmalloc of a process (see base.Finder)."""
    memory = Memory(target)
    layout = Old(memory.size)
    for image in find_images(target):
        address = _mal(memory, engine, image, layout)
        if address:
            segments, mapped = find_heaps(memory, engine, layout, taken)
            if segments:
                # A chunk does not show its instance. But two instances in one process are very
                # unlikely.
                return [OldMalloc(target, engine, Mal(image.name, address, layout), segments, mapped)]
    return []


def _mal(memory: Memory, engine: Engine, image: Image, layout: Old) -> int:
    """Return the address of `mal` in a file's data, or 0.

    It is found by an empty bin, whose head and tail point to it, or by a bin whose first chunk
    points back to it."""
    for heads in (_empty(memory, engine, image, layout), _list_filled_bins(memory, image, layout)):
        votes = Counter(head - 16 - number * layout.bin for head in islice(heads, _MOST_BINS) for number in range(layout.bins))
        best = _best(memory, votes, layout)
        if best:
            return best
    return 0


def _best(memory: Memory, votes: Counter[int], layout: Old) -> int:
    """Return the address at which most bins look like those of `mal`, or 0."""
    likeliest = sorted(votes, key=lambda base: (-votes[base], base))[:256]
    agreeing = {base: _agreeing(memory, base, layout) for base in likeliest}
    best = max(agreeing, key=agreeing.__getitem__, default=0)
    return best if agreeing.get(best) else 0


def _empty(memory: Memory, engine: Engine, image: Image, layout: Old) -> Iterator[int]:
    """Yield possible heads of empty bins: the head and the tail point to the bin."""
    pieces = ((piece, data) for data in image.data for piece in nonzero_pieces(memory.target, *data))
    for head in islice((head for piece, data in pieces for head in engine.search(piece, *data)), 16 * _MOST_BINS):
        if memory.words(head, 2) == (head - layout.overhead, head - layout.overhead):
            yield head


def _list_filled_bins(memory: Memory, image: Image, layout: Old) -> Iterator[int]:
    """Yield possible heads of bins with chunks: the first chunk of the bin has the bin as
    predecessor."""
    least, align, header = 4096, layout.align - 1, layout.overhead
    seen = 0
    for start, end in image.data if sum(end - start for start, end in image.data) <= _FEW else ():
        for base, words in memory.scan(start, end):
            for index, (head, tail) in enumerate(zip(words, words[1:])):
                if head > least < tail and not ((head + header) & align or (tail + header) & align) and seen < _MOST_BINS:
                    seen += 1
                    chunk = memory.words(head, 4)
                    at = base + index * memory.size
                    if chunk is not None and chunk[3] == at - header:
                        yield at


def _agreeing(memory: Memory, base: int, layout: Old) -> int:
    """Score a `mal` at this address: one point for each empty bin that was used before, ten for
    each bin with chunks. 0 if `mal` cannot be there."""
    words = memory.words(base + 8, layout.bins * layout.bin // memory.size)
    if words is None or memory.word(base) is None:
        return 0
    bits, mal = number64(memory, base), Mal("", base, layout)
    step = layout.bin // memory.size
    found = wrong = 0
    ends = range(mal.bin(0), mal.bin(layout.bins), layout.bin)
    for number, (end, head, tail) in enumerate(zip(ends, words[step - 2 :: step], words[step - 1 :: step])):
        if head in (0, end):
            wrong += bits >> number & 1 or head != tail
            found += head != 0
        else:
            chunk = memory.words(head, 4)
            good = chunk is not None and chunk[3] == end and bin_of(chunk[1] & -2, layout.align) == number
            wrong += not good
            found += 10 * good
        if wrong > 2:
            return 0  # two may be wrong: a thread may be changing one, or memory is corrupt
    return found


class OldMalloc(Allocator):
    """One oldmalloc; see Allocator."""

    name = "musl"
    remainder_words = 2
    retention_note = "musl returns wholly free memory by itself, and has no setting to return more"
    version = "oldmalloc"

    def __init__(self, target: Target, engine: Engine, mal: Mal, segments: list[Segment], mapped: list[MappedChunk]) -> None:
        self.target = target
        self.engine = engine
        self.memory = Memory(target)
        self.mal = mal
        self.where = mal.where
        self.granule = mal.layout.overhead
        self.segments = segments
        self.mapped = mapped
        self.problems: list[Problem] = [problem for segment in segments for problem in segment.problems]
        self.checked: dict[str, int] = {}
        self._heaps: list[Heap] = []

    def heaps(self) -> list[Heap]:
        """Return the heaps; adjacent mappings form one heap (see Allocator)."""
        if not self._heaps:
            heaps = [Heap(one.start, one.end, one.label, one.walk) for one in self.segments]
            heaps += [make_mapped_heap(run, self.mal.layout.overhead) for run in group_adjacent(self.mapped)]
            self._heaps = sorted(heaps, key=lambda heap: heap.start)
        return self._heaps

    def metadata(self) -> list[Range]:
        """Return binmap, the bins and the lock that follows them (see Allocator)."""
        return [Range(self.mal.address, self.mal.address + self.mal.layout.size)]

    def summary(self) -> dict[str, object]:
        return {"heaps": len(self.segments), "mmapped": len(self.mapped)}

    def locate(self, address: int) -> str:
        layout = self.mal.layout
        if self.mal.address <= address < self.mal.address + layout.size:
            number = (address - self.mal.address - 8) // layout.bin
            return f"bin {number} of mal" if 0 <= number < layout.bins else "mal"
        for segment in self.segments:
            if segment.start <= address < segment.end:
                start = segment.at(address + layout.overhead - 1)
                return f"header of the chunk of {start:#x}" if address < start else "the heap"
        return ""

    def caches(self, blocks: Blocks) -> list[Cache]:
        """Return a row for each bin (see Allocator). A row includes blocks in use whose size
        belongs to the bin."""
        align, overhead = self.mal.layout.align, self.mal.layout.overhead
        rows: dict[tuple[str, int], list[int]] = {}
        for one in count_by_size(self.name, self.heaps(), blocks):
            number = -1 if one.arena == MMAPPED else bin_of(one.size + overhead, align)
            row = rows.setdefault((one.arena, number), [0, 0, 0, 0])
            row[:] = map(add, row, (one.in_use, one.free, one.in_use_bytes, one.free_bytes))
        found = []
        for (arena, number), (used, free, used_bytes, free_bytes) in sorted(rows.items(), key=lambda row: (row[0][0], row[0][1] % 65)):
            if number < 0:
                memory = sum(one.end - one.start for one in self.mapped)
                found.append(Cache(arena, "large", 0, used, 0, 0, used_bytes, 0, 0, memory))
                continue
            low, high = (units * align - overhead for units in _BANDS[number])
            size = low if low == high else 0
            name = str(low) if size else f"{low}-{high if high > 0 else ''}"
            taken = used_bytes + free_bytes + (used + free) * overhead
            found.append(Cache(arena, name, size, used, 0, free, used_bytes, 0, free_bytes, taken, own={"bin": number}))
        return found

    def arenas(self, blocks: Blocks) -> list[Arena]:
        """Return the heap (break and mappings), memory that ld.so donated, and blocks with separate
        mappings (see Allocator)."""
        rows: dict[str, list[int]] = {}
        for cache in self.caches(blocks):
            row = rows.setdefault(cache.arena, [0, 0])
            row[:] = map(add, row, (cache.in_use_bytes, cache.free_bytes))
        mapped: dict[str, int] = {}
        for heap in self.heaps():
            mapped[heap.arena] = mapped.get(heap.arena, 0) + heap.end - heap.start
        return [Arena(name, used, 0, free, mapped[name]) for name, (used, free) in rows.items()]

    def verify(self, blocks: Blocks) -> Iterator[Optional[Problem]]:
        self.checked = {}
        return old_verify.verify(self)


def _bands() -> list[tuple[int, int]]:
    """Return the least and the greatest size of each bin, in units; 0 means unbounded."""
    bands = [(0, 0)] * 64
    for units in range(1, 0x1C40):
        number = bin_of(units * 32, 32)
        bands[number] = bands[number][0] or units, units
    bands[63] = bands[63][0], 0
    return bands


_BANDS = _bands()
