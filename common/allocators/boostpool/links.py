"""The links between the blocks of a pool of Boost.Pool; see pools.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from findleaks.allocators.base import size_at
from findleaks.allocators.memory import Memory

if TYPE_CHECKING:
    from findleaks.engine.contract import Blocks

_SLACK = 16  # glibc's blocks exceed the requested size by fewer bytes
LARGE, PAGE = (128 << 10) - 64, 4096
"""malloc may map blocks of at least LARGE bytes. Their usable size may
then exceed the requested size by one more page."""
TRAILER = 16  # bytes of the address and the size of the next block
END = 0, 0  # address and size of the next block at the end of the last block


def read_link(memory: Memory, address: int, size: int) -> Optional[tuple[int, int]]:
    """Return the address and the size of the next block that are at the end of a block of a pool.
    Return None if they cannot be read."""
    words = memory.words(address + size - TRAILER, 2)
    return (words[0], words[1]) if words is not None else None


def is_link(blocks: Blocks, address: int, size: int) -> bool:
    """Whether a block in use with this requested size is at an address."""
    return address > 0 and size > TRAILER and is_request(address, size_at(blocks, address), size)


def is_request(address: int, usable: int, size: int) -> bool:
    """Whether malloc may have returned a block of `usable` bytes at an address for a request of
    `size` bytes."""
    return address % 16 == 0 and 0 <= usable - size < (_SLACK if size < LARGE else PAGE + _SLACK)
