"""Arenas (arena_s): their table, and the offsets of bins, counters and thread caches in them.

The fields before the bins depend on the build. So the bins are found by their pointers to slabs,
and the other fields by values that agree with the extents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from typing import NamedTuple, Optional

from findleaks.allocators.jemalloc.base import Base, Bases
from findleaks.allocators.jemalloc.classes import Classes
from findleaks.allocators.jemalloc.extents import Extents
from findleaks.allocators.jemalloc.layout import (
    ARENAS,
    BIN_STATS,
    BIN_STATS_MEMBERS,
    BINS,
    BINS_52,
    LARGES,
    NO_ARENA,
    BinLayout,
    LargeLayout,
    get_layouts,
)
from findleaks.allocators.memory import Memory
from findleaks.allocators.search import find_words_between
from findleaks.engine.contract import Engine
from findleaks.target.base import Range

LONGEST = 160 << 10  # bytes of arena_s that are examined
CHOICES = 8  # candidates for the offset of the bins that are examined closely
RING = 1 << 16  # the largest number of thread caches of an arena


@dataclass
class JemallocArena:
    """An arena by its number. `base` is its base allocator."""

    index: int
    address: int
    base: Optional[Base]


class ArenaShape(NamedTuple):
    """Offsets of fields in every arena; None if a field was not found.

    `counts` is false if the build has no statistics, or if their layout is unknown. Then jemalloc's
    counters are not read, and thread caches are searched for."""

    bins: Optional[int] = None
    bin: BinLayout = BINS[0]
    large: Optional[int] = None
    large_row: LargeLayout = LARGES[0]
    tcaches: Optional[int] = None
    counts: bool = True


class ExtentCounts(NamedTuple):
    """Counts from the extents, by (arena, szind): slabs and regions in use, or large blocks.

    Small blocks that the profiler sampled are counted in the smallest large class, as in
    jemalloc."""

    slabs: Counter[tuple[int, int]]
    regions: Counter[tuple[int, int]]
    large: Counter[tuple[int, int]]


def count_extents(extents: Extents) -> ExtentCounts:
    """Count slabs, regions and large blocks in the extents."""
    counts = ExtentCounts(Counter(), Counter(), Counter())
    small, layout = extents.classes.small, extents.layout
    szinds, frees = (1 << extents.classes.szind_bits) - 1, (1 << extents.nfree_bits) - 1
    for kind, number in extents.alike.items():
        arena, szind = kind & layout.arena_mask, kind >> layout.szind & szinds
        if kind >> layout.slab & 1:
            used = small[szind].regions - (kind >> layout.nfree & frees)
            counts.slabs[arena, szind] += number
            counts.regions[arena, szind] += number * used
        else:
            counts.large[arena, max(szind, len(small))] += number
    return counts


def format_name(index: int) -> str:
    """Return the name of an arena for messages and tables, such as "arena 3"."""
    return "no arena" if index == NO_ARENA else f"arena {index}"


def find_table(bases: Bases, words: Sequence[tuple[int, int]], leaves: set[int]) -> list[JemallocArena]:
    """Return the arenas in the array arenas[].

    `words` are the words in the image's data that point into blocks of base allocators, ascending.
    Element k of the array points into base k, so the start of the array can be computed from each
    element. The start that results from most words is used."""
    known = [(address, value, base) for address, value, base in _find_possible(bases, words, leaves) if base.index < ARENAS]
    word = bases.memory.size
    votes = Counter(address - word * base.index for address, _, base in known)
    if not votes:
        return []
    best = max(votes, key=lambda start: (votes[start], start % 64 == 0, -start))
    return [JemallocArena(base.index, value, base) for address, value, base in known if address - word * base.index == best]


def find_candidates(bases: Bases, words: Sequence[tuple[int, int]], leaves: set[int]) -> list[int]:
    """Return candidates for arena 0 if it is the only arena: the addresses in base 0 to which words
    in the data point."""
    return sorted({value for _, value, base in _find_possible(bases, words, leaves) if base.index == 0})


def _find_possible(bases: Bases, words: Sequence[tuple[int, int]], leaves: set[int]) -> Iterator[tuple[int, int, Base]]:
    """Yield (address, value, base) of the words that may point to an arena in a base."""
    for address, value in words:
        base = bases.base(value) if value not in leaves else None
        if base is not None and value % 64 == 0 and value > base.address:
            yield address, value, base


class BinGuess(NamedTuple):
    """A guess that the bins of every arena are at `offset`, in the layout `bin`.

    `score` is the amount of evidence. `zero` is the address of arena 0 if the guess is right, or 0
    if it is unknown."""

    score: int
    offset: int
    zero: int
    bin: BinLayout


class BinGuesses:
    """The best guesses at the offset of the bins. `agreed` is chosen by the number of size classes
    whose counters agree with the extents, `named` by the number of words that point to slabs."""

    def __init__(self, memory: Memory, extents: Extents) -> None:
        self.memory = memory
        self.extents = extents
        self.counts = count_extents(extents)
        self.bins = get_layouts(memory.arch).bins
        self.agreed = self.named = BinGuess(0, 0, 0, self.bins[0])
        self._scores: dict[int, int] = {}  # by address of the bins
        self._firsts = [0, *accumulate(small.shards for small in extents.classes.small)]

    def look(self, arena: JemallocArena, at: int, naming: Iterable[tuple[int, int]]) -> None:
        """Add the evidence of one arena, which is at `at`. `naming` has the words that point to
        slabs, with the indices of the slabs."""
        votes = self._count(arena, at, naming)
        for offset, row in sorted((key for key in votes if key[0] > 0), key=lambda key: -votes[key])[:CHOICES]:
            layout = self.bins[row]
            if at + offset not in self._scores:
                self._scores[at + offset] = _score_agreement(
                    self.memory, self.extents.classes, self.counts, arena.index, at + offset, layout
                )
            self.agreed = _choose_better(self.agreed, self._scores[at + offset], offset, at, arena, layout)
            self.named = _choose_better(self.named, votes[offset, row], offset, at, arena, layout)

    def _count(self, arena: JemallocArena, at: int, naming: Iterable[tuple[int, int]]) -> Counter[tuple[int, int]]:
        """Return how many words of the arena confirm each guess (offset of the first bin, number of
        the layout). A word confirms a guess if it points to a slab, and if the bin of that slab's
        class would have such a pointer there."""
        votes: Counter[tuple[int, int]] = Counter()
        for place, i in naming:
            if self.extents.arena[i] == arena.index:
                before = self._firsts[self.extents.szind[i]] + self.extents.shard(i)
                for row, layout in enumerate(self.bins):
                    if layout.extent is self.extents.layout:
                        # A bin that has just returned its current slab has a pointer only in its
                        # list of other slabs.
                        for field in (layout.slabcur, layout.nonfull):
                            votes[place - at - field - before * layout.size, row] += 1
        return votes


def _choose_better(best: BinGuess, score: int, offset: int, at: int, arena: JemallocArena, layout: BinLayout) -> BinGuess:
    """Return the better guess. If several words in base 0 are possible, the arena is at the nearest
    one below the bins."""
    if (score, -offset) <= (best.score, -best.offset):
        return best
    return BinGuess(score, offset, at if arena.index == 0 else best.zero, layout)


def find_shape(memory: Memory, engine: Engine, arenas: list[JemallocArena], firsts: Sequence[int], extents: Extents) -> ArenaShape:
    """Find the offsets in arenas. If arena 0 is the only one, also find which of `firsts` it is."""
    slabs = {extents.descriptors[i]: i for i in extents.blocks if extents.slab[i]}
    if not slabs:
        return ArenaShape()
    low, high = min(slabs), max(slabs) + 1
    tried = [(arena, arena.address) for arena in arenas]
    if len(arenas) == 1 and arenas[0].index == 0:
        tried += [(arenas[0], at) for at in firsts if at != arenas[0].address]
    guesses = BinGuesses(memory, extents)
    for arena, at in tried:
        words = find_words_between(memory.target, engine, [Range(at, at + LONGEST)], low, high)
        guesses.look(arena, at, ((place, slabs[value]) for place, value in words if value in slabs))
        if guesses.agreed.score >= len(extents.classes.small) and len(arenas) > 1:
            break
    return _choose_shape(memory, arenas, guesses)


def _choose_shape(memory: Memory, arenas: list[JemallocArena], guesses: BinGuesses) -> ArenaShape:
    """Return the shape that follows from the best guess, and set the address of arena 0
    accordingly."""
    agreed, named, classes = guesses.agreed, guesses.named, guesses.extents.classes
    if not named.score:
        return ArenaShape()
    real = [named.zero or arena.address if arena.index == 0 else arena.address for arena in arenas]
    counting = agreed.score > 0 and any(_has_counted(memory, classes, at + named.offset, named.bin) for at in real)
    if counting and not _fits_slabs(memory, guesses, [(arena.index, at) for arena, at in zip(arenas, real)], agreed):
        return ArenaShape(counts=False)  # an unknown layout
    best = agreed if counting else named
    if best.zero and arenas and arenas[0].index == 0:
        arenas[0].address = best.zero
    if not counting:
        return ArenaShape(best.offset, best.bin, counts=False)
    large, row_large = _find_large_counters(memory, classes, guesses.counts, arenas, best.offset)
    return ArenaShape(best.offset, best.bin, large, row_large, _find_tcaches(memory, arenas, best.offset))


def read_bin_counters(memory: Memory, classes: Classes, bins: int, layout: BinLayout) -> Optional[list[list[int]]]:
    """Read the counters BIN_STATS of each small class, summed over its shards. `bins` is the
    address of an arena's bins. None if unreadable."""
    rows, at = [], bins
    for small in classes.small:
        sums = [0] * len(BIN_STATS)
        for _ in range(small.shards):
            counters = memory.members(at + layout.stats, BIN_STATS_MEMBERS)
            if counters is None:
                return None
            sums = list(map(add, sums, counters))
            at += layout.size
        rows.append(sums)
    return rows


