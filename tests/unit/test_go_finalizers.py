"""Test reading Go's queues of finalizers and cleanups. Memory that only looks like a block of a queue is not read as one."""

from __future__ import annotations

import struct
from typing import NamedTuple, Optional, cast

import graphs
import pytest
from fake import FakeTarget

from findleaks.allocators.memory import Memory
from findleaks.runtimes.go.cleanup_queue import read_cleanup_queue
from findleaks.runtimes.go.finalizer_queue import QueuedFinalizer, read_finalizer_queue
from findleaks.runtimes.go.types import ARRAY, POINTER, STRUCT, Field, Type, Types
from findleaks.target.base import Range

DATA, CHUNK, HEAP, TYPE, OTHER = 0x500000, 0x7F0000000000, 0xC000000000, 0x400000, 0x400100
CODE = 0x401000
SIZE = 4096


class OneType(NamedTuple):
    kind: int


class FewTypes:
    """Two types: a pointer type at address TYPE, and a structure type at address OTHER."""

    def at(self, address: int) -> Optional[OneType]:
        return {TYPE: OneType(POINTER), OTHER: OneType(STRUCT)}.get(address)


def make_block(number: int, alllink: int, following: int, count: int, of: int = TYPE, unused: bytes = b"") -> bytes:
    records = b"".join(struct.pack("<5Q", 0x450000, HEAP + 4096 * number + 16 * at, 0, TYPE, of) for at in range(count))
    return (struct.pack("<3Q", alllink, following, count) + records + unused).ljust(SIZE, b"\0")


def read_queue(blocks: bytes, head: int = CHUNK) -> list[QueuedFinalizer]:
    target = FakeTarget({DATA: struct.pack("<4Q", 7, head, CHUNK + 3, 0), CHUNK: blocks})
    persistent = [Range(CHUNK, CHUNK + len(blocks))]
    return read_finalizer_queue(Memory(target), graphs.native(), cast(Types, FewTypes()), [Range(DATA, DATA + 32)], persistent)


def test_all_blocks_of_the_list_are_read_once() -> None:
    """The first block has no finalizers. Both links of the third block, to the next block of all and of the queue, refer to the second."""
    found = read_queue(make_block(0, CHUNK + 2 * SIZE, 0, 0) + make_block(1, 0, 0, 101) + make_block(2, CHUNK + SIZE, CHUNK + SIZE, 3))
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
        make_block(0, 0, 0, 2, unused=struct.pack("<5Q", 1, 2, 0, 0, 0)),  # more records than the counter
        make_block(0, 0, 0, 2, of=OTHER),  # the type of an object is not a pointer
        make_block(0, 8, 0, 2),  # a link to memory that the runtime may free
        struct.pack("<3Q", 0, 0, 102).ljust(SIZE, b"\1"),
        make_block(0, 0, 0, 2)[:2048],
    ],
)
def test_other_memory_is_no_block(blocks: bytes) -> None:
    assert read_queue(blocks) == []


def test_a_list_that_refers_to_itself() -> None:
    assert len(read_queue(make_block(0, CHUNK, CHUNK, 1))) == 1
    assert read_queue(make_block(0, 0, 0, 1), head=HEAP) == []


def test_cleanups_among_finalizers() -> None:
    """In Go 1.24, a record without an object is a cleanup. Its function must be in Go's code."""
    records = struct.pack("<10Q", HEAP, 0, 0, 0, 0, 0x450000, HEAP + 64, 0, TYPE, TYPE)
    data = (struct.pack("<3Q", 0, 0, 2) + records).ljust(SIZE, b"\0")
    for function, found in ((CODE + 8, [(HEAP, 0), (0x450000, HEAP + 64)]), (CODE + 4096, [])):
        target = FakeTarget({DATA: struct.pack("<4Q", 7, CHUNK, 0, 0), CHUNK: data, HEAP: struct.pack("<2Q", function, 0)})
        about = cast(Types, FewTypes()), [Range(DATA, DATA + 32)], [Range(CHUNK, CHUNK + SIZE)], [Range(CODE, CODE + 4096)]
        queue = read_finalizer_queue(Memory(target), graphs.native(), *about)
        assert [(one.closure, one.object) for one in queue] == found


class CleanupTypes:
    """Blocks of Go 1.26: a header of 32 bytes, and 20 cleanups of three words."""

    def __init__(self, words: int = 3) -> None:
        count = 480 // (8 * words)
        self._types = {
            1: Type(1, "runtime.cleanupBlock", STRUCT, 512, 0, 0, False),
            2: Type(2, "[]", ARRAY, 8 * words * count, 0, 3, False),
            3: Type(3, "runtime.cleanupFn", STRUCT, 8 * words, 0, 0, False),
        }

    def find(self, name: str) -> Optional[int]:
        return 1 if name == "runtime.cleanupBlock" else None

    def at(self, address: int) -> Optional[Type]:
        return self._types.get(address)

    def field(self, structure: int, path: str) -> Optional[Field]:
        return Field(path, 2, 32)

    def offset(self, structure: int, path: str) -> Optional[int]:
        return {"cleanupBlockHeader.alllink": 16, "cleanupBlockHeader.n": 24}[path]


def read_cleanups(*blocks: tuple[int, int, list[int]], words: int = 3) -> list[int]:
    """Return the last word of each cleanup in the queue. A block: its link, its counter, its words."""
    data = b"".join(struct.pack(f"<4Q{len(own)}Q", 7, 7, link, count, *own).ljust(512, b"\0") for link, count, own in blocks)
    target = FakeTarget({DATA: struct.pack("<4Q", 7, CHUNK, CHUNK + 4096, 0), CHUNK: data, HEAP: struct.pack("<2Q", CODE, 8)})
    about = cast(Types, CleanupTypes(words)), [Range(DATA, DATA + 32)], [Range(CHUNK, CHUNK + len(data))], [Range(CODE, CODE + 4096)]
    return [one.words[-1] for one in read_cleanup_queue(Memory(target), graphs.native(), *about)]


def test_queue_of_cleanups() -> None:
    waits, done = [HEAP, HEAP], [0, 0, 0]
    assert read_cleanups((CHUNK + 512, 3, [*done, *waits, 5, *waits, 6]), (0, 20, [*waits, 7] * 20)) == [5, 6, *[7] * 20]
    assert read_cleanups((CHUNK, 1, [*waits, 5])) == [5]  # a damaged link
    assert read_cleanups((0, 2, [HEAP] * 2), words=1) == [HEAP, HEAP]  # Go 1.25
    for count, own in ((21, [*waits, 5]), (1, [HEAP, DATA, 5]), (1, [*waits, 0]), (2, [*waits, 5, 1, 0, 0])):
        assert read_cleanups((0, count, own)) == []
