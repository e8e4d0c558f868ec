"""oldmalloc as an Allocator: chunks with sizes at both ends, 64 bins, and mapped chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Optional

from findleaks.allocators.base import Allocator, Arena, Cache, Heap, Problem
from findleaks.allocators.images import Image, images
from findleaks.allocators.memory import Memory
from findleaks.allocators.musl import old_verify
from findleaks.allocators.musl.layout import Mal, Old, bin_of
from findleaks.allocators.musl.old_heaps import Mapped, Segment, find_heaps
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Range, Target
from findleaks.target.ranges import nonzero_pieces

_FEW = 512 << 10
"""Bytes. If a file has no empty bin and no more data than this, heads of non-empty bins are
searched for, too."""

_MOST_BINS = 4096
"""Words of one file like an empty bin's head that are examined at most; there are 64 bins."""


def find(target: Target, engine: Engine, taken: Sequence[Range]) -> list[Allocator]:
    """See base.Finder."""
    memory = Memory(target)
    layout = Old(memory.size)
    found: list[Allocator] = []
    for image in images(target):
        address = _mal(memory, engine, image, layout)
        if address:
            segments, mapped = find_heaps(memory, engine, layout, taken)
            if segments:
                found.append(OldMalloc(target, engine, Mal(image.name, address, layout), segments, mapped))
                # a chunk does not show which instance it belongs to; two instances in a process are
                # all but impossible
                break
    return found


def _mal(memory: Memory, engine: Engine, image: Image, layout: Old) -> int:
    """The address of `mal` in a file's data, found by an empty bin, whose head and tail point to
    it, or by one whose chunk points to it; 0 if not there."""
    votes: dict[int, int] = {}
    seen = 0
    for start, end in image.data:
        for piece in nonzero_pieces(memory.target, start, end):
            for head in engine.search(piece, start, end):
                empty = head - layout.overhead
                seen += 1
                if memory.words(head, 2) == (empty, empty):
                    for number in range(layout.bins):
                        base = head - 16 - number * layout.bin
                        votes[base] = votes.get(base, 0) + 1
                if seen > _MOST_BINS * 16 or len(votes) > _MOST_BINS * 64:
                    break
    found = _best(memory, votes, layout)
    if not found:
        votes = {}
        for head in _filled(memory, image, layout):
            for number in range(layout.bins):
                base = head - 16 - number * layout.bin
                votes[base] = votes.get(base, 0) + 1
        found = _best(memory, votes, layout)
    return found


def _best(memory: Memory, votes: dict[int, int], layout: Old) -> int:
    """The address at which most bins look like those of `mal`; 0 if there is none."""
    best = sorted((base for base in votes), key=lambda base: (-votes[base], base))[:256]
    plausible = [(_agreeing(memory, base, layout), -place) for place, base in enumerate(best)]
    if not plausible or max(plausible)[0] < 1:
        return 0
    return best[-max(plausible)[1]]


def _filled(memory: Memory, image: Image, layout: Old) -> Iterator[int]:
    """Possible heads of non-empty bins: the chunk that the head points to has the bin as its
    predecessor."""
    least, align, header, size = 4096, layout.align - 1, layout.overhead, memory.size
    seen = 0
    for start, end in image.data if sum(end - start for start, end in image.data) <= _FEW else ():
        for base, words in memory.scan(start, end):
            for index, (head, tail) in enumerate(zip(words, words[1:])):
                if head > least < tail and not ((head + header) & align or (tail + header) & align) and seen < _MOST_BINS:
                    seen += 1
                    chunk = memory.words(head, 4)
                    at = base + index * size
                    if chunk is not None and chunk[3] == at - header:
                        yield at


