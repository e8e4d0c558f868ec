"""findleaks identifies heaps of glibc in a truncated core without main_arena by their chunks alone."""

from __future__ import annotations

from typing import Any

import fake
import pytest

from findleaks.allocators.glibc import remains
from findleaks.allocators.glibc.engine import SoundChunks, sound_chunks
from findleaks.allocators.glibc.instance import Glibc
from findleaks.engine.reference.engine import PureEngine
from findleaks.target.arch import X86_64
from findleaks.target.base import Range

START, PAGE, SIZE = 0x10000, 4096, 0x40


def make_chunks(count: int) -> bytearray:
    """Return `count` chunks of SIZE bytes. Every seventh chunk is free. The rest of the last page is the top."""
    data = bytearray()
    for number in range(count):
        after_free = number % 7 == 1
        data += (SIZE if after_free else 0).to_bytes(8, "little") + (SIZE | (not after_free)).to_bytes(8, "little") + bytes(SIZE - 16)
    left = -len(data) % PAGE
    return data + (bytes(8) + (left | 1).to_bytes(8, "little")).ljust(left, b"\0") if left else data


def find_spans(target: fake.FakeTarget) -> list[tuple[int, int, bool]]:
    found = remains.find_remains(target, PureEngine(X86_64), [Range(one.start, one.end) for one in target.regions()])
    return [(span.start, span.stop, bool(span.metadata)) for span in found.lost_spans or []] if found is not None else []


@pytest.mark.parametrize("piece", [1 << 26, PAGE, PAGE + 8])
def test_heap_in_several_pieces(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("findleaks.target.reader.PIECE", piece)
    assert find_spans(fake.FakeTarget({START: bytes(make_chunks(1000))})) == [(START, START + 1000 * SIZE, False)]
    # A fencepost ends a heap; other memory follows.
    fence = b"".join(number.to_bytes(8, "little") for number in (0, 0x11, 0, 0x11))
    heap = bytes(make_chunks(1023)[: 1023 * SIZE]) + bytes(8) + (SIZE // 2 | 1).to_bytes(8, "little") + bytes(16) + fence
    assert find_spans(fake.FakeTarget({START: heap + bytes(PAGE)})) == [(START, START + len(heap) - len(fence), True)]


def test_heap_before_an_mmapped_chunk() -> None:
    """The kernel has merged the mapping of a heap with that of an mmapped chunk. The heap has one chunk and the top."""
    for head, expected in ((PAGE | 2, [(START, START + SIZE, False)]), (2 * PAGE | 2, []), (PAGE | 6, []), (PAGE + 16 | 2, [])):
        mapped = (bytes(8) + head.to_bytes(8, "little")).ljust(PAGE, b"\0")
        assert find_spans(fake.FakeTarget({START: bytes(make_chunks(1)) + mapped})) == expected


def test_damaged_heap_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks begin at all pages. Chunks before the damage are read only once, and not again for each page."""
    headers = 0

    def count_headers(*words: Any) -> SoundChunks:
        nonlocal headers
        found = sound_chunks(*words)
        headers += found.headers
        return found

    monkeypatch.setattr(remains, "sound_chunks", count_headers)
    chunks = make_chunks(6400 - 7)
    chunks[3200 * SIZE + 8] = 7
    assert find_spans(fake.FakeTarget({START: bytes(chunks)})) == [(START + 3264 * SIZE, START + 6393 * SIZE, False)]
    assert headers < 2 * 6400


@pytest.mark.parametrize("numbers", [(65, 65), (0, 33)])
def test_arrays_of_equal_numbers_are_no_heaps(numbers: tuple[int, int]) -> None:
    content = b"".join(number.to_bytes(8, "little") for number in numbers) * (PAGE // 16)
    assert find_spans(fake.FakeTarget({START: content * 16})) == []


def test_core_without_heaps_that_can_be_read() -> None:
    """The arena of a thread may have a damaged heap_info, so that no heap is left."""
    target = fake.FakeTarget({START: bytes(make_chunks(1000))})
    engine = PureEngine(X86_64)
    found = remains.find_remains(target, engine, [Range(START, START + 1000 * SIZE + PAGE)])
    assert found is not None
    found.lost_spans = []
    allocator = Glibc(target, engine, found)
    allocator.claim_main([])
    assert "main_arena is in the missing part" in allocator.problems[-1].what
