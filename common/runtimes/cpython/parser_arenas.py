"""Find the memory of the parser's arenas, which contains no references.

The arena of the main script exists until the script ends. A list of the arena owns the objects of
the syntax tree. Words between the nodes are what other blocks left there.

Source: Python/pyarena.c of CPython 3.9 to 3.14. An arena has the first and the last of its blocks,
and the list of objects. A block has the size of its memory, the offset of the unused part, the next
block, and the address of the memory, which follows. Allocators of other libraries have blocks with
the same head, and these blocks own other memory. Therefore all memory of a block counts as unused
only if a thread's stack has the address of the arena: the function that runs the script or parses
the text has it in a local variable."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import NO_BLOCK, State
from findleaks.runtimes.stack_words import scan_stacks
from findleaks.target.base import Range, Target

_BLOCK = 1 << 13  # least bytes of a block's memory (DEFAULT_BLOCK_SIZE)
_HEAD = 4  # words: size, offset, next, memory
_SLACK = 64  # maximum bytes that the allocator adds to a block
_MOST = 1 << 12  # blocks of this size


class _Part(NamedTuple):
    """The memory of a block of an arena, and the address of the next block or 0."""

    following: int
    memory: int
    unused: int
    end: int


def find_arenas(target: Target, blocks: Blocks) -> Iterator[Range]:
    """Yield the memory of arenas, and the unused parts of other blocks that look like theirs."""
    memory = Memory(target)
    parts = _read_parts(memory, blocks)
    heads = _find_heads(memory, blocks, parts) if parts else set()
    owned = set[int]()
    for head in heads:
        while head and head not in owned:
            owned.add(head)
            head = parts[head].following if head in parts else 0
    for start, part in parts.items():
        yield Range(part.memory if start in owned else part.unused, part.end)


def _read_parts(memory: Memory, blocks: Blocks) -> dict[int, _Part]:
    """Return the blocks that may be blocks of arenas, by their addresses."""
    head = _HEAD * memory.size
    left = [blocks.address(index) for index in blocks.of_sizes(_BLOCK + head, _BLOCK + head + _SLACK, _MOST)]
    found: dict[int, _Part] = {}
    while left:
        start = left.pop()
        block, words = blocks.lookup(start), memory.words(start, _HEAD)
        if start in found or block is None or words is None or block[1] != start:
            continue
        length, used, following, data = words
        if not _BLOCK <= length <= block[2] - head or used > length or data != start + head:
            continue
        known = blocks.lookup(following) if following else None
        if following and (known is None or known[1] != following):
            continue
        found[start] = _Part(following, data, data + used, start + block[2])
        # A large node has a larger block, which is never the first one of an arena.
        left += [following] if following else []
    return found


def _find_heads(memory: Memory, blocks: Blocks, parts: dict[int, _Part]) -> set[int]:
    """Return the first blocks of the arenas to which a thread's stack refers."""
    found, seen = set[int](), set[int]()
    for _, read in scan_stacks(memory):
        values = array("Q", sorted({word for word in read if word and not word % memory.size} - seen))
        seen.update(values)
        indices, _ = blocks.find_all(values)
        for value, index in zip(values, indices):
            if index != NO_BLOCK and blocks.state(index) == State.IN_USE:
                words = memory.words(value, 3)
                if words is not None and words[0] in parts and words[1] in parts and blocks.find(words[2]) >= 0:
                    found.add(words[0])
    return found
