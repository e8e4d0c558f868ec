"""Reading bytes by address: extents, gaps, words, pieces, and the fake target of other tests."""

from __future__ import annotations

import ctypes
import mmap

import pytest
from fake import FakeTarget, thread

from findleaks.errors import UnreadableMemory
from findleaks.target.arch import X86_64
from findleaks.target.base import PIECE, Module, Range, Symbol, Target
from findleaks.target.ranges import gaps
from findleaks.target.reader import Extent, ExtentReader, Source, Zeros, disjoint, map_file


def source(data: bytes) -> Source:
    return Source(memoryview(bytearray(data)))


def reader(*parts: tuple[int, bytes]) -> ExtentReader:
    return ExtentReader(X86_64, disjoint([Extent(start, start + len(data), 0, source(data)) for start, data in parts]))


def test_read_within_and_across_extents() -> None:
    memory = reader((0x1000, b"a" * 16), (0x1010, b"b" * 16), (0x2000, b"c" * 16))
    assert memory.read(0x1000, 4) == b"aaaa"
    assert memory.read(0x100E, 4) == b"aabb"
    assert memory.read(0x1000, 32) == b"a" * 16 + b"b" * 16
    assert memory.read(0x5000, 0) == b""


@pytest.mark.parametrize(("address", "size"), [(0xFFF, 1), (0x1020, 1), (0x101F, 2), (0x1000, 1 << 60), (0x1FFF, 2), (1 << 64, 8)])
def test_read_is_never_short(address: int, size: int) -> None:
    memory = reader((0x1000, b"a" * 16), (0x1010, b"b" * 16), (0x2000, b"c" * 16))
    with pytest.raises(UnreadableMemory) as caught:
        memory.read(address, size)
    assert caught.value.address == address
    assert hex(address) in str(caught.value)


def test_word_at_every_offset() -> None:
    data = bytes(range(64))
    memory = reader((0x1000, data[:32]), (0x1020, data[32:]))
    for at in range(57):
        assert memory.word(0x1000 + at) == int.from_bytes(data[at : at + 8], "little")
    for at in range(57, 64):
        with pytest.raises(UnreadableMemory):
            memory.word(0x1000 + at)
    with pytest.raises(UnreadableMemory):
        memory.word(0xFFF)
    assert memory.word(0x1000) == 0x0706050403020100


def test_pieces_leave_out_gaps_and_are_writable() -> None:
    memory = reader((0x1000, b"a" * 16), (0x2000, b"c" * 16))
    pieces = list(memory.pieces(0x1008, 0x2004))
    assert [(p.address, bytes(p.data)) for p in pieces] == [(0x1008, b"a" * 8), (0x2000, b"cccc")]
    for piece in pieces:
        assert piece.data.format == "B"
        assert piece.data.c_contiguous
        assert ctypes.addressof(ctypes.c_char.from_buffer(piece.data))
    assert list(memory.pieces(0x1010, 0x2000)) == []
    assert list(memory.pieces(0, 0x1000)) == []


def test_pieces_are_not_longer_than_the_limit() -> None:
    size = 2 * PIECE + 5
    memory = ExtentReader(X86_64, [Extent(0x10000, 0x10000 + size, 0, Zeros(size))])
    pieces = list(memory.pieces(0, 1 << 64))
    assert [len(p.data) for p in pieces] == [PIECE, PIECE, 5]
    assert [p.address for p in pieces] == [0x10000, 0x10000 + PIECE, 0x10000 + 2 * PIECE]


def test_pieces_of_read_only_memory_are_copies() -> None:
    memory = ExtentReader(X86_64, [Extent(0, 4, 0, Source(memoryview(b"abcd")))])
    (piece,) = memory.pieces(0, 4)
    assert not piece.data.readonly
    assert bytes(piece.data) == b"abcd"


def test_overlapping_extents_are_cut() -> None:
    first, second, third = source(b"a" * 16), source(b"b" * 16), source(b"c" * 4)
    cut = disjoint([Extent(8, 24, 0, second), Extent(0, 16, 0, first), Extent(2, 6, 0, third), Extent(30, 30, 0, third)])
    assert [(e.start, e.end, e.offset) for e in cut] == [(0, 16, 0), (16, 24, 8)]


