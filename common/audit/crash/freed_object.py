"""Find the freed object whose use made a thread access an invalid address.

glibc overwrites the first two words of a block that is freed: with links of a free list, or with a
masked link and a key of the thread cache (malloc/malloc.c of glibc 2.26 to 2.43). Code that calls a
virtual function of a deleted object, or follows the first pointer in it, accesses an address that
is such a word plus a small offset.

Many freed blocks have the same words: the key, and a masked link to no block, which is the number
of the page. A register may still point to another one of these blocks. Therefore the code must show
that the word was loaded from the block, or no other freed block may have the word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.audit.crash.value_origin import Origin
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


def find_freed_object(session: Session, registers: Mapping[str, int], accessed: int, origin: Optional[Origin]) -> Optional[FreedObject]:
    """Return the free block whose use made a thread with these registers access the address
    `accessed`; None if there is none, or if it is not certain which block it is. `origin`: where
    the pointer was loaded from, if it is known."""
    memory, word = Memory(session.target), session.target.arch.word
    names: dict[int, str] = {}  # the first register with each value
    for name, value in registers.items():
        names.setdefault(value, name)
    for value, name in names.items():
        if not _is_written(session, value):
            continue
        for number, content in enumerate(memory.words(value, _WRITTEN) or ()):
            if content < session.target.arch.page or not 0 <= accessed - content < _FARTHEST:
                continue
            place = value + number * word
            is_loaded = origin is not None and origin.sort == "memory"
            is_certain = origin.address == place if origin is not None and is_loaded else _is_unique(session, place, content)
            if is_certain:
                size = session.directory.blocks.size(session.directory.blocks.find(value))
                return FreedObject(value, size, name, number, accessed - content)
    return None


def _is_written(session: Session, address: int) -> bool:
    """Whether a free block of glibc starts at an address."""
    blocks, part = session.directory.blocks, session.directory.owner(address)
    index = blocks.find(address)
    is_free = index >= 0 and blocks.address(index) == address and blocks.state(index) in (State.CACHED, State.FREE)
    return is_free and part is not None and part.allocator.name == _ALLOCATOR


def _is_unique(session: Session, place: int, content: int) -> bool:
    """Whether no other free block has this content in one of its first words."""
    blocks, word = session.directory.blocks, session.target.arch.word
    for piece in session.pieces(session.heap_ranges(), "searching for freed blocks", dead=True):
        for other in session.engine.search(piece, content, content + 1):
            index = blocks.find(other)
            if other != place and index >= 0 and other - blocks.address(index) < _WRITTEN * word and blocks.state(index) != State.IN_USE:
                return False
    return True
