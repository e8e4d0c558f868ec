"""Read V8's spaces (new_space, old_space…: see v8.getHeapSpaceStatistics()), and the chunks of
each.

Sources: V8 10.2 to 13.6 (Node 18 to 24), src/heap/base-space.h, src/heap/list.h,
src/heap/basic-memory-chunk.h, later memory-chunk-metadata.h, src/heap/read-only-spaces.h.

A chunk's header, or memory that one of its first words points to, has the address of the chunk's
space. In the new space it is the address of one of its two halves. Like the space itself, a half
has the heap as its second word and contains the space's number. The header also has the next and
the previous chunk of the space's list. Chunks that V8 freed but did not unmap are on no list.
shape.py finds the layout of the spaces."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.disasm.formula import evaluate_function
from findleaks.runtimes.node.heap import CHUNK, HEADER, PAGE, heads
from findleaks.runtimes.node.shape import MOST, Shape
from findleaks.target.base import Range, Target
from findleaks.target.interruptible import interruptible

READ_ONLY = ("_ZTVN2v88internal19SharedReadOnlySpaceE", "_ZTVN2v88internal13ReadOnlySpaceE")
# Words read of a chunk's header, for its links, and of a space, for head and top.
NODE, HEADS = 80, 64
SAMPLE = 256  # chunks whose headers are compared to find these offsets
NEW_SPACE = "new_space"
PAGES = 1 << 12  # maximum number of the read-only space's pages, several times the largest known
LARGEST = 1 << 46
OFTEN = 64  # chunks between two checks for the user's interrupt


class Placed(NamedTuple):
    """A chunk in the list of the space, or half of the new space, at `owner`.

    `key` identifies it in lists: its own address, or the address that its header points to.
    `following` is the key of the next chunk (0: this is the last)."""

    chunk: Range
    owner: int
    key: int
    following: int


@dataclass
class Space:
    """A space of an isolate, or the read-only space that all isolates share (isolate 0).

    `chunks` ascend. `committed` and `used` (by objects) are bytes as V8 counts them, None if
    unknown. `counted` is `used` plus the unused part of the linear allocation areas, which is
    `left`."""

    isolate: int
    number: int
    name: str
    address: int
    committed: Optional[int]
    used: Optional[int]
    chunks: list[Range] = field(default_factory=list)
    counted: Optional[int] = None
    left: list[Range] = field(default_factory=list)
    placed: list[Placed] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(chunk.end - chunk.start for chunk in self.chunks)


class Spaces(NamedTuple):
    """The spaces of all isolates by number, then the read-only space.

    `freed` chunks are on no space's list: V8 freed them, but did not unmap them. The space of
    `wild` chunks is unknown. `problems` has a line for each problem."""

    spaces: Sequence[Space]
    freed: Sequence[Range]
    wild: Sequence[Range]
    problems: Sequence[str]


def read(target: Target, shape: Shape, isolates: Sequence[int], chunks: Sequence[Range]) -> Spaces:
    """Return all spaces of these isolates. `chunks` are all chunks of the isolates. Raises only
    Interrupted."""
    return _Reader(target, shape, isolates).read(chunks)


class _Reader:
    def __init__(self, target: Target, shape: Shape, isolates: Sequence[int]) -> None:
        self.target, self.shape = target, shape
        self.memory = Memory(target)
        self.isolates = {isolate + shape.heap: isolate for isolate in isolates}
        self.doubts: defaultdict[str, list[str]] = defaultdict(list)
        self.spaces: dict[tuple[int, int], Space] = {}
        self._owners: dict[int, Optional[Space]] = {}
        self._heads: dict[int, frozenset[int]] = {}

    def read(self, chunks: Sequence[Range]) -> Spaces:
        """See read."""
        for heap, isolate in self.isolates.items():
            self._isolate(heap, isolate)
        only = list(self._read_only())
        shared = {chunk.start for space in only for chunk in space.chunks}
        freed, wild = self._share([chunk for chunk in chunks if chunk.start not in shared])
        self._check()
        return Spaces([*self.spaces.values(), *only], freed, wild, self._problems())

    def _problems(self) -> list[str]:
        found = [(first, len(more), what) for what, (first, *more) in self.doubts.items()]
        return [f"{first} (and {more:,} more {what})" if more else first for first, more, what in found]

    def _isolate(self, heap: int, isolate: int) -> None:
        entries = self.memory.words(isolate + self.shape.array, len(self.shape.names))
        if entries is None:
            self._doubt("isolates", f"the spaces of isolate {isolate:#x} cannot be read")
            return
        for number, entry in enumerate(entries):
            if not entry:
                continue
            name = self.shape.name(number)
            if self._identify(entry) != (heap, number):
                self._doubt("addresses", f"{name} of isolate {isolate:#x} is not a space, at {entry:#x}: it is ignored")
                self._owners[entry] = None
                continue
            committed, used = self._value(entry, self.shape.committed), self._value(entry, self.shape.used)
            space = Space(isolate, number, name, entry, committed, used, counted=used)
            self.spaces[heap, number] = self._owners[entry] = space
        self._subtract(heap)

    def _identify(self, address: int) -> Optional[tuple[int, int]]:
        """Return (heap, number) of the space at `address`, or of the space that contains it; None
        if none."""
        heap = self.memory.word(address + self.shape.holder) if address % self.memory.size == 0 else None
        number = self.memory.int32(address + self.shape.identity) if heap in self.isolates else None
        return (heap, number) if heap is not None and number is not None and number < len(self.shape.names) else None

    def _value(self, space: int, slot: int) -> Optional[int]:
        """Return the result of a space's virtual function."""
        table = self.memory.word(space)
        function = self.memory.word(table + slot) if table else None
        found = evaluate_function(self.target, function, space) if function else None
        return found if found is not None and found < LARGEST else None

    def _subtract(self, heap: int) -> None:
        """Subtract the unused rest of the linear allocation areas, if V8 does not count it as
        used."""
        if self.shape.areas is None:
            return
        holder, allocators, pointer = self.shape.areas
        at = self.memory.word(heap + holder) or 0
        for offset in allocators:
            words = self.memory.words(at + offset, pointer // 8 + 1) if at else None
            area = self.memory.words(words[-1], 3) if words and words[-1] % 8 == 0 else None
            space = next((space for space in map(self._owners.get, words or ()) if space is not None), None)
            if area is None or space is None or space.used is None:
                continue
            start, top, limit = area
            if not start <= top <= limit <= start + LARGEST:
                continue
            space.left.append(Range(top, limit))
            # In the new space, memory after its top does not count as used.
            counts = space.name != NEW_SPACE or limit in (self.memory.words(space.address, HEADS) or ())
            if counts and limit - top <= space.used:
                space.used -= limit - top

    def _share(self, chunks: Sequence[Range]) -> tuple[list[Range], list[Range]]:
        """Assign each chunk to the space that its header names and whose list contains it. Return
        the chunks on no list, and those whose header names no space."""
        place = self._place(chunks)
        if place is None:
            return [], list(chunks)
        keyed = [(self._key(chunk.start, place), chunk) for chunk in interruptible(self.target, chunks, OFTEN)]
        keys = [key for key, _ in keyed if key]
        node = self._node(keys, frozenset(keys))
        freed: list[Range] = []
        wild: list[Range] = []
        for key, chunk in interruptible(self.target, keyed, OFTEN):
            owner = (self.memory.word(key + place[1]) or 0) if key else 0
            space = self._owner(owner)
            if space is not None and self._is_linked(key, node, owner):
                space.chunks.append(chunk)
                space.placed.append(Placed(chunk, owner, key, (self.memory.word(key + node) or 0) if node else 0))
            elif space is not None or not owner:
                freed.append(chunk)
            else:
                wild.append(chunk)
                self._doubt(
                    "chunks", f"the chunk at {chunk.start:#x} names a space at {owner:#x}, which does not exist: it belongs to no space"
                )
        return freed, wild

    def _place(self, chunks: Sequence[Range]) -> Optional[tuple[int, int]]:
        """Return the location of the space's address in most chunks: (index of the header's word
        that points there, -1: the header itself; offset there)."""
        votes: Counter[tuple[int, int]] = Counter()
        for chunk in interruptible(self.target, chunks[:: max(1, len(chunks) // SAMPLE)], OFTEN):
            for first, words in heads(self.memory, chunk.start, self.isolates):
                votes.update((first, self.memory.size * at) for at, word in enumerate(words) if self._owner(word) is not None)
        return votes.most_common(1)[0][0] if votes else None

    def _key(self, chunk: int, place: tuple[int, int]) -> int:
        """Return the chunk's `Placed.key`; 0 if the memory that its header points to has been
        reused."""
        if place[0] < 0:
            return chunk
        key = self.memory.word(chunk + self.memory.size * place[0]) or 0
        return key if any(word & -CHUNK == chunk for word in self.memory.words(key, HEADER) or ()) else 0

    def _node(self, sample: Sequence[int], keys: Container[int]) -> int:
        """Return the offset of the next key, which the previous key follows, in most chunks; 0 if
        there is none."""
        votes: Counter[int] = Counter()
        size = self.memory.size
        for key in interruptible(self.target, sample[:: max(1, len(sample) // SAMPLE)], OFTEN):
            for number, word in enumerate(self.memory.words(key, NODE) or ()):
                if word != key and word in keys and self.memory.word(word + size * (number + 1)) == key:
                    votes[size * number] += 1
        return votes.most_common(1)[0][0] if votes else 0

    def _is_linked(self, key: int, node: int, owner: int) -> bool:
        """Return whether the list of its space contains this chunk. A freed chunk still names its
        former space."""
        if owner not in self._heads:
            self._heads[owner] = frozenset(self.memory.words(owner, HEADS) or ())
        if key in self._heads[owner]:
            return True
        following, before = (self.memory.words(key + node, 2) if node else None) or (0, 0)
        behind = self.memory.word(following + node + self.memory.size) if following else None
        return key in (behind, self.memory.word(before + node) if before else None)

    def _owner(self, address: int) -> Optional[Space]:
        """Return the space at `address`, or the one that contains it (a half, or a collection's
        target)."""
        if address < PAGE or address % self.memory.size:
            return None
        if address not in self._owners:
            identified = self._identify(address)
            self._owners[address] = self.spaces.get(identified) if identified is not None else None
        return self._owners[address]

    def _check(self) -> None:
        """Compare the results with V8's own counts."""
        for space in self.spaces.values():
            where = f"{space.name} of isolate {space.isolate:#x}"
            if space.committed not in (None, space.bytes):
                counted = f"counts {space.committed:,} bytes as committed, and its chunks have {space.bytes:,}"
                self._doubt("spaces", f"{where} {counted}: the size of the chunks is shown")
            if space.used is None or space.used > space.bytes:
                self._doubt("spaces in use", f"the bytes used of {where} are unknown")
                space.used = None

    def _doubt(self, what: str, problem: str) -> None:
        """Add a problem. Only the first problem of each kind is shown, with the number of the
        others."""
        self.doubts[what].append(problem)

    def _read_only(self) -> Iterator[Space]:
        """Yield the read-only spaces, shared by isolates. The heap points to them, and they have a
        list {begin, end, capacity} of pages."""
        symbols = [symbol for symbol in map(self.target.symbol, READ_ONLY) if symbol is not None]
        tables = {symbol.address + 2 * self.memory.size for symbol in symbols}
        seen: set[int] = set()
        for heap in self.isolates if tables else ():
            for word in self.memory.words(heap, MOST) or ():
                if word and word not in seen and word % 8 == 0 and self.memory.word(word) in tables:
                    seen.add(word)
                    if self._owners.get(word) is not None:
                        continue  # Up to V8 8.4, it is one of the spaces of an isolate.
                    pages = self._pages(word)
                    if not pages:
                        self._doubt("read-only spaces", f"the pages of the read-only space at {word:#x} were not found")
                    used = self._value(word, self.shape.size) if self.shape.size else None
                    space = Space(0, 0, self.shape.name(0), word, None, used, pages)
                    space.used = used if used is not None and used <= space.bytes else None
                    yield space
        if not seen:
            self._doubt("read-only spaces", "the read-only space was not found")

    def _pages(self, space: int) -> list[Range]:
        words = self.memory.words(space, HEADER) or ()
        for begin, end, most in zip(words, words[1:], words[2:]):
            if begin and begin % 8 == 0 and begin < end <= most and end - begin <= 8 * PAGES:
                pages = [self._page(page) for page in self.memory.words(begin, (end - begin) // 8) or ()]
                found = sorted({page for page in pages if page is not None})
                if found and len(found) == len(pages):
                    return found
        return []

    def _page(self, page: int) -> Optional[Range]:
        """Return a read-only page.

        The page is at `page`, or at the address that the memory at `page` points back to. That
        memory has its end and size. All pages except the last one are whole chunks."""
        words = self.memory.words(page, 16) if page % 8 == 0 else None
        for word in words or ():
            start = word - 1 & -CHUNK
            size = word - start
            if word and size in (words or ()) and (start == page or page in (self.memory.words(start, 4) or ())):
                return Range(start, word)
        return None
