"""Find the blocks of the JVM's arenas: temporary memory of its compilers and of its threads.

A compiler releases its arenas when it has compiled a method. They may have many megabytes until
then. An arena takes chunks of a few standard sizes from malloc. With Native Memory Tracking (NMT),
a header of NMT precedes a chunk in its block.

Sources: OpenJDK 8, src/share/vm/memory/allocation.hpp; 11, 17, 21 and 25,
src/hotspot/share/memory/arena.hpp: Chunk (`_next`, in 25 also `_stamp`, `_len`, then `_len` bytes
of data), and the sizes 1, 10 and 32 KiB, less a constant; services/mallocTracker.hpp:
MallocHeader."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from findleaks.allocators.bulk import read_records
from findleaks.engine.contract import Blocks, Engine
from findleaks.runtimes.jvm.tables import NMT_HEADER, Tables
from findleaks.target.interruptible import interruptible

_SIZES = (1 << 10, 10 << 10, 32 << 10)  # of chunks, before the constant is subtracted
_CONSTANTS = {4: (20, 24), 8: (40,)}  # by bytes of a word
_SLACK = 64  # most bytes by which a block and the data of its chunk differ from the size
_HEADERS = (2, 3)  # words of a chunk before its data; `_len` is the last one
_READ = 5  # words of a block that are read
_MOST = 1 << 18  # blocks of one size
_SOME = 1 << 14  # blocks that are read together


def list_arena_chunks(tables: Tables, engine: Engine, blocks: Blocks) -> array[int]:
    """Return the indices ("I", ascending) of the blocks in use that contain a chunk. The chunks of
    256 bytes are left out. Raises Interrupted."""
    found = [index for size in _SIZES for index in _list_chunks(tables, engine, blocks, size)]
    return array("I", sorted(found))


def _list_chunks(tables: Tables, engine: Engine, blocks: Blocks, size: int) -> Iterator[int]:
    indices = array("I", blocks.of_sizes(size - _SLACK, size + _SLACK, _MOST))
    for first in interruptible(tables.target, range(0, len(indices), _SOME)):
        some = indices[first : first + _SOME]
        columns = blocks.columns_of(some)
        data, _ = read_records(tables.target, engine, columns.address, _READ * tables.memory.size)
        words = tables.memory.arch.words(data)
        for at, (index, usable) in enumerate(zip(some, columns.size)):
            if _is_chunk(blocks, tables.memory.size, words[at * _READ : (at + 1) * _READ], usable, size):
                yield index


def _is_chunk(blocks: Blocks, word: int, words: Sequence[int], usable: int, size: int) -> bool:
    """Return whether a block begins with a chunk of nearly `size` bytes. `words`: the first words
    of the block; `usable`: its size."""
    for start in (0, NMT_HEADER):
        following, rest = words[start // word], words[start // word + 1 :]
        for length in (rest[header - 2] for header in _HEADERS if start + header * word <= _READ * word):
            if size - length in _CONSTANTS[word] and usable - _SLACK <= start + length < usable:
                if not following or blocks.find(following) >= 0:
                    return True
    return False
