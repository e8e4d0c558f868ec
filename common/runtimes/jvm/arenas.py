"""Find the unused parts of the arenas of the JVM's threads.

Each thread has a handle area, in which the JVM keeps the references of its C++ code, and a resource
area for temporary data. Both are arenas: lists of chunks that are used one after the other. The
JVM releases the newest references by lowering the end of the used part (`_hwm`), and does not clear
them. Therefore the words between this end and the end of the chunk (`_max`) are stale.

Other threads, such as the one that stops all others (VMThread), are also objects of the class
Thread. Variables of libjvm refer to them.

Sources: OpenJDK 11, 17, 21 and 25, src/hotspot/share/memory/arena.hpp (in OpenJDK 8,
src/share/vm/memory/allocation.hpp): Arena (`_first`, `_chunk`, `_hwm` and `_max` are adjacent),
Chunk (`_next`, `_len`, in OpenJDK 25 also `_stamp`, then `_len` bytes of data)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from findleaks.allocators.bulk import find_pointers_into
from findleaks.allocators.directory import Directory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.jvm.threads import java_threads
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges, nonzero_pieces

_SAMPLED = 8  # threads of which all words are read
_MOST_FIELDS = 1 << 10  # most words of a thread that are read
_ARENA = 6  # words of an arena up to `_max`, including it; only 5 in JDK 8 to 17
_FIELDS = 4  # words from `_first` to `_max`
_CHUNK = 2  # words of a chunk that are read
_HEADERS = (2, 3)  # words before the data of a chunk: 2, or 3 in JDK 25 (`_stamp`)
_MOST_READS = 1 << 20  # most reads of threads, arenas and chunks, all together
_CHECKED = 1 << 10  # reads between two checks for Ctrl-C
_PADDING = (0, 16)  # bytes before a thread in its block of malloc: none, or NMT's header
_ALIGNED = 2048  # with biased locking (JDK 8 to 17), the address of a thread is a multiple of this


def unused_parts(tables: Tables, others: Sequence[int] = ()) -> list[Range]:
    """Return the unused part of the newest chunk of each arena to which a thread refers, sorted and
    disjoint. `others`: blocks that may be threads, other than JavaThreads. Raises Interrupted."""
    return merge_ranges(_ArenaReader(tables).read(others))


def find_others(tables: Tables, engine: Engine, directory: Directory, data: Sequence[Range]) -> list[int]:
    """Return the blocks of malloc that may be threads: libjvm's `data` refers to them, and they
    have the size of a thread."""
    blocks, smallest = directory.blocks, tables.sizes.get("Thread", 0)
    found: set[int] = set()
    if not smallest or not directory.ranges():
        return []
    heap = Range(directory.ranges()[0].start, directory.ranges()[-1].end)
    for piece in (piece for part in data for piece in nonzero_pieces(tables.target, *part)):
        values = find_pointers_into(engine, piece, [heap])[1]
        indices, sizes = blocks.find_all(values)  # size 0: in no block
        for one, start, size in zip(values, blocks.columns_of(indices).address, sizes):
            fits = smallest <= size - (one - start) and size < _MOST_FIELDS * tables.memory.size
            if fits and (one - start in _PADDING or one % _ALIGNED == 0):
                found.add(one)
    return sorted(found - set(java_threads(tables)))


class _ArenaReader:
    """Reads the arenas of threads. In damaged memory, many words may refer to the same list of
    chunks, and a list may have no end. Therefore the number of all reads is limited."""

    def __init__(self, tables: Tables) -> None:
        self._tables, self._memory = tables, tables.memory
        self._left = _MOST_READS

    def read(self, others: Sequence[int]) -> Iterator[Range]:
        """Yield the unused parts. To find the fields that refer to arenas, all words of the first
        few Java threads are read. If a field refers to an arena in only one of several threads,
        this is a coincidence, and the field does not count. Other threads have the fields of the
        class Thread."""
        threads, sizes = java_threads(self._tables), self._tables.sizes
        count = min(max(sizes.get(kind, 0) for kind in ("JavaThread", "Thread")) // self._memory.size, _MOST_FIELDS)
        sampled, rest = threads[:_SAMPLED], threads[_SAMPLED:]
        found = [
            (field, part)
            for thread in sampled
            for field, address in enumerate(self._words(thread, count))
            for part in self._unused_part(address)
        ]
        threads_with = Counter(field for field, _ in found)
        fields = {field for field, number in threads_with.items() if number > 1 or len(sampled) == 1}
        yield from (part for field, part in found if field in fields)
        common = {field for field in fields if field < sizes.get("Thread", 0) // self._memory.size}
        for thread, own in chain(((thread, fields) for thread in rest), ((thread, common) for thread in others)):
            for field in own:
                for address in self._words(thread + field * self._memory.size, 1):
                    yield from self._unused_part(address)

    def _unused_part(self, address: int) -> Sequence[Range]:
        """Return the unused part of the arena at an address; empty if there is no arena."""
        words = self._words(address, _ARENA)
        for at in range(len(words) - _FIELDS + 1):
            first, chunk, used, end = words[at : at + _FIELDS]
            if chunk < used < end and self._is_newest(first, chunk, used, end):
                return [Range(used, end)]
        return []

    def _is_newest(self, first: int, chunk: int, used: int, end: int) -> bool:
        """Return whether there is a chunk from `chunk` to `end`, and whether it is the last one in
        the list that begins with the chunk at `first`."""
        words = self._words(chunk, _CHUNK)
        header = end - chunk - words[1] if words else 0
        if not words or words[0] or header not in [count * self._memory.size for count in _HEADERS] or used < chunk + header:
            return False
        seen: set[int] = set()
        while first and first != chunk and first not in seen:
            seen.add(first)
            first = next(iter(self._words(first, _CHUNK)), 0)
        return first == chunk

    def _words(self, address: int, count: int) -> Sequence[int]:
        """Read `count` words; return none if the address is not aligned, if one of them is
        unreadable, or after _MOST_READS calls. Raises Interrupted."""
        if not address or address % self._memory.size or not self._left:
            return ()
        if self._left % _CHECKED == 0 and self._memory.target.is_interrupted():
            raise Interrupted
        self._left -= 1
        return self._memory.words(address, count) or ()
