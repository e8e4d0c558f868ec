"""Find the blocks of malloc that contain handles of the JVM (OopStorage, since JDK 11).

Such a block contains {64 handles, bit mask of used handles, the OopStorage, address of the block of
malloc, …}. It begins at a multiple of 64, and so it may follow the start of the block of malloc.
The JVM refers only to this multiple. An OopStorage begins with the address of its name.

Source: OpenJDK 11, 17, 21 and 25, src/hotspot/share/gc/shared/oopStorage.inline.hpp (Block)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from findleaks.allocators.bulk import read_records
from findleaks.engine.contract import Blocks, Engine
from findleaks.runtimes.jvm.tables import NMT_HEADER, Tables
from findleaks.target.interruptible import interruptible

HANDLES = 64
STORAGE_SIZES = range(552, 1024)
"""Usable bytes of such a block of malloc."""
ALIGNED = 64
"""Bytes to which the handles are aligned."""
_MOST_BLOCKS = 1 << 20  # blocks that are examined
_SOME = 1 << 14  # blocks that are read together


def list_storage_blocks(tables: Tables, engine: Engine, blocks: Blocks) -> Iterator[int]:
    """Yield the starts of the blocks of malloc. Raises Interrupted."""
    size = tables.memory.size
    if tables.is_jdk8 or size != 8:
        return
    indices = array("I", blocks.of_sizes(STORAGE_SIZES.start, STORAGE_SIZES.stop - 1, _MOST_BLOCKS))
    for first in interruptible(tables.target, range(0, len(indices), _SOME)):
        starts = blocks.columns_of(indices[first : first + _SOME]).address
        for header in (0, NMT_HEADER):
            bases = [start + header + -(start + header) % ALIGNED for start in starts]
            data, _ = read_records(tables.target, engine, [base + (HANDLES + 1) * size for base in bases], 2 * size)
            words = tables.memory.arch.words(data)
            rows = [(start, owner) for start, owner, memory in zip(starts, words[::2], words[1::2]) if memory == start + header]
            named = {owner for owner in {owner for _, owner in rows} if owner % size == 0 and read_storage_name(tables, owner)}
            yield from (start for start, owner in rows if owner in named)


def read_storage_name(tables: Tables, owner: int) -> str:
    """Return the name of an OopStorage ("JNI Global"); "" if there is none."""
    text = tables.memory.word(owner)
    name = tables.text(text) if text else ""
    return name if name.isprintable() else ""
