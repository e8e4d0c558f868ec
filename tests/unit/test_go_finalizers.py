"""Test reading Go's queue of finalizers. Memory that only looks like a block of the queue is not read as one."""

from __future__ import annotations

import struct
from typing import NamedTuple, Optional, cast

import graphs
import pytest
from fake import FakeTarget

from findleaks.allocators.memory import Memory
from findleaks.runtimes.go.finalizer_queue import QueuedFinalizer, read_finalizer_queue
from findleaks.runtimes.go.types import POINTER, STRUCT, Types
from findleaks.target.base import Range

DATA, CHUNK, HEAP, TYPE, OTHER = 0x500000, 0x7F0000000000, 0xC000000000, 0x400000, 0x400100
SIZE = 4096


class OneType(NamedTuple):
    kind: int


class FewTypes:
    """Two types: a pointer type at the address TYPE, and a structure type at OTHER."""

    def at(self, address: int) -> Optional[OneType]:
        return {TYPE: OneType(POINTER), OTHER: OneType(STRUCT)}.get(address)


def block(number: int, alllink: int, following: int, count: int, of: int = TYPE, unused: bytes = b"") -> bytes:
    records = b"".join(struct.pack("<5Q", 0x450000, HEAP + 4096 * number + 16 * at, 0, TYPE, of) for at in range(count))
    return (struct.pack("<3Q", alllink, following, count) + records + unused).ljust(SIZE, b"\0")


def queued(blocks: bytes, head: int = CHUNK) -> list[QueuedFinalizer]:
    target = FakeTarget({DATA: struct.pack("<4Q", 7, head, CHUNK + 3, 0), CHUNK: blocks})
    persistent = [Range(CHUNK, CHUNK + len(blocks))]
    return read_finalizer_queue(Memory(target), graphs.native(), cast(Types, FewTypes()), [Range(DATA, DATA + 32)], persistent)


def test_all_blocks_of_the_list_are_read_once() -> None:
    """The first block has no finalizers. Both links of the third block, to the next block of all and of the queue, refer to the second."""
    found = queued(block(0, CHUNK + 2 * SIZE, 0, 0) + block(1, 0, 0, 101) + block(2, CHUNK + SIZE, CHUNK + SIZE, 3))
    assert sorted(one.object for one in found) == [
        *(HEAP + 4096 + 16 * at for at in range(101)),
        *(HEAP + 8192 + 16 * at for at in range(3)),
    ]
    one = next(one for one in found if one.object == HEAP + 8192)
    place = CHUNK + 2 * SIZE + 24
    assert one.pointers() == [(place, 0x450000), (place + 8, HEAP + 8192), (place + 32, TYPE)]


@pytest.mark.parametrize(
    "blocks",
    [
        block(0, 0, 0, 2, unused=struct.pack("<5Q", 1, 2, 0, 0, 0)),  # more records than the counter says
        block(0, 0, 0, 2, of=OTHER),  # the type of an object is no pointer
        block(0, 8, 0, 2),  # a link to memory that the runtime may free
        struct.pack("<3Q", 0, 0, 102).ljust(SIZE, b"\1"),
        block(0, 0, 0, 2)[:2048],
    ],
)
def test_other_memory_is_no_block(blocks: bytes) -> None:
    assert queued(blocks) == []


def test_a_list_that_refers_to_itself() -> None:
    assert len(queued(block(0, CHUNK, CHUNK, 1))) == 1
    assert queued(block(0, 0, 0, 1), head=HEAP) == []
