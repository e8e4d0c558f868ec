"""Lists of free blocks, in which each free block refers to the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from findleaks.allocators.memory import Memory


def follow_free_list(memory: Memory, head: int, link: int, block_of: Callable[[int], Optional[int]], found: set[int]) -> int:
    """Add the blocks of a list of free blocks to `found`. Return the address at which the list is
    damaged: the address is in no block, or in one that is in `found` already. Return 0 if the list
    is intact.

    `head`: the address of the first element, 0 if the list is empty. `link`: the offset of the next
    element's address in an element. `block_of`: returns the start of the block of an element, None
    if there is no such block."""
    at = head
    while at:
        block = block_of(at)
        if block is None or block in found:
            return at
        found.add(block)
        at = memory.word(at + link) or 0
    return 0
