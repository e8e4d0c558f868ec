"""Find the free chunks of the JVM's arenas.

An arena returns its chunks to one of four pools, by their size. The JVM does not clear a free
chunk, so its words are stale. Up to JDK 17, each pool keeps some chunks for as long as the JVM
runs; later versions release them after 5 seconds.

The JVM's tables of structures do not describe the pools. They are found in libjvm's data by the
sizes of their chunks: 256 bytes, 1 KiB, 10 KiB and 32 KiB, less a constant. The layout depends on
the version:

- JDK 8 to 17: pointers to four structures {first chunk, number of chunks, number in use, size}.
- JDK 21 to 25: four structures {first chunk, size}.

Sources: OpenJDK 8, src/share/vm/memory/allocation.cpp; 11, 17, 21 and 25,
src/hotspot/share/memory/arena.cpp: ChunkPool; arena.hpp: Chunk (`_next`, `_len`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from findleaks.allocators.bulk import find_pointers_into
from findleaks.allocators.directory import Directory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.runtimes.jvm.tables import Tables
from findleaks.target.base import Piece, Range
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import nonzero_pieces

_SIZES = (256, 1 << 10, 10 << 10, 32 << 10)  # of chunks, before the constant is subtracted
_SLACK = range(0, 65, 8)  # possible constants
_OVERHEAD = 24  # most bytes by which the length of a chunk can be less than the size of its pool
_LEN, _DATA = 1, 2  # words of a chunk: the place of `_len`, and the first word that may be data
_POOL_SIZES = range(32, 73)  # usable bytes of the block with a pool, with or without NMT's header
_MOST_CHUNKS = 1 << 18  # of all pools
_CHECKED = 1 << 10  # chunks between two checks for Ctrl-C


def free_chunks(tables: Tables, engine: Engine, data: Iterable[Range], directory: Directory) -> Iterator[Range]:
    """Yield the contents of the free chunks. `data`: the writable data of libjvm. Raises
    Interrupted."""
    seen: set[int] = set()
    for start, end in data:
        for piece in nonzero_pieces(tables.target, start, end):
            pools = chain(_arrays(tables, engine, piece), _pointers(tables, engine, piece, directory))
            for first, size in interruptible(tables.target, pools, _CHECKED):
                yield from _read_list(tables, first, size, seen)


def _arrays(tables: Tables, engine: Engine, piece: Piece) -> Iterator[tuple[int, int]]:
    """Yield the first free chunk of each pool, and the pool's size of chunks, from JDK 21 on."""
    word = tables.memory.size
    for place in engine.search(piece, _SIZES[-1] - _SLACK[-1], _SIZES[-1] + 1):
        for at in (place - word, place - 7 * word):  # the largest size is the first or the last one
            read = tables.memory.words(at, 8) or ()
            if _are_sizes(read[1::2]):
                yield from zip(read[::2], read[1::2])


def _pointers(tables: Tables, engine: Engine, piece: Piece, directory: Directory) -> Iterator[tuple[int, int]]:
    """Yield the first free chunk of each pool, and the pool's size of chunks, for JDK 8 to 17."""
    memory, blocks, heaps = tables.memory, directory.blocks, directory.ranges()
    if not heaps:
        return
    places, values = find_pointers_into(engine, piece, [Range(heaps[0].start, heaps[-1].end)])
    pools = {place: value for place, value, size in zip(places, values, blocks.find_all(values)[1]) if size in _POOL_SIZES}
    for place in pools:
        run = [pools.get(place + number * memory.size, 0) for number in range(len(_SIZES))]
        if all(run):
            read = [memory.words(pool, 4) or (0, 0, 0, 0) for pool in run]
            if _are_sizes([words[3] for words in read]):
                yield from ((words[0], words[3]) for words in read)


def _are_sizes(sizes: Sequence[int]) -> bool:
    """Return whether these are the sizes of the four pools, in ascending or descending order."""
    found = sorted(sizes)
    return (
        len(found) == len(_SIZES)
        and (found == list(sizes) or found[::-1] == list(sizes))
        and any(found == [size - slack for size in _SIZES] for slack in _SLACK)
    )


def _read_list(tables: Tables, chunk: int, size: int, seen: set[int]) -> Iterator[Range]:
    """Yield the contents of the chunks in a list. Stop before a chunk with another length, and
    before a chunk in `seen`, which has the chunks of all lists that were read."""
    memory = tables.memory
    while chunk and chunk % memory.size == 0 and chunk not in seen and len(seen) < _MOST_CHUNKS:
        if len(seen) % _CHECKED == _CHECKED - 1 and tables.target.is_interrupted():
            raise Interrupted
        seen.add(chunk)
        words = memory.words(chunk, _DATA)
        if words is None or not size - _OVERHEAD <= words[_LEN] <= size:
            return
        yield Range(chunk + _DATA * memory.size, chunk + _DATA * memory.size + words[_LEN])
        chunk = words[0]
