"""Slots of std::vector variables behind their last element.

A vector's head is {begin, end, end of storage} (GCC 12 bits/stl_vector.h, _Vector_impl_data; LLVM 16
__vector). Three pointers of a C program may look the same and have elements behind the second one,
such as a cursor's. So only debug information makes sure: it is read where variables look like a
vector with pointers to blocks behind its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Optional

from findleaks.allocators.bulk import pointing
from findleaks.allocators.images import images
from findleaks.debuginfo.members import Type
from findleaks.stale_slots.heap_memory import HeapBlock, HeapMemory
from findleaks.target.base import Piece, Range

MAX_DATA = 1 << 25  # bytes of variables that are searched, of all files
MAX_POINTERS = 50_000  # pointers in them that are examined
MAX_ASKED = 1_000  # variables whose types are looked up

TypeAt = Callable[[int], Optional[Type]]


def stale_slots(memory: HeapMemory, type_of: TypeAt) -> Iterator[Range]:
    """Bytes behind the ends of vectors. `type_of` gives the type of the variable that begins at an
    address."""
    asked = 0
    for head, stale in _suspects(memory):
        asked += 1
        if asked > MAX_ASKED:
            return
        memory.poll()
        if _is_vector(memory, head, type_of):
            yield stale


def _suspects(memory: HeapMemory) -> Iterator[tuple[int, Range]]:
    """(address of what looks like a vector's head, storage behind its end) if there are pointers."""
    heaps = len(memory.blocks)
    if not heaps:
        return
    low, high = memory.blocks.address(0), memory.blocks.address(heaps - 1) + memory.blocks.size(heaps - 1)
    left, pointers, size = MAX_DATA, MAX_POINTERS, memory.size
    for image in images(memory.target):
        for piece in image.pieces(memory.target):
            memory.poll()
            piece = Piece(piece.address, piece.data[: max(left, 0)])
            left -= len(piece.data)
            addresses, values = pointing(memory.engine, piece, low, high)
            for at in range(min(len(addresses) - 2, pointers)):
                begin, end, last = values[at], values[at + 1], values[at + 2]
                if begin <= end < last and addresses[at + 2] - addresses[at] == 2 * size:
                    block = memory.block_at(begin)
                    if block is not None and last <= begin + block.size and _has_pointers(memory, Range(end, last), low, high):
                        yield addresses[at], Range(end, last)
            pointers -= len(addresses)


def _has_pointers(memory: HeapMemory, where: Range, low: int, high: int) -> bool:
    """Whether there are words from `low` to `high` in memory."""
    return any(memory.engine.search(piece, low, high) for piece in memory.target.pieces(*where))


def _is_vector(memory: HeapMemory, head: int, type_of: TypeAt) -> bool:
    """Whether debug information has a std::vector at this address."""
    symbol = memory.target.symbolize(head)
    if symbol is None or not symbol.address <= head < symbol.address + max(symbol.size, 1):
        return False
    declared = type_of(symbol.address)
    found = declared.at(head - symbol.address)[1] if declared is not None else None
    return found is not None and found.name.startswith("vector<") and _has_storage(found, head, memory)


def _has_storage(found: Type, head: int, memory: HeapMemory) -> bool:
    """Whether this is libstdc++'s or libc++'s vector, with its three pointers from its beginning."""
    names = found.member_names()
    return found.size == 3 * memory.size and bool({"_M_impl", "__begin_"} & names)
