"""scudo's blocks: both engines agree; checksums, size classes, and groups of mappings."""

from __future__ import annotations

import struct

import fake
import pytest
from hypothesis import given
from hypothesis import strategies as st

from findleaks.allocators.memory import Memory
from findleaks.allocators.scudo import find, group_spaced
from findleaks.allocators.scudo.checksum import BSD, CRC, UNKNOWN, checksum_of, choose_algorithm
from findleaks.allocators.scudo.engine import DAMAGED, ClassKey, read_blocks
from findleaks.allocators.scudo.layout import ALLOCATED, AVAILABLE, CLASSES, HEADER, MARKER, MOST_SIZE, QUARANTINED, class_size
from findleaks.allocators.scudo.locate import has_records
from findleaks.engine import load
from findleaks.engine.reference.engine import PureEngine
from findleaks.target.arch import X86_64
from findleaks.target.base import Piece, Region

BASE, COOKIE = 0x7F0000010000, 0x10ACE5A3


def pack_header(number: int, state: int, size: int, offset: int, chunk: int, algorithm: int) -> int:
    """Return a header with the right checksum."""
    header = number | state << 8 | size << 12 | offset << 32
    return header | checksum_of(algorithm or CRC, COOKIE, chunk, header) << 48


def test_checksums() -> None:
    """The checksum algorithm is the one that fits the headers."""
    assert checksum_of(CRC, 0, 0, 0) == 0
    right = [(chunk, pack_header(3, ALLOCATED, 50, 0, chunk, CRC)) for chunk in range(BASE, BASE + 960, 96)]
    assert choose_algorithm(COOKIE, right) == CRC
    assert choose_algorithm(COOKIE, [(chunk, pack_header(3, ALLOCATED, 50, 0, chunk, BSD)) for chunk in range(BASE, BASE + 960, 96)]) == BSD
    assert choose_algorithm(COOKIE ^ 1, right) == UNKNOWN == choose_algorithm(COOKIE, [])


def test_classes() -> None:
    sizes = [class_size(number) for number in range(1, CLASSES)]
    assert sizes[:10] == [32, 64, 96, 128, 160, 192, 224, 256, 320, 384] and sizes == sorted(sizes) and sizes[-1] == MOST_SIZE


@given(
    number=st.sampled_from([1, 3, 9]),
    algorithm=st.sampled_from([UNKNOWN, CRC, BSD]),
    blocks=st.lists(
        st.tuples(
            st.sampled_from(["zero", "right", "aligned", "bits", "noise"]),
            st.sampled_from([AVAILABLE, ALLOCATED, QUARANTINED, 3]),
            st.integers(0, 400),
            st.integers(0, 1 << 64 - 1),
        ),
        max_size=12,
    ),
)
def test_engines_agree(number: int, algorithm: int, blocks: list[tuple[str, int, int, int]]) -> None:
    size, data, expected = class_size(number), bytearray(), []
    for sort, state, used, noise in blocks:
        at = BASE + len(data)
        block = bytearray(size)
        if sort == "aligned" and size > 64:
            struct.pack_into("<II", block, 0, MARKER, 32)
            struct.pack_into("<Q", block, 32, pack_header(number, state, used, 2, at + 48, algorithm))
        elif sort != "zero":
            word = pack_header(number, state, used, 0, at + HEADER, algorithm)
            word = noise if sort == "noise" else word ^ 1 << noise % 64 if sort == "bits" else word
            struct.pack_into("<Q", block, 0, word)
        data += block
        expected.append((sort, state, used))
    piece, key = Piece(BASE, memoryview(bytes(data))), ClassKey(number, COOKIE, algorithm)
    first = read_blocks(PureEngine(X86_64), piece, size, key)
    second = read_blocks(load.load(X86_64), piece, size, key)
    assert first == second
    for at, (sort, state, used) in enumerate(expected):
        if sort == "right" and state != 3 and (state == AVAILABLE or used <= size - HEADER):
            assert (first.states[at], first.sizes[at]) == (state, size - HEADER if state == AVAILABLE else used)
        if sort == "bits" and algorithm == CRC:
            assert first.states[at] == DAMAGED  # a CRC detects each flipped bit


def region(start: int, name: str = "", writable: bool = True) -> Region:
    return Region(start, start + 0x40000, True, writable, False, name)


def test_groups_of_mappings() -> None:
    """Mappings are grouped if their lower 32 bits are close to each other, also across a multiple of 64 KiB."""
    starts = [0x7F00_0000_F000 + (number << 32) + number % 3 * 0x1000 for number in range(6)]
    assert group_spaced([region(start) for start in starts])[0] == starts
    assert group_spaced([region(start, "/file") for start in starts]) == []
    assert group_spaced([region(start, writable=False) for start in starts]) == []
    assert group_spaced([region(0x7F00_0000_0000), region(0x7F01_2345_0000)]) == []
    assert group_spaced([region(0x7F00_0000_0000), region(0x7F00_0100_0000)]) == []


@pytest.mark.parametrize(
    ("starts", "stride", "expected"),
    [
        # As in scudo, regions are in random order, and each has a random offset.
        ([BASE + (number * 7 % 45 << 32) + number % 16 * 0x1000 for number in range(45)], 0xB0, True),
        # Tables of programs: reservations of 64 MiB and of 4 GiB, and handles with one such address each
        ([BASE + (number << 26) for number in range(200)], 8, False),
        ([BASE + (number << 32) for number in range(100)], 8, False),
        ([BASE + (number << 32) for number in range(100)], 0x80, False),
        # A few reservations have other distances.
        ([BASE + (number << 32) + number % 3 * 0x1000 for number in range(12)], 0x80, False),
    ],
)
def test_records_of_an_unknown_layout(starts: list[int], stride: int, expected: bool) -> None:
    table = bytearray(stride * len(starts))
    for number, start in enumerate(starts):
        table[number * stride : number * stride + 8] = start.to_bytes(8, "little")
    target = fake.FakeTarget({0x55D0_0000_0000: bytes(0x40) + bytes(table) + bytes(0x1000)})
    assert has_records(Memory(target), 0x55D0_0000_0040 + 5 * stride) == expected


def test_words_of_4_bytes() -> None:
    """In a process with words of 4 bytes, only the names of files are read."""

    class SmallTarget:
        class arch:
            word = 4

        def modules(self) -> list[object]:
            return []

    assert find(SmallTarget(), PureEngine(X86_64), []) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("offset", [8, 96, 1 << 20])
def test_markers_that_point_outside(offset: int) -> None:
    block = struct.pack("<II", MARKER, offset).ljust(96, b"\0")
    for engine in (PureEngine(X86_64), load.load(X86_64)):
        assert read_blocks(engine, Piece(BASE, memoryview(block)), 96, ClassKey(3, COOKIE, CRC)).states == bytearray([DAMAGED])
