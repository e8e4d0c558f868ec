"""Find the obstacks of a process, and their chunks.

Source: malloc/obstack.h of glibc 2.31 to 2.41, and obstack.h of libiberty and Gnulib (struct
obstack, struct _obstack_chunk). All members of an obstack that are read here are words, in both
versions of the interface.

A chunk is a block of malloc. It begins with the address of its end and the address of the chunk
before it. Only the obstack refers to the newest chunk. The objects of the newest chunk end at
`next_free`. The words after it are from objects that were freed.

A program may keep a struct obstack after it has freed the chunks, and another obstack may have
got the same block. Therefore all words that refer to a newest chunk are examined. If several
obstacks claim the same chunk, its objects end at the greatest `next_free`."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from heapq import nlargest

from findleaks.allocators.base import Problem, add_first_problems
from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.allocators.search import find_records
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Range, Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import range_at
from findleaks.value_classes import NamedTuple

CHUNK_HEADER = 2  # words of a chunk before its objects: limit, prev
LEAST, GREATEST, MOST_CHUNKS = 16, 1 << 40, 1 << 30
SLACK = 16  # a block exceeds a small chunk by fewer bytes
_MOST_OBSTACKS = 1 << 12
"""Most newest chunks of which obstacks are searched for: the largest ones. More values would make
the search slow."""
_CHECKED = 1 << 16  # blocks between two checks for Ctrl-C
_CHUNK, _BASE, _FREE, _LIMIT, _MASK, _CHUNK_FUNCTION, _FREE_FUNCTION, _WORDS = 1, 2, 3, 4, 6, 7, 8, 11
_LARGEST_MASK = 4096


class Chunk(NamedTuple):
    """A chunk: the block with index `block`. `limit`: the address after its last byte. `previous`:
    the address of the chunk before it, or 0."""

    block: int
    limit: int
    previous: int


class Obstack(NamedTuple):
    """A struct obstack at `address`. `chunks`: the addresses of its chunks, the newest first.
    `next_free`: where the objects of the newest chunk end."""

    address: int
    chunks: Sequence[int]
    next_free: int


class ObstackReader:
    """Reads obstacks. `problems`: chains of chunks that are damaged."""

    def __init__(self, target: Target, engine: Engine, blocks: Blocks) -> None:
        self._target, self._engine, self._blocks, self._memory = target, engine, blocks, Memory(target)
        self.problems: list[Problem] = []

    @cached_property
    def chunks(self) -> Mapping[int, Chunk]:
        """The blocks that begin like a chunk, by address, ascending."""
        blocks, word = self._blocks, self._memory.size
        indices = blocks.of_sizes(LEAST, GREATEST, MOST_CHUNKS)
        columns = blocks.columns_of(array("I", indices))
        records, _ = read_records(self._target, self._engine, columns.address, CHUNK_HEADER * word)
        words = self._target.arch.words(records)
        rows = zip(indices, columns.address, columns.size, words[::CHUNK_HEADER], words[1::CHUNK_HEADER])
        return {
            start: Chunk(index, limit, previous)
            for index, start, size, limit, previous in interruptible(self._target, rows, _CHECKED)
            if start < limit <= start + size and start + size - limit < max(SLACK, size // 5) and previous % word == 0
        }

    @cached_property
    def obstacks(self) -> Sequence[Obstack]:
        """The obstacks that have chunks, by address."""
        former = {chunk.previous for chunk in self.chunks.values()}
        newest = ((chunk.limit - address, address) for address, chunk in self.chunks.items() if address not in former)
        claims: dict[int, list[tuple[bool, int, int]]] = {}
        heads = [address for _, address in nlargest(_MOST_OBSTACKS, newest)]
        for place, words in find_records(self._target, self._engine, heads, _CHUNK, _WORDS):
            if self._is_obstack(words):
                index = self._blocks.find(place)
                in_use = index < 0 or self._blocks.state(index) == State.IN_USE
                claims.setdefault(words[_CHUNK], []).append((in_use, words[_FREE], place))
        found, seen, damaged = list[Obstack](), set[int](), list[Problem]()
        for head, its in claims.items():
            in_use, _, place = max(its)
            if in_use:
                found.append(Obstack(place, list(self._follow(head, seen, damaged)), max(free for _, free, _ in its)))
        add_first_problems(self.problems, damaged, "damaged lists of chunks of obstacks")
        return sorted(found)

    def _is_obstack(self, words: Sequence[int]) -> bool:
        chunk, mask = words[_CHUNK], words[_MASK]
        # glibc's mask is an int, which is the first half of the word.
        mask = mask & 0xFFFFFFFF if self._target.arch.byteorder == "little" else mask >> 32 or mask
        start = chunk + CHUNK_HEADER * self._memory.size
        is_used = start <= words[_BASE] <= words[_FREE] <= words[_LIMIT] == self.chunks[chunk].limit
        return (
            is_used
            and mask < _LARGEST_MASK
            and not mask & mask + 1
            and all(map(self._is_code, words[_CHUNK_FUNCTION : _FREE_FUNCTION + 1]))
        )

    @cached_property
    def _code(self) -> Sequence[Range]:
        return [Range(region.start, region.end) for region in self._target.regions() if region.executable]

    def _is_code(self, address: int) -> bool:
        return range_at(self._code, address) is not None

    def _follow(self, head: int, seen: set[int], damaged: list[Problem]) -> Iterator[int]:
        """Yield the chunks of an obstack. A chunk belongs to one obstack, so that the time is
        limited. Append a damaged list of chunks to `damaged`."""
        at = head
        while at:
            chunk = self.chunks.get(at)
            if chunk is None or at in seen:
                what = "which is not a chunk" if chunk is None else "which is also a chunk of another obstack"
                damaged.append(Problem(at, f"the chunks of the obstack with the chunk {head:#x} lead to {at:#x}, {what}", False))
                return
            seen.add(at)
            yield at
            at = chunk.previous
