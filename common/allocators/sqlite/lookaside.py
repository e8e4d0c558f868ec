"""Structures of SQLite's lookaside buffers.

Source: src/sqliteInt.h, main.c (setupLookaside) and malloc.c of SQLite 3.36 to 3.50 (struct
sqlite3, Lookaside), 64-bit. A connection (struct sqlite3) begins with the address of its VFS, which
is a variable of the library. Its member `lookaside` is found by its contents, because its offset
differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.allocators.bulk import read_records
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Target
from findleaks.target.ranges import range_at
from findleaks.value_classes import NamedTuple

SMALL = 128  # bytes of a small slot
_LEAST, _GREATEST = 600, 1400  # bytes of a block with a connection
_HEADERS = (8, 0)  # bytes before a connection in its block: SQLite may store the size there
_MOST = 1 << 20  # blocks of such sizes that are examined
_BYTES = 96  # of struct Lookaside
_LISTS = (4, 5, 6, 7)
"""Words with the first free slots: never used and used before, of the size of the connection, and
small."""
_MIDDLE, _START, _END = 8, 9, 11


class Buffer(NamedTuple):
    """The slots of one connection: slots of `size` bytes in [start, middle), and small ones in
    [middle, end). `heads` are the first free slots of its lists. `address` is that of the
    connection, `slots` the number that it counts."""

    address: int
    start: int
    middle: int
    end: int
    size: int
    slots: int
    heads: Sequence[int]


def find_buffers(target: Target, engine: Engine, image: Image, blocks: Blocks) -> list[Buffer]:
    """Return the buffers of all connections, by their address. `image`: the file that contains
    SQLite."""
    memory = Memory(target)
    starts = [blocks.address(index) for index in blocks.of_sizes(_LEAST, _GREATEST, _MOST)]
    records, missing = read_records(target, engine, starts, 16)
    words = target.arch.words(records)
    found: dict[int, Buffer] = {}
    for number, start in enumerate(starts):
        for header in _HEADERS if number not in missing else ():
            if range_at(image.data, words[2 * number + header // 8]) is not None:
                buffer = _buffer_of(memory, blocks, start + header)
                if buffer is not None:
                    found.setdefault(buffer.start, buffer)
    return [found[start] for start in sorted(found)]


def _buffer_of(memory: Memory, blocks: Blocks, connection: int) -> Optional[Buffer]:
    """Return the buffer of the connection at an address, or None."""
    words = memory.words(connection, (_LEAST - _HEADERS[0]) // 8)
    for at in range(len(words or ()) - _BYTES // 8 + 1):
        buffer = _check(blocks, connection, (words or ())[at : at + _BYTES // 8])
        if buffer is not None:
            return buffer
    return None


def _check(blocks: Blocks, connection: int, words: Sequence[int]) -> Optional[Buffer]:
    """Return the buffer that a struct Lookaside describes, or None. Its slots fill [start, end),
    which is in one block in use."""
    start, middle, end = words[_START], words[_MIDDLE], words[_END]
    size, slots = words[0] >> 48, words[1] >> 32
    if not size or not 0 < start <= middle <= end or start % 8 or (middle - start) % size or (end - middle) % SMALL or words[1] & 0xFF > 1:
        return None
    heads = [words[at] for at in _LISTS]
    if slots != (middle - start) // size + (end - middle) // SMALL or any(head and not start <= head < end for head in heads):
        return None
    block = blocks.lookup(start)
    if block is None or block[3] != State.IN_USE or end > block[1] + block[2] or start == end:
        return None
    return Buffer(connection, start, middle, end, size, slots, heads)