def _score_agreement(memory: Memory, classes: Classes, counts: ExtentCounts, arena: int, bins: int, layout: BinLayout) -> int:
    """Score bins at this address: one point for each class whose counters agree with the slabs and
    regions of the extents, and one more if the class has slabs."""
    agree = 0
    for szind, sums in enumerate(read_bin_counters(memory, classes, bins, layout) or ()):
        if sums[8] == counts.slabs[arena, szind] and sums[3] == counts.regions[arena, szind]:
            agree += 1 + (sums[8] != 0)
    return agree


def _fits_slabs(memory: Memory, guesses: BinGuesses, places: Iterable[tuple[int, int]], guess: BinGuess) -> bool:
    """Return whether the counters are right in at least half of the bins that have slabs. Bins
    without slabs do not count, because zeros at a wrong offset look like their counters. `places`:
    the number and the address of each arena."""
    classes, slabs, right = guesses.extents.classes, 0, 0
    for index, at in places:
        for szind, sums in enumerate(read_bin_counters(memory, classes, at + guess.offset, guess.bin) or ()):
            slabs += guesses.counts.slabs[index, szind] > 0
            right += 0 < guesses.counts.slabs[index, szind] == sums[8]
    return 2 * right >= slabs


def _has_counted(memory: Memory, classes: Classes, bins: int, layout: BinLayout) -> bool:
    """Return whether a counter of these bins ever changed. The last two counters are ignored. The
    reason is that a wrong guess may take a bin's second pointer to slabs for the first, and read
    the first pointer as one of these counters."""
    number = sum(small.shards for small in classes.small)
    return any(any((memory.members(bins + i * layout.size + layout.stats, BIN_STATS_MEMBERS) or ())[:-2]) for i in range(number))