def test_gaps() -> None:
    covered = [Extent(10, 20, 0, source(b"")), Extent(20, 30, 0, source(b"")), Extent(40, 50, 0, source(b""))]
    starts = [e.start for e in covered]
    assert list(gaps(0, 60, covered, starts)) == [(0, 10), (30, 40), (50, 60)]
    assert list(gaps(12, 28, covered, starts)) == []
    assert list(gaps(15, 35, covered, starts)) == [(30, 35)]
    assert list(gaps(32, 38, covered, starts)) == [(32, 38)]
    assert list(gaps(5, 5, covered, starts)) == []
    assert list(gaps(0, 5, [], [])) == [(0, 5)]


def test_mapped_file_is_not_written_to(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * mmap.PAGESIZE)
    with path.open("rb") as file:
        view = map_file(file.fileno(), mmap.PAGESIZE)
    view[0] = 1
    assert path.read_bytes()[:1] == b"x"


def test_closing_while_a_piece_is_held() -> None:
    memory = ExtentReader(X86_64, [Extent(0, 4096, 0, Zeros(4096))])
    (piece,) = memory.pieces(0, 4096)
    memory.close()
    assert bytes(piece.data[:4]) == bytes(4)
    with pytest.raises(UnreadableMemory):
        memory.read(0, 1)


def test_fake_is_a_whole_target() -> None:
    symbol = Symbol("main", 0x5000, 16, "prog")
    fake: Target = FakeTarget(
        {0x2000: b"b" * 16, 0x1000: b"a" * 16},
        names={0x1000: "[stack]"},
        permissions={0x2000: "r-x"},
        threads=[thread(7, sp=0x1008, thread_pointer=0x2000)],
        modules=[Module("/bin/prog", 0x5000, 0x5000, 0x6000)],
        symbols=[symbol],
        absent=[Range(0x3000, 0x4000)],
        stop_after=2,
    )
    assert [(r.start, r.name, r.executable) for r in fake.regions()] == [
        (0x1000, "[stack]", False),
        (0x2000, "", True),
        (0x3000, "", False),
    ]
    assert fake.threads()[0].sp == fake.threads()[0].registers["rsp"] == 0x1008
    assert 0x2000 in fake.threads()[0].words
    assert fake.symbol("main") == fake.symbolize(0x500F) == symbol
    assert fake.symbol("main", "libc") is None
    assert fake.symbolize(0x5010) is None
    assert [fake.is_interrupted() for _ in range(4)] == [False, False, True, True]
    with pytest.raises(UnreadableMemory):
        fake.word(0x3000)


def test_fake_can_be_written_to() -> None:
    fake = FakeTarget({0x1000: bytes(16)})
    fake.write_word(0x1008, 0x1122334455667788)
    assert fake.word(0x1008) == 0x1122334455667788
    assert fake.read(0x1008, 2) == b"\x88\x77"
    with pytest.raises(ValueError, match="0x100c"):
        fake.write(0x100C, bytes(8))


def test_adjacent_extents_are_merged() -> None:
    """Extents that are adjacent in memory and in the file become one. Most mappings of a core are adjacent."""
    one, other = source(bytes(range(64))), source(bytes(64))
    joined = disjoint([Extent(0x1010, 0x1020, 16, one), Extent(0x1000, 0x1010, 0, one), Extent(0x1020, 0x1030, 32, one)])
    assert joined == [Extent(0x1000, 0x1030, 0, one)]
    assert ExtentReader(X86_64, joined).read(0x100E, 4) == bytes((14, 15, 16, 17))
    apart = [
        Extent(0x1000, 0x1010, 0, one),
        Extent(0x1010, 0x1020, 24, one),
        Extent(0x1020, 0x1030, 40, other),
        Extent(0x1031, 0x1032, 1, one),
    ]
    assert disjoint(apart) == apart
