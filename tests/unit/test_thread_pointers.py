"""How findleaks finds thread pointers in memory, on machines where thread-local variables are above the thread pointer."""

from __future__ import annotations

import struct

from fake import FakeTarget

from findleaks.target.arch import ARM
from findleaks.target.base import Thread
from findleaks.target.thread_pointers import add_thread_pointers

STACKS, HEAP = (0xB6000000, 0xB6100000, 0xB6200000), 0xB4000000
TID, POINTER = 0x6000, 0x6000 + 1112  # in each stack; the offset in struct pthread of glibc 2.31


def test_a_vector_like_that_of_musl_is_not_mistaken() -> None:
    """A word of struct pthread refers to a small number and an address above it, as the word before a thread pointer
    refers to musl's DTV. The evidence for glibc's own vector, farther above, is stronger."""
    stacks = {start: bytearray(0x8000) for start in STACKS}
    heap = bytearray(0x1000)

    def put(start: int, offset: int, *words: int) -> None:
        struct.pack_into(f"<{len(words)}I", stacks[start], offset, *words)

    for number, start in enumerate(STACKS):
        after, before = STACKS[(number + 1) % 3], STACKS[number - 1]
        put(start, TID - 8, after + TID - 8, before + TID - 8, 100 + number)
        put(start, TID + 292, start + 0x7000)  # before the wrong vector, which is 296 bytes after the id
        put(start, 0x7000, 1, start + 0x7800)
        put(start, POINTER, HEAP + 256 * number + 8)
        struct.pack_into("<6I", heap, 256 * number, 18, 0, 1, 0, start + POINTER + 8, 0)
    threads = [Thread(100 + number, {}, start + 0x5000, 0, 0, ()) for number, start in enumerate(STACKS)]
    target = FakeTarget({**{start: bytes(data) for start, data in stacks.items()}, HEAP: bytes(heap)}, threads=threads, arch=ARM)
    assert [thread.thread_pointer - thread.sp + 0x5000 for thread in add_thread_pointers(target, threads)] == [POINTER] * 3