def _find_large_counters(
    memory: Memory, classes: Classes, counts: ExtentCounts, arenas: Sequence[JemallocArena], end: int
) -> tuple[Optional[int], LargeLayout]:
    """Find the offset of the counters of large classes: nmalloc minus ndalloc is the number of
    blocks.

    The search looks for this difference for the smallest class with blocks, and then checks the
    other classes at the resulting offset. A candidate is accepted if the number of classes in which
    it is wrong is at most half the number of classes with blocks."""
    nbins = len(classes.small)
    nlarge = len(classes.sizes) - nbins
    rows = get_layouts(memory.arch).larges
    best: tuple[int, Optional[int], LargeLayout] = (0, None, rows[0])
    word, second = memory.size, 8 // memory.size
    for arena in arenas:
        live = {szind - nbins: n for (index, szind), n in counts.large.items() if index == arena.index and szind >= nbins}
        longs = memory.longs(arena.address, end // word) if live else ()
        if not longs:
            continue
        lead = min(live)
        for row in rows:
            step = row.size // word
            for at in range(lead * step, len(longs) - (nlarge - lead) * step):
                if longs[at] - longs[at + second] == live[lead] and 0 < longs[at] < 1 << 48:
                    first = at - lead * step
                    column = zip(longs[first : first + nlarge * step : step], longs[first + second : first + nlarge * step : step])
                    off = sum(made - gone != live.get(i, 0) for i, (made, gone) in enumerate(column))
                    score = (nlarge - off) * 8 + len(live)
                    if off <= len(live) // 2 and score > best[0]:
                        best = score, word * first, row
        if best[1] is not None:
            break
    return best[1], best[2]


def _find_tcaches(memory: Memory, arenas: Sequence[JemallocArena], end: int) -> Optional[int]:
    """Find the offset of an arena's list heads of thread caches and of their descriptors."""
    for arena in arenas:
        words = memory.words(arena.address, end // memory.size)
        for i, (head, descriptor) in enumerate(zip(words or (), (words or ())[1:])):
            if head and 0 < descriptor - head < 1 << 16 and is_thread_cache_of(memory, head, descriptor, arena.address):
                return memory.size * i
    return None


def is_thread_cache_of(memory: Memory, head: int, descriptor: int, arena: int) -> bool:
    """Return whether two list heads point to a thread cache of this arena.

    In 5.3 (tcache_slow_s), the link of the cache, its descriptor and its arena are adjacent. In 5.2
    (tcache_s), the bins precede them."""
    word = memory.size
    if descriptor - head == 2 * word:
        return memory.word(head + 5 * word) == arena
    return memory.word(descriptor + 4 * word) == arena and memory.word(descriptor + 2 * word) == head + BINS_52


def follow_ring(memory: Memory, arena: JemallocArena, tcaches: int) -> tuple[list[tuple[int, int]], str]:
    """Return (thread cache, descriptor) of each element of an arena's ring of descriptors, and ""
    or the reason why the ring ended early."""
    heads = memory.words(arena.address + tcaches, 2)
    if heads is None or not heads[0]:
        return [], ""
    first, distance = heads[1], heads[1] - heads[0]
    found: dict[int, int] = {}
    at = first
    while len(found) < RING:
        if not is_thread_cache_of(memory, at - distance, at, arena.address):
            return list(found.items()), f"leads to {at:#x}, which does not belong to this arena"
        found[at - distance] = at
        after = memory.word(at)
        if after is None or after == first:
            return list(found.items()), "" if after is not None else f"cannot be read behind {at:#x}"
        if after - distance in found:
            return list(found.items()), f"has a cycle at {after:#x}"
        at = after
    return list(found.items()), f"has more than {RING:,}"