def _agreeing(memory: Memory, base: int, layout: Old) -> int:
    """How many bins of a `mal` at this address were used, those with chunks counting tenfold; 0 if
    `mal` cannot be there."""
    binmap = memory.words(base, 8 // memory.size)
    words = memory.words(base + 8, layout.bins * layout.bin // memory.size)
    if binmap is None or words is None:
        return 0
    bits = binmap[0] if len(binmap) == 1 else binmap[0] | binmap[1] << 32
    mal = Mal("", base, layout)
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
            return 0  # two may be wrong: the process may be changing one, or memory is corrupt
    return found


class OldMalloc(Allocator):
    """See allocators.base.Allocator."""

    name = "musl"
    remainder_words = 2
    retention_note = "musl gives back what is wholly free by itself, and has no setting for more"
    version = "oldmalloc"

    def __init__(self, target: Target, engine: Engine, mal: Mal, segments: list[Segment], mapped: list[Mapped]) -> None:
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
        """See Allocator: adjacent mappings form one heap."""
        if not self._heaps:
            self._heaps = [Heap(one.start, one.end, one.label, self._segment_walker(one)) for one in self.segments]
            run: list[Mapped] = []
            for mapped in [*self.mapped, None]:
                if run and (mapped is None or mapped.start != run[-1].end):
                    self._heaps.append(Heap(run[0].start, run[-1].end, "mmapped", self._mapped_walker(run)))
                    run = []
                if mapped is not None:
                    run.append(mapped)
            self._heaps.sort(key=lambda heap: heap.start)
        return self._heaps

    @staticmethod
    def _segment_walker(segment: Segment) -> Callable[[Blocks], None]:
        def walk(blocks: Blocks) -> None:
            for part in segment.parts:
                blocks.append(*part)

        return walk

    @staticmethod
    def _mapped_walker(run: Sequence[Mapped]) -> Callable[[Blocks], None]:
        def walk(blocks: Blocks) -> None:
            blocks.append([one.block for one in run], [one.size for one in run], [State.IN_USE] * len(run))

        return walk

    def metadata(self) -> list[Range]:
        """See Allocator: binmap, bins and the lock that follows them."""
        return [Range(self.mal.address, self.mal.address + self.mal.layout.size)]

    def summary(self) -> dict[str, object]:
        """See Allocator."""
        return {"heaps": len(self.segments), "mmapped": len(self.mapped)}

    def locate(self, address: int) -> str:
        """See Allocator."""
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
        """See Allocator: a row for each bin, including the blocks in use that would go into it."""
        align, overhead = self.mal.layout.align, self.mal.layout.overhead
        rows: dict[tuple[str, int], list[int]] = {}
        for heap in self.heaps():
            for start, end in heap.parts():
                for size, state, count in blocks.by_size(start, end):
                    if state == State.METADATA:
                        continue
                    number = -1 if heap.arena == "mmapped" else bin_of(size + overhead, align)
                    row = rows.setdefault((heap.arena, number), [0, 0, 0, 0])
                    row[state == State.FREE] += count
                    row[2 + (state == State.FREE)] += count * size
        memory = sum(one.end - one.start for one in self.mapped)
        found = []
        for (arena, number), (used, free, used_bytes, free_bytes) in sorted(rows.items(), key=lambda row: (row[0][0], row[0][1] % 65)):
            if number < 0:
                found.append(Cache(arena, "large", 0, used, 0, 0, used_bytes, 0, 0, memory))
                continue
            low, high = _BANDS[number]
            name = str(low * align - overhead) if low == high else f"{low * align - overhead}-{high * align - overhead}" if high else ""
            name = name or f"{low * align - overhead}-"
            size = low * align - overhead if low == high else 0
            taken = used_bytes + free_bytes + (used + free) * overhead
            found.append(Cache(arena, name, size, used, 0, free, used_bytes, 0, free_bytes, taken, own={"bin": number}))
        return found

    def arenas(self, blocks: Blocks) -> list[Arena]:
        """See Allocator: the heap of the program break and of mappings, memory that ld.so donated,
        and blocks with mappings of their own."""
        rows: dict[str, list[int]] = {}
        for cache in self.caches(blocks):
            row = rows.setdefault(cache.arena, [0, 0])
            row[0] += cache.in_use_bytes
            row[1] += cache.free_bytes
        mapped: dict[str, int] = {}
        for heap in self.heaps():
            mapped[heap.arena] = mapped.get(heap.arena, 0) + heap.end - heap.start
        return [Arena(name, used, 0, free, mapped[name]) for name, (used, free) in rows.items()]

    def verify(self, blocks: Blocks) -> Iterator[Optional[Problem]]:
        """See Allocator."""
        self.checked = {}
        return old_verify.verify(self, self.checked)


def _bands() -> list[tuple[int, int]]:
    """The least and the greatest size of each bin, in units; 0 means unbounded."""
    least: dict[int, int] = {}
    for units in [*range(1, 600), *range(600, 0x1C40)]:
        least.setdefault(bin_of(units * 32, 32), units)
    order = sorted(least)
    bands = [(0, 0)] * 64
    for number, after in zip(order, [*order[1:], -1]):
        bands[number] = least[number], least[after] - 1 if after >= 0 else 0
    return bands


_BANDS = _bands()
