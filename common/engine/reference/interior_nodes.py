"""Nodes with links inside, exceptions of C++, and chunks of bumpalo, in pure Python. Layouts and
their sources are in common/native/interior_{links,exceptions,chunks}.c."""

from __future__ import annotations

from typing import NamedTuple

from findleaks.engine.reference.blocks import PureBlocks
from findleaks.engine.reference.pieces import Pieces

LINKS, COLOUR = 3, 3
GNU, CLANG, DEPENDENT = 0x474E5543432B2B00, 0x434C4E47432B2B00, 1
HEADER, CLASS, STRING_HEADER, MOST_SPARE, MOST_OWNERS, LARGE_STRING = 128, 96, 24, 64, 1 << 16, 256
LEAST_CHUNK, MOST_ALIGNMENT = 64, 4096


class Candidate(NamedTuple):
    """A pointer into the block [start, end), stored at `word` (0: in a register). `source` is the
    size of the block that contains the pointer; 0: root memory. `source_start` is the address of
    this block if it is possibly lost, else 0."""

    start: int
    end: int
    pointer: int
    word: int
    source: int
    source_start: int


# -- links of lists and trees


def is_link(memory: Pieces, blocks: PureBlocks, c: Candidate) -> bool:
    word = memory.arch.word
    node = c.pointer & -word
    if node <= c.start or (node - c.start) % word:
        return False
    return _has_neighbour(memory, c, node) or _is_in_chain(memory, blocks, c, node)


def _has_link_to(memory: Pieces, address: int, node: int) -> bool:
    values = (memory.word(address + at * memory.arch.word) for at in range(LINKS))
    return any(value is not None and value & ~COLOUR == node for value in values)


def _has_neighbour(memory: Pieces, c: Candidate, node: int) -> bool:
    """Return whether the node and a node in other memory refer to each other."""
    word = memory.arch.word
    for at in range(node, min(node + LINKS * word, c.end - word + 1), word):
        value = (memory.word(at) or 0) & ~COLOUR
        if value and value % word == 0 and not c.start <= value < c.end and _has_link_to(memory, value, node):
            return True
    return False


def _is_same_place(blocks: PureBlocks, c: Candidate, offset: int, value: int) -> bool:
    """Return whether a value refers to another block of the same size, at this offset."""
    found = blocks.find(value)
    if found < 0 or blocks.sizes[found] != c.end - c.start:
        return False
    start = blocks.starts[found]
    return start != c.start and value - start == offset


def _is_in_chain(memory: Pieces, blocks: PureBlocks, c: Candidate, node: int) -> bool:
    """Return whether the node belongs to a singly linked list of blocks of one size."""
    word, offset = memory.arch.word, node - c.start
    if node + word > c.end:
        return False
    value = memory.word(node)
    if value is not None and _is_same_place(blocks, c, offset, value & -word):
        return True
    if not c.source_start or c.source != c.end - c.start:
        return False
    value = memory.word(c.source_start + offset)
    return value is not None and value & -word == node


# -- exceptions of C++, and their messages


def is_exception(memory: Pieces, c: Candidate) -> bool:
    if memory.arch.word != 8 or c.pointer - c.start not in (16, CLASS, HEADER) or c.end - c.start < HEADER:
        return False
    value = memory.word(c.start + CLASS)
    return value is not None and value & ~DEPENDENT in (GNU, CLANG)


def is_string(memory: Pieces, c: Candidate) -> bool:
    """Return whether a block is a string with a header, and the pointer refers to its text. A
    large string may contain other data than text, such as records of a database, and end with
    zeros: its capacity alone distinguishes it from other blocks."""
    if memory.arch.word != 8 or c.pointer - c.start != STRING_HEADER:
        return False
    length, capacity, owners = (memory.word(c.start + at) for at in (0, 8, 16))
    room = c.end - c.pointer
    if not length or capacity is None or owners is None or not length <= capacity < room:
        return False
    if room - capacity > MOST_SPARE or owners & 0xFFFFFFFF > MOST_OWNERS:
        return False
    last, end = memory.bytes(c.pointer + length - 1, 1), memory.bytes(c.pointer + length, 1)
    return end == b"\0" and (capacity >= LARGE_STRING or (last is not None and last != b"\0"))


# -- chunks of bumpalo


def is_bump_chunk(memory: Pieces, c: Candidate) -> bool:
    """Return whether the pointer refers to the footer of a chunk."""
    word, before = memory.arch.word, c.pointer - c.start
    start, first, second, previous, used = (memory.word(c.pointer + at * word) for at in range(5))
    if start != c.start or first is None or second is None or previous is None or used is None:
        return False
    size, alignment = (first, second) if _is_alignment(second) and first > before else (second, first)
    if not _is_alignment(alignment) or not 5 * word <= size - before <= 8 * word:
        return False
    is_end = c.start + size <= c.end and size >= LEAST_CHUNK and (c.end - c.start - size) * 2 <= c.end - c.start
    return is_end and previous % word == 0 and c.start <= used <= c.pointer


def _is_alignment(value: int) -> bool:
    return value > 0 and not value & (value - 1) and value <= MOST_ALIGNMENT
