"""Find the unused parts of the arenas of Java threads.

Each thread has a handle area, in which the JVM keeps the references of its C++ code, and a resource
area for temporary data. Both are arenas: lists of chunks that are used one after the other. The
JVM releases the newest references by lowering the end of the used part (`_hwm`), and does not clear
them. Therefore the words between this end and the end of the chunk (`_max`) are stale.

Sources: OpenJDK 11, 17, 21 and 25, src/hotspot/share/memory/arena.hpp (in OpenJDK 8,
src/share/vm/memory/allocation.hpp): Arena (`_first`, `_chunk`, `_hwm` and `_max` are adjacent),
Chunk (`_next`, `_len`, in OpenJDK 25 also `_stamp`, then `_len` bytes of data)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.jvm.threads import java_threads
from findleaks.target.base import Range

_SAMPLED = 8  # threads of which all words are read
_MOST_FIELDS = 1 << 10  # most words of a thread that are read
_ARENA = 6  # words of an arena up to `_max`, including it; only 5 in JDK 8 to 17
_FIELDS = 4  # words from `_first` to `_max`
_CHUNK = 2  # words of a chunk that are read
_HEADERS = (2, 3)  # words before the data of a chunk: 2, or 3 in JDK 25 (`_stamp`)
_MOST_CHUNKS = 1 << 12  # most chunks of one arena


def unused_parts(tables: Tables) -> list[Range]:
    """Return the unused part of the newest chunk of each arena to which a JavaThread refers,
    sorted. All words of the first threads are read, to find the fields that refer to arenas."""
    threads = java_threads(tables)
    count = min(max(tables.sizes.get(kind, 0) for kind in ("JavaThread", "Thread")) // tables.memory.size, _MOST_FIELDS)
    found: set[Range] = set()
    fields: set[int] = set()
    for thread in threads[:_SAMPLED]:
        for at, address in enumerate(tables.memory.words(thread, count) or ()):
            parts = list(_unused_part(tables, address))
            found.update(parts)
            fields.update([at] if parts else [])
    for thread in threads[_SAMPLED:]:
        for at in fields:
            found.update(_unused_part(tables, tables.memory.word(thread + at * tables.memory.size) or 0))
    return sorted(found)


def _unused_part(tables: Tables, address: int) -> Iterator[Range]:
    """Yield the unused part of the arena at an address. Yield nothing if there is no arena."""
    words = (tables.memory.words(address, _ARENA) if address and address % tables.memory.size == 0 else None) or ()
    for at in range(len(words) - _FIELDS + 1):
        first, chunk, used, end = words[at : at + _FIELDS]
        if chunk < used < end and _is_newest(tables, first, chunk, used, end):
            yield Range(used, end)


def _is_newest(tables: Tables, first: int, chunk: int, used: int, end: int) -> bool:
    """Return whether there is a chunk from `chunk` to `end`, and whether it is the last one in the
    list that begins with the chunk at `first`."""
    words = _chunk(tables, chunk)
    header = end - chunk - words[1] if words is not None else 0
    if words is None or words[0] or header not in [count * tables.memory.size for count in _HEADERS] or used < chunk + header:
        return False
    for _ in range(_MOST_CHUNKS):
        if first == chunk:
            return True
        words = _chunk(tables, first) if first else None
        if words is None:
            return False
        first = words[0]
    return False


def _chunk(tables: Tables, address: int) -> Optional[Sequence[int]]:
    """Return `_next` and `_len` of a chunk."""
    return tables.memory.words(address, _CHUNK) if address % tables.memory.size == 0 else None
