"""The time of finding blocks if all structures that limit it are damaged, or if there are very many of them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from fake import FakeTarget, thread
from hostile import lines_run

from findleaks.allocators.glibc import _take_portion
from findleaks.allocators.glibc.mmapped import find_mmapped
from findleaks.allocators.mappings import MappedChunk
from findleaks.allocators.memory import Memory
from findleaks.errors import Interrupted
from findleaks.libc.loader import table_blocks
from findleaks.libc.stacks import ended_thread_pointers
from findleaks.target.base import Module, Range

HEAD, LIST, CHAIN = 0x10_0000, 0x2C0, 0x4000_0000


def test_rings_that_merge_are_walked_once() -> None:
    """Each of 400 threads has a list that leads into one chain of 100,000 nodes."""
    threads = 400
    descriptors = [HEAD + 0x1000 * i for i in range(threads)]
    memory = bytearray(0x1000 * threads)
    for i, tcb in enumerate(descriptors):
        struct.pack_into("<QQQ", memory, 0x1000 * i, tcb, 0, tcb)
        struct.pack_into("<QQI", memory, 0x1000 * i + LIST, CHAIN, CHAIN, 100 + i)
    chain = bytearray(b"".join(struct.pack("<QQ", CHAIN + 16 * (i + 1), 0) for i in range(100_000)))
    struct.pack_into("<QQ", chain, 0, HEAD + LIST, HEAD + LIST)  # the list of the first thread looks like a list header
    struct.pack_into("<Q", memory, LIST, CHAIN + 16)
    struct.pack_into("<Q", chain, 24, HEAD + LIST)
    target = FakeTarget(
        {HEAD: bytes(memory), CHAIN: bytes(chain)}, threads=[thread(100 + i, thread_pointer=tcb) for i, tcb in enumerate(descriptors)]
    )
    assert lines_run(lambda: ended_thread_pointers(target)) < 5_000_000


def make_chunks(*sizes: int) -> list[MappedChunk]:
    made, at = [], 0x1000
    for size in sizes:
        made.append(MappedChunk(at, at, at + size, size - 16))
        at += size
    return made


def test_mapped_chunks_are_selected_by_count_and_size() -> None:
    given = make_chunks(0x2000, 0x3000, 0x4000, 0x5000)
    assert _take_portion(given, 2, 0x7000) == (given[1:3], [given[0], given[3]])
    assert _take_portion(given, 2, 0x1000) == (given[:2], given[2:])
    assert _take_portion(given, 0, 0) == ([], given)
    assert _take_portion(given, 9, 0x7000) == (given, [])


def test_many_mapped_chunks_are_selected_in_one_step() -> None:
    given = make_chunks(*[0x2000] * 40_000, 0x3000)
    dealt: list[object] = []
    lines_run(lambda: dealt.append(_take_portion(given, 20_000, 20_000 * 0x2000 + 0x1000)), 1_000_000)
    assert dealt == [(given[-20_000:], given[:-20_000])]


def test_a_linker_of_gigabytes_is_not_searched_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 8 << 20
    target = FakeTarget({CHAIN: bytes(size)}, names={CHAIN: "/lib/ld.so"}, modules=[Module("/lib/ld.so", CHAIN, CHAIN, CHAIN + size)])
    asked: list[int] = []
    pieces = target.pieces
    monkeypatch.setattr(target, "pieces", lambda start, end: asked.append(end - start) or pieces(start, end))
    assert table_blocks(target) == []
    assert 0 < sum(asked) <= 1 << 20


@pytest.mark.parametrize(
    ("pages", "kept"),
    [
        ([2, 40, 50], [40, 50]),  # before the others
        ([33, 7, 40, 50, 1200, 60], [33, 40, 50, 60]),  # in the middle: only these sizes add up to the surplus
        ([30, 20, 10, 20], [30, 20, 10, 20]),  # both chunks of 20 pages, or the other two: all are kept
    ],
)
def test_memory_that_looks_like_mapped_chunks(pages: Sequence[int], kept: Sequence[int]) -> None:
    page = 0x1000
    memory = b"".join(struct.pack("<QQ", 0, size * page - 16 | 2).ljust((size + 1) * page, b"\0") for size in pages)
    target = FakeTarget({CHAIN: memory})
    count, size = (len(kept), sum(kept)) if kept != pages else (2, 40)
    found = find_mmapped(Memory(target), 16, [Range(CHAIN, CHAIN + len(memory))], count, size * page)
    assert [(mapped.end - mapped.start) // page for mapped in found] == kept


def test_large_memory_is_searched_last_for_mapped_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    page, heap, count = 0x1000, 0x1000_0000, 3
    chunks = b"".join(struct.pack("<QQ", 0, 2 * page - 16 | 2).ljust(2 * page, b"\0") for _ in range(count))
    target = FakeTarget({heap: bytes(16 * len(chunks)), CHAIN: chunks, CHAIN << 1: chunks})
    free = [Range(start, start + len(target.read(start, size))) for start, size in ((heap, 16 * len(chunks)), (CHAIN, len(chunks)))]
    read: list[int] = []
    pieces = target.pieces
    monkeypatch.setattr(target, "pieces", lambda start, end: read.append(start) or pieces(start, end))
    found = find_mmapped(Memory(target), 16, free, count, len(chunks))
    assert [mapped.start for mapped in found] == [CHAIN + at * 2 * page for at in range(count)]
    assert read and min(read) >= CHAIN, "the heap was searched"
    free = [Range(CHAIN, CHAIN + len(chunks)), Range(CHAIN << 1, (CHAIN << 1) + 2 * page), free[0]]
    found = find_mmapped(Memory(target), 16, free, None, None)
    assert [mapped.start for mapped in found] == sorted(mapped.start for mapped in found)
    assert len(found) == count + 1


def test_a_search_of_much_memory_can_be_interrupted() -> None:
    with pytest.raises(Interrupted):
        list(Memory(FakeTarget({CHAIN: bytes(64)}, stop_after=0)).scan(CHAIN, CHAIN + 64))
