"""How long finding takes when everything that bounds it is damaged, or there is a great deal of it."""

from __future__ import annotations

import struct
import time

import pytest
from fake import FakeTarget, thread

from findleaks.allocators.glibc import _take_portion
from findleaks.allocators.glibc.mmapped import find_mmapped
from findleaks.allocators.mappings import MappedChunk
from findleaks.allocators.memory import Memory
from findleaks.errors import Interrupted
from findleaks.libc.loader import table_blocks
from findleaks.libc.stacks import cached_thread_pointers
from findleaks.target.base import Module, Range

HEAD, LIST, CHAIN = 0x10_0000, 0x2C0, 0x4000_0000


def test_rings_that_run_into_each_other_are_walked_once() -> None:
    """Each of 400 threads' lists leads into one chain of 100,000 nodes."""
    threads = 400
    descriptors = [HEAD + 0x1000 * i for i in range(threads)]
    memory = bytearray(0x1000 * threads)
    for i, tcb in enumerate(descriptors):
        struct.pack_into("<QQQ", memory, 0x1000 * i, tcb, 0, tcb)
        struct.pack_into("<QQI", memory, 0x1000 * i + LIST, CHAIN, CHAIN, 100 + i)
    chain = bytearray(b"".join(struct.pack("<QQ", CHAIN + 16 * (i + 1), 0) for i in range(100_000)))
    struct.pack_into("<QQ", chain, 0, HEAD + LIST, HEAD + LIST)  # so that the first thread's list is taken for one
    struct.pack_into("<Q", memory, LIST, CHAIN + 16)
    struct.pack_into("<Q", chain, 24, HEAD + LIST)
    target = FakeTarget(
        {HEAD: bytes(memory), CHAIN: bytes(chain)}, threads=[thread(100 + i, thread_pointer=tcb) for i, tcb in enumerate(descriptors)]
    )
    start = time.process_time()
    cached_thread_pointers(target)
    assert time.process_time() - start < 8


def chunks(*sizes: int) -> list[MappedChunk]:
    made, at = [], 0x1000
    for size in sizes:
        made.append(MappedChunk(at, at, at + size, size - 16))
        at += size
    return made


def test_mapped_chunks_are_dealt_out_by_count_and_size() -> None:
    given = chunks(0x2000, 0x3000, 0x4000, 0x5000)
    assert _take_portion(given, 2, 0x7000) == (given[1:3], [given[0], given[3]])
    assert _take_portion(given, 2, 0x1000) == (given[:2], given[2:])
    assert _take_portion(given, 0, 0) == ([], given)
    assert _take_portion(given, 9, 0x7000) == (given, [])


def test_many_mapped_chunks_are_dealt_out_at_once() -> None:
    given = chunks(*[0x2000] * 40_000, 0x3000)
    start = time.process_time()
    mine, others = _take_portion(given, 20_000, 20_000 * 0x2000 + 0x1000)
    assert (mine, others) == (given[-20_000:], given[:-20_000])
    assert time.process_time() - start < 2


def test_a_linker_of_gigabytes_is_not_searched_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 8 << 20
    target = FakeTarget({CHAIN: bytes(size)}, names={CHAIN: "/lib/ld.so"}, modules=[Module("/lib/ld.so", CHAIN, CHAIN, CHAIN + size)])
    asked: list[int] = []
    pieces = target.pieces
    monkeypatch.setattr(target, "pieces", lambda start, end: asked.append(end - start) or pieces(start, end))
    assert table_blocks(target) == []
    assert 0 < sum(asked) <= 1 << 20


def test_a_look_alike_in_front_does_not_end_the_search_for_mapped_chunks() -> None:
    """Up to the counts of mp_, and of a release whose chunks leave a word unused (2.43), whose sizes need not agree exactly."""

    def chunk(size: int) -> bytes:
        return struct.pack("<QQ", 0, size - 16 | 2).ljust(size, b"\0")

    page = 0x1000
    memory = b"".join([chunk(2 * page), bytes(page), chunk(40 * page), bytes(page), chunk(50 * page)])
    target = FakeTarget({CHAIN: memory})
    found = find_mmapped(Memory(target), 16, [Range(CHAIN, CHAIN + len(memory))], 2, 90 * page)
    assert [mapped.start - CHAIN for mapped in found] == [3 * page, 44 * page]


def test_a_search_of_much_memory_can_be_interrupted() -> None:
    with pytest.raises(Interrupted):
        list(Memory(FakeTarget({CHAIN: bytes(64)}, stop_after=0)).scan(CHAIN, CHAIN + 64))
