"""Read the memory contexts of PostgreSQL whose blocks are in doubly linked lists: Generation, Slab
and Bump.

A context has the type for which the bytes of all blocks are those that PostgreSQL counts for it.

Sources: generation.c, slab.c, bump.c (src/backend/utils/mmgr) and src/include/lib/ilist.h of
PostgreSQL 13 to 18, for 64-bit programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.errors import Interrupted
from findleaks.value_classes import NamedTuple

HEADS = range(96, 152, 8)
"""Possible offsets of the list of blocks, which is the last member of a GenerationContext and of a
BumpContext."""
LIST = 16  # bytes of a list's head (dlist_head) and of a node: previous and next node
SIZE_PLACES = (16, 24)  # offset of a GenerationBlock's size: in PostgreSQL 13 to 15, and 16 to 18
SLABS_OLD = 128  # bytes of a SlabContext before its lists, up to PostgreSQL 15
SLABS = (("PPPI", 192), ("IIII", 176))
"""For PostgreSQL 16, and for 17 or later: the members of a SlabContext from offset 80 on (bytes of
a chunk without and with its head, bytes of a block, number of chunks in a block), and the bytes of
a SlabContext."""
SLAB_LISTS = 3  # lists of blocks in use, at the end of a SlabContext
EMPTY_LIST = 72  # bytes from the list of empty blocks to the end of a SlabContext
NODE_OLD, NODE = 0, 32  # offset of the node in a SlabBlock: up to PostgreSQL 15, it is NODE_OLD
BLOCK_OLD, BLOCK = 24, 48  # bytes of the head of a SlabBlock: up to PostgreSQL 15, BLOCK_OLD
MOST = 1 << 20  # most blocks of one context
MOST_LISTS = 1 << 22  # most lists of all contexts
MOST_CHUNKS = 1 << 16  # most chunks of one block of a Slab
CHECKED = 1 << 12  # nodes of a list between two checks for Ctrl-C


class Usage(NamedTuple):
    """The memory of one context, as pg_log_backend_memory_contexts counts it.

    - `total`: the bytes of its blocks and of the context itself.
    - `free`: the unused bytes in its blocks; None if the type of the context is unknown.
    - `chunks`: the number of free chunks; None if the type of the context is unknown.
    - `blocks`: the addresses of its blocks; if they are unknown, only the context's address.
    - `empty`: the number of blocks that PostgreSQL does not include in its number of blocks."""

    total: int
    free: Optional[int]
    chunks: Optional[int]
    blocks: list[int]
    empty: int = 0


class BlockLists:
    """Reads contexts that have lists of blocks.

    A node has one previous node, so it belongs to one list. The number of all lists that are read
    is limited. These two facts limit the time, even if the memory is damaged."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._left = MOST_LISTS

    def read(self, address: int, allocated: int) -> Optional[Usage]:
        """Return the memory of the Slab, Generation or Bump context at an address; None if it is
        none of them, or damaged. `allocated` is the bytes that PostgreSQL counts for it. Raises
        Interrupted."""
        found = self._read_old_slab(address, allocated)
        for members, size in SLABS:
            found = found or self._read_slab(address, members, size, allocated)
        for head in HEADS if found is None else ():
            blocks = self._nodes(address + head)
            if blocks is None:
                continue
            for place in SIZE_PLACES:
                found = found or self._read_generation(blocks, place, head + LIST, allocated)
            found = found or self._read_bump(blocks, head + LIST, allocated)
            if found is not None:
                break
        return found

    def _nodes(self, head: int) -> Optional[list[int]]:
        """Return the nodes of a list; None if there is no list at `head`. Each node refers to the
        previous one. The head of an empty list refers to itself."""
        words = self._memory.words(head, 2) if self._left else None
        self._left -= bool(self._left)
        if words is None:
            return None
        found, previous, at = list[int](), head, words[1]
        while at != head:
            if len(found) % CHECKED == 0 and self._memory.target.is_interrupted():
                raise Interrupted
            following = self._memory.words(at, 2)
            if following is None or following[0] != previous or len(found) >= MOST:
                return None
            found.append(at)
            previous, at = at, following[1]
        return found if words[0] == previous else None

    def _read_generation(self, blocks: list[int], place: int, size: int, allocated: int) -> Optional[Usage]:
        """Return the memory of a GenerationContext of `size` bytes. A block has its size at the
        offset `place`. Two 32-bit numbers (chunks, free chunks), freeptr and endptr follow."""
        total = free = chunks = 0
        for at in blocks:
            found = self._memory.members(at + place, "PIIPP")
            if found is None or not at < found[3] <= found[4] or found[4] - at != found[0] or found[2] > found[1]:
                return None
            total, free, chunks = total + found[0], free + found[4] - found[3], chunks + found[2]
        return Usage(size + total, free, chunks, blocks) if total == allocated else None

    def _read_bump(self, blocks: list[int], size: int, allocated: int) -> Optional[Usage]:
        """Return the memory of a BumpContext of `size` bytes. Its chunks have no heads, and are not
        freed one by one."""
        total = free = 0
        for at in blocks:
            found = self._memory.words(at + LIST, 2)
            if found is None or not at < found[0] <= found[1]:
                return None
            total, free = total + found[1] - at, free + found[1] - found[0]
        return Usage(total, free, 0, blocks) if blocks and total + size == allocated else None

    def _read_slab(self, address: int, members: str, size: int, allocated: int) -> Optional[Usage]:
        """Return the memory of a SlabContext of PostgreSQL 16 or later, which has `size` bytes."""
        found = self._memory.members(address + 80, members)
        if found is None or not _is_slab(found[0], found[1], found[2], found[3], BLOCK):
            return None
        empty = self._nodes(address + size - EMPTY_LIST)
        lists = [self._nodes(address + size - LIST * (SLAB_LISTS - number)) for number in range(SLAB_LISTS)]
        return self._add_slabs(lists, empty, found[1], found[2], NODE, size, allocated)

    def _read_old_slab(self, address: int, allocated: int) -> Optional[Usage]:
        """Return the memory of a SlabContext of PostgreSQL 15 or earlier. It has a list of blocks
        for each possible number of free chunks in a block."""
        found = self._memory.members(address + 80, "PPPPI")
        if found is None or not _is_slab(found[0], found[1], found[2], found[4], BLOCK_OLD):
            return None
        if found[3] != SLABS_OLD + LIST * (found[4] + 1):
            return None
        lists = [self._nodes(address + SLABS_OLD + LIST * number) for number in range(found[4] + 1)]
        return self._add_slabs(lists, [], found[1], found[2], NODE_OLD, found[3], allocated)

    def _add_slabs(
        self,
        lists: list[Optional[list[int]]],
        empty: Optional[list[int]],
        whole: int,
        block: int,
        node: int,
        size: int,
        allocated: int,
    ) -> Optional[Usage]:
        """Return the memory of a SlabContext of `size` bytes with blocks of `block` bytes, whose
        nodes are at the offset `node`, and with chunks of `whole` bytes."""
        if empty is None or any(one is None for one in lists):
            return None
        used = [at - node for one in lists for at in one or ()]
        if (len(used) + len(empty)) * block != allocated:
            return None
        chunks = sum(self._free_chunks(used, node))
        blocks = [*used, *(at - node for at in empty)]
        return Usage(size + allocated, whole * chunks, chunks, blocks, len(empty))

    def _free_chunks(self, blocks: list[int], node: int) -> Iterator[int]:
        """Yield the number of free chunks of each SlabBlock. Up to PostgreSQL 15, this number
        follows the node. Since 16, it follows the address of the context."""
        for at in blocks:
            yield self._memory.int32(at + (8 if node else LIST)) or 0


def _is_slab(chunk: int, whole: int, block: int, number: int, head: int) -> bool:
    """Return whether these sizes of a Slab are consistent. A chunk has `chunk` bytes, and `whole`
    bytes with its head. A block has `block` bytes: a head of `head` bytes, and `number` chunks."""
    return 0 < chunk < whole < block and 0 < number <= MOST_CHUNKS and number == (block - head) // whole
