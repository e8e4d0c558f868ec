"""Check an arena's bins: links in both directions, sizes, the order of large bins, the map of
bins.

Sources: malloc/malloc.c, do_check_malloc_state and the checks of unlink_chunk. The engine follows
the lists and gathers the links, which are compared as bytes. Only differences are examined one by
one."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import NamedTuple, Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.glibc.arenas import GlibcArena
from findleaks.allocators.glibc.layout import FLAG_BITS, NBINS, PREV_INUSE
from findleaks.allocators.glibc.lists import LONGEST
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.engine.reference.words import words_of
from findleaks.errors import UnreadableMemory
from findleaks.target.base import Piece, Range

MAX_PROBLEMS = 20  # problems of one bin that are reported
SEARCH_BYTES = 1 << 18  # bytes behind a chunk that are searched for its true end
NSMALLBINS = 64
LARGE_64 = ((6, 48, 48), (9, 20, 91), (12, 10, 110), (15, 4, 119), (18, 2, 124))
LARGE_32 = ((6, 38, 56), (9, 20, 91), (12, 10, 110), (15, 4, 119), (18, 2, 124))
LARGE_32_BIG = ((6, 45, 49), (9, 20, 91), (12, 10, 110), (15, 4, 119), (18, 2, 124))
"""(shift, largest shifted size, addend) of largebin_index_64, _32, _32_big (32-bit with align
16)."""


def get_bin_index(size: int, word: int, align: int) -> int:
    """Return malloc.c's number of the bin for chunks of `size` bytes (bin_index). 2 is the smallest
    bin.

    Example on x86-64: 1,024 bytes are in bin 48 + (1,024 >> 6) = 64, the first large bin. 20 KiB
    are in bin 110 + (20,480 >> 12) = 115."""
    correction = 1 if align > 2 * word else 0  # SMALLBIN_CORRECTION
    if size < (NSMALLBINS - correction) * align:
        return size // align + correction
    for shift, most, add in LARGE_64 if word == 8 else LARGE_32_BIG if correction else LARGE_32:
        if size >> shift <= most:
            return add + (size >> shift)
    return 126


class Chain(NamedTuple):
    """The chunks of one bin along `fd`."""

    nodes: array[int]
    last: int  # the word that ends the list: the address of the bin if the list is sound


class Bins:
    """Checks the bins of one arena. `check` fills in `chunks`, `resized`, `links` and `broken`."""

    def __init__(self, memory: Memory, engine: Engine, arena: GlibcArena, pieces: tuple[Piece, ...]) -> None:
        self.memory = memory
        self.engine = engine
        self.arena = arena
        self.pieces = pieces
        self.chunks: set[int] = set()  # chunks in the bins
        self.resized: set[int] = set()  # chunks whose size word is wrong
        self.links = 0  # links checked
        self.broken = False  # set if a link is wrong, so that chunks may be missing in `chunks`

    def check(self) -> Iterator[Problem]:
        """Check every bin of an arena that has been used."""
        arena, word = self.arena, self.memory.size
        if not any(arena.bins):
            return
        for index in range(NBINS):
            head = arena.bin_head(index)
            if arena.bins[2 * index] == head == arena.bins[2 * index + 1]:
                continue
            forward = self._follow(head, arena.bins[2 * index], 2 * word)
            self.links += 2 * len(forward.nodes)
            yield from self._bin(index, head, forward)
        yield from self._map()

    def _follow(self, head: int, first: int, offset: int) -> Chain:
        nodes, _ = (array("Q"), "") if first == head else self.engine.follow(self.pieces, first, offset, False, LONGEST)
        while nodes and nodes[-1] == head:
            nodes.pop()
        last = (self.memory.word(nodes[-1] + offset) or 0) if nodes else first
        return Chain(nodes, last)

    def _bin(self, index: int, head: int, forward: Chain) -> Iterator[Problem]:
        """Check the links, sizes and order of one bin."""
        word, nodes = self.memory.size, forward.nodes
        width = 4 if index + 1 < NSMALLBINS else 6
        records, missing = self.engine.gather(self.pieces, nodes, width * word)
        missing = [number for number in missing if not self._split(nodes[number], records, number * width * word, width * word)]
        _, words = words_of(Piece(0, memoryview(records)), self.memory.arch)
        backs = words[3::width]
        expected = array("Q", [head])
        expected.extend(nodes[:-1] if nodes else nodes)
        end = self.memory.word(head + 3 * word)
        sound = not missing and forward.last == head and are_equal(backs, expected, word) and end == (nodes[-1] if nodes else head)
        if not sound:
            self.broken = True
            yield from self._links(index, head, forward, list(backs), expected)
        self.chunks.update(nodes)
        wrong = list(self._sizes(index, nodes, [value & ~FLAG_BITS for value in words[1::width]]))
        yield from wrong
        if sound and not wrong and width == 6:
            yield from self._order(index, nodes, words, width)

    def _split(self, node: int, records: bytearray, at: int, size: int) -> bool:
        """Read a record that spans two pieces into its place. Return False if part of it is
        missing."""
        try:
            records[at : at + size] = self.memory.target.read(node, size)
        except UnreadableMemory:
            return False
        return True

    def _links(self, index: int, head: int, forward: Chain, backs: Sequence[int], expected: Sequence[int]) -> Iterator[Problem]:
        """Report where the two directions of links disagree. The wrong link of a pair is the one
        that points neither to a free chunk nor to a chunk of the list along `bk`. Links after it
        are not checked."""
        word, nodes = self.memory.size, forward.nodes
        backward = self._follow(head, self.memory.word(head + 3 * word) or 0, 3 * word)
        self.links += len(backward.nodes)
        known = set(backward.nodes)
        bad: dict[int, list[int]] = {}
        good = 0
        for node, back, should in zip(nodes, backs, expected):
            if back != should:
                if not (node in known or self._is_free(node)):
                    break
                bad.setdefault(node, []).append(3)
            good += 1
        if good < len(nodes) or forward.last != head:
            bad.setdefault(nodes[good - 1] if good else head, []).append(2)
        del nodes[good:]
        real = [node for node in backward.nodes if node in bad or self._is_free(node)]
        self.chunks.update(nodes, real)
        if not bad:
            bad[real[-1] if real and backward.last != head else head] = [3]
        for chunk, places in list(bad.items())[:MAX_PROBLEMS]:
            low, high = min(places), max(places)
            name = "fd" if (low, high) == (2, 2) else "bk" if low == 3 else "fd and bk"
            values = " and ".join(f"{self.memory.word(chunk + place * word) or 0:#x}" for place in range(low, high + 1))
            verb = "is" if low == high else "are"
            where, damaged = self._name(index), Range(chunk + low * word, chunk + (high + 1) * word)
            if chunk == head:
                what = f"{where}: its own {name}, in the arena, is {values}, which is not a chunk that links back"
            else:
                what = (
                    f"the free block at {chunk + 2 * word:#x}, in {where}: its {name} {verb} {values}, and no "
                    "chunk there links back; written to after it was freed"
                )
            yield Problem(damaged.start, what, damaged=damaged)

    def _sizes(self, index: int, nodes: Sequence[int], sizes: Sequence[int]) -> Iterator[Problem]:
        """Check that the sizes of chunks belong to this bin. The unsorted bin may have chunks of
        any size."""
        word, align = self.memory.size, self.arena.layout.align
        wrong = {size for size in set(sizes) if index and get_bin_index(size, word, align) != index + 1}
        found = ((node, size) for node, size in zip(nodes, sizes) if size in wrong) if wrong else ()
        for node, size in islice(found, MAX_PROBLEMS):
            self.resized.add(node)
            what = f"the free block at {node + 2 * word:#x} is in {self._name(index)}, but its size is {size:#x}"
            place = Range(node + word, node + 2 * word)
            yield Problem(node, what, damaged=place, expected=self._true_size(node, index, align))

    def _true_size(self, node: int, index: int, align: int) -> Optional[int]:
        """Return the size word of a free chunk according to the copy of its size behind it."""
        word = self.memory.size
        for size in range(4 * word, SEARCH_BYTES, 2 * word):
            behind = self.memory.words(node + size, 2)
            if behind is None:
                break
            if behind[0] == size and not behind[1] & PREV_INUSE and get_bin_index(size, word, align) == index + 1:
                return size | PREV_INUSE
        return None

    def _order(self, index: int, nodes: Sequence[int], words: Sequence[int], width: int) -> Iterator[Problem]:
        """Check that a large bin is sorted, largest first, and that the first chunks of each size
        form a ring (fd_nextsize, bk_nextsize)."""
        word = self.memory.size
        sizes = [value & ~FLAG_BITS for value in words[1::width]]
        for node, one, next_ in zip(nodes[1:], sizes, sizes[1:]):
            if next_ > one:
                what = (
                    f"{self._name(index)} is not sorted: the free block at {node + 2 * word:#x} has size {next_:#x} after one of {one:#x}"
                )
                yield Problem(node, what, damaged=Range(node + word, node + 2 * word))
                return
        firsts = [next(group)[0] for _, group in groupby(zip(nodes, sizes), key=lambda pair: pair[1])]
        place = {node: number for number, node in enumerate(nodes)}
        for number, node in enumerate(firsts):
            around = ("fd_nextsize", 4, firsts[(number + 1) % len(firsts)]), ("bk_nextsize", 5, firsts[number - 1])
            for name, offset, right in around:
                one = words[place[node] * width + offset]
                if one != right:
                    at = node + offset * word
                    what = f"the free block at {node + 2 * word:#x}, in {self._name(index)}: its {name} is {one:#x}, not {right:#x}"
                    yield Problem(at, f"{what}; written to after it was freed", damaged=Range(at, at + word), expected=right)

    def _map(self) -> Iterator[Problem]:
        """Check that bins in use have their bit in the map. The bit of an empty bin may be stale
        (malloc.c, mark_bin)."""
        arena, word = self.arena, self.memory.size
        start = arena.address + arena.layout.bins + 2 * NBINS * word
        for index in range(1, NBINS):
            if arena.bins[2 * index] != arena.bin_head(index):
                number = index + 1
                at = start + number // 32 * 4
                bits = self.memory.int32(at)
                if bits is not None and not bits >> number % 32 & 1:
                    what = f"{self._name(index)} has chunks, but its bit in the map of bins is clear: malloc skips it"
                    yield Problem(at, what, damaged=Range(at, at + 4))

    def _is_free(self, chunk: int) -> bool:
        """Whether the next header marks the chunk as free."""
        head = self.memory.word(chunk + self.memory.size)
        size = (head or 0) & ~FLAG_BITS
        behind = self.memory.words(chunk + size, 2) if 0 < size < 1 << 48 else None
        return behind is not None and behind[0] == size and not behind[1] & PREV_INUSE

    def _name(self, index: int) -> str:
        """Name a bin for messages: "small bin 5 of arena 3" and the like."""
        name = "the unsorted bin" if index == 0 else f"small bin {index + 1}" if index + 1 < NSMALLBINS else f"large bin {index + 1}"
        return f"{name} of {self.arena.name}"


def are_equal(values: Sequence[int], expected: array[int], word: int) -> bool:
    """Whether two sequences of words are equal. They are compared as bytes if possible."""
    if isinstance(values, memoryview) and word == expected.itemsize:
        return values.tobytes() == expected.tobytes()
    return list(values) == list(expected)
