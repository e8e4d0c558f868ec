"""Read the memory contexts of PostgreSQL whose blocks are in doubly linked lists: Generation, Slab
and Bump.

The type of a context is the one whose blocks have all bytes that PostgreSQL counts for the context.

Sources: generation.c, slab.c, bump.c (src/backend/utils/mmgr) and src/include/lib/ilist.h of
PostgreSQL 13 to 18, for 64-bit programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.value_classes import NamedTuple

HEADS = range(96, 152, 8)
"""Offsets in a context of the list of its blocks, which is the last member of a GenerationContext
and of a BumpContext."""
LIST = 16  # bytes of a list's head (dlist_head) and of a node: previous and next node
SIZE_PLACES = (16, 24)  # offset of the size in a GenerationBlock: up to 15, and since 16
SLABS_OLD = 128  # bytes of a SlabContext before its lists, up to 15
SLABS = (("PPPI", 192), ("IIII", 176))
"""In a SlabContext, the members from offset 80 on (bytes of a chunk without and with its head,
bytes of a block, number of chunks in a block), and its own bytes: in 16, and since 17."""
SLAB_LISTS = 3  # lists of blocks in use, at the end of a SlabContext
EMPTY_LIST = 72  # bytes from the list of empty blocks to the end of a SlabContext
NODE_OLD, NODE = 0, 32  # offset of the node in a SlabBlock
BLOCK_OLD, BLOCK = 24, 48  # bytes of the head of a SlabBlock
MOST = 1 << 20  # blocks of one context
MOST_LISTS = 1 << 22  # of all contexts
MOST_CHUNKS = 1 << 16  # of one block of a Slab


class Usage(NamedTuple):
    """The memory of one context, as pg_log_backend_memory_contexts counts it.

    `total` is the bytes of its blocks and of the context itself. `free` is the unused bytes in its
    blocks, `chunks` the number of free chunks; both are None if the type of the context is unknown.
    `blocks` lists the addresses of its blocks, or that of the context if they are unknown. `empty`
    is the number of blocks that PostgreSQL does not count."""

    total: int
    free: Optional[int]
    chunks: Optional[int]
    blocks: list[int]
    empty: int = 0


class BlockLists:
    """Reads contexts that have lists of blocks.

    A node has one previous node, so it belongs to one list. A limit on the number of all lists
    bounds the time, even if the memory is damaged."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._left = MOST_LISTS

    def read(self, address: int, allocated: int) -> Optional[Usage]:
        """Return the memory of the Slab, Generation or Bump context at an address; None if it is
        none of them, or damaged. `allocated` is the bytes that PostgreSQL counts for it."""
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
            following = self._memory.words(at, 2)
            if following is None or following[0] != previous or len(found) >= MOST:
                return None
            found.append(at)
            previous, at = at, following[1]
        return found if words[0] == previous else None

    def _read_generation(self, blocks: list[int], place: int, size: int, allocated: int) -> Optional[Usage]:
        """Return the memory of a GenerationContext of `size` bytes. In a block, its size is at
        `place`; two 32-bit numbers (chunks, free chunks), freeptr and endptr follow."""
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
        """Return the memory of a SlabContext of `size` bytes since PostgreSQL 16."""
        found = self._memory.members(address + 80, members)
        if found is None or not _is_slab(found[0], found[1], found[2], found[3], BLOCK):
            return None
        empty = self._nodes(address + size - EMPTY_LIST)
        lists = [self._nodes(address + size - LIST * (SLAB_LISTS - number)) for number in range(SLAB_LISTS)]
        return self._add_slabs(lists, empty, found[1], found[2], NODE, size, allocated)

    def _read_old_slab(self, address: int, allocated: int) -> Optional[Usage]:
        """Return the memory of a SlabContext up to PostgreSQL 15. It has a list for each number of
        free chunks of a block."""
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
        """Yield the number of free chunks of each SlabBlock. It follows the node up to 15, and the
        address of the context since 16."""
        for at in blocks:
            yield self._memory.int32(at + (8 if node else LIST)) or 0


def _is_slab(chunk: int, whole: int, block: int, number: int, head: int) -> bool:
    """Return whether sizes are possible: the bytes of a chunk without and with its head, and of a
    block, and the number of chunks in a block, whose head has `head` bytes."""
    return 0 < chunk < whole < block and 0 < number <= MOST_CHUNKS and number == (block - head) // whole
