"""Find the freed object whose use made a thread access an invalid address.

glibc overwrites the first two words of a block that is freed: with links of a free list, or with a
masked link and a key of the thread cache (malloc/malloc.c of glibc 2.26 to 2.43). Code that calls a
virtual function of a deleted object, or follows the first pointer in it, accesses an address that
is such a word plus a small offset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.terms import State
from findleaks.session import Session
from findleaks.value_classes import NamedTuple

_ALLOCATOR = "glibc"
_WRITTEN = 2  # number of words that glibc overwrites at the start of a freed block
_FARTHEST = 4096  # limit of FreedObject.distance; the offsets of most members are smaller


class FreedObject(NamedTuple):
    """A block that was used after it was freed. `address`: its first byte, to which `register`
    points. `size`: usable bytes. `word`: index in the block of the word that was used as a pointer,
    0 or 1. `distance`: the accessed address minus the value of this word."""

    address: int
    size: int
    register: str
    word: int
    distance: int


def find_freed_object(session: Session, registers: Mapping[str, int], accessed: int) -> Optional[FreedObject]:
    """Return the free block whose use made a thread with these registers access the address
    `accessed`; None if there is none."""
    memory, blocks = Memory(session.target), session.directory.blocks
    for name, value in registers.items():
        index = blocks.find(value)
        if index < 0 or blocks.address(index) != value or blocks.state(index) not in (State.CACHED, State.FREE):
            continue
        part = session.directory.owner(value)
        if part is None or part.allocator.name != _ALLOCATOR:
            continue
        for number, word in enumerate(memory.words(value, _WRITTEN) or ()):
            if word >= session.target.arch.page and 0 <= accessed - word < _FARTHEST:
                return FreedObject(value, blocks.size(index), name, number, accessed - word)
    return None
