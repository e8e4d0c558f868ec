"""Frames of PHP: their unused words, and limits for damaged stacks."""

from __future__ import annotations

import struct

import pytest
from fake import FakeTarget

from findleaks.allocators.memory import Memory
from findleaks.runtimes.php.frames import FRAME, INSTRUCTION, PLACES, VALUE, FrameReader
from findleaks.target.base import Range

STACK, FUNCTION, CODE, LIVE = 0x10000, 0x20000, 0x30000, 0x40000
VARIABLES, TEMPORARIES = 3, 6


def make_image(version: str, previous: int, live: list[tuple[int, int, int]], operand: int = 0, number: int = 4) -> Memory:
    """Return a process with a frame at STACK that executes instruction `number`. `operand`: the offset of the temporary
    value that is the instruction's first operand, or 0 if it has none."""
    places, function, code = PLACES[version], bytearray(256), bytearray(20 * INSTRUCTION)
    function[0] = 2
    struct.pack_into("<I", function, places.variables, VARIABLES)
    struct.pack_into("<I", function, places.temporaries, TEMPORARIES)
    struct.pack_into("<Q", function, places.instructions, CODE)
    struct.pack_into("<IIQ", function, places.live_ranges, len(live), 0, LIVE)
    if operand:
        struct.pack_into("<I", code, number * INSTRUCTION + 8, operand)
        code[number * INSTRUCTION + 29] = 2
    ranges = b"".join(struct.pack("<III", *one) for one in live) or bytes(8)
    frame = struct.pack("<10Q", CODE + number * INSTRUCTION, 0, 0, FUNCTION, 0, 0, previous, 0, 0, 0)
    return Memory(FakeTarget({STACK: frame.ljust(1024, b"\0"), FUNCTION: bytes(function), CODE: bytes(code), LIVE: ranges}))


def find_temporary(number: int) -> int:
    """Return the offset of a temporary value in the frame."""
    return FRAME + VALUE * (VARIABLES + number)


@pytest.mark.parametrize("version", PLACES)
def test_temporary_values(version: str) -> None:
    """A temporary value is in use in its live ranges, and if it is an operand of the instruction. The lowest bits of a live range's
    offset are its kind."""
    live = [(find_temporary(1) | 2, 2, 4), (find_temporary(2), 5, 9), (find_temporary(5), 0, 20)]
    frame = FrameReader(make_image(version, 0, live, operand=find_temporary(3)), f"{version}.7").read(STACK)
    assert frame is not None and frame.variables == VARIABLES and frame.end == STACK + find_temporary(TEMPORARIES)
    unused = [
        *((56, 64), (72, 80)),
        (find_temporary(0), find_temporary(1)),
        (find_temporary(2), find_temporary(3)),
        (find_temporary(4), find_temporary(5)),
    ]
    assert frame.unused == [Range(STACK + low, STACK + high) for low, high in unused]


def test_unknown_version_and_other_memory() -> None:
    assert FrameReader(make_image("8.2", 0, []), "9.0").read(STACK) is None
    reader = FrameReader(make_image("8.2", 0, []), "8.2.1")
    assert reader.read(0) is None and reader.read(STACK + 4) is None and reader.read(LIVE) is None


def test_cyclic_chain() -> None:
    """A frame that calls itself is read a limited number of times."""
    reader = FrameReader(make_image("8.2", STACK, []), "8.2.1")
    reader.left = 1000
    frames = list(reader.chain(STACK, [Range(STACK, STACK + 1024)]))
    assert len(frames) == 1000 // (1 + TEMPORARIES) + 1 and reader.left < 0
    assert reader.read(STACK) is None


def test_many_live_ranges() -> None:
    """If the count of live ranges is too large, all temporary values count as in use."""
    whole = FrameReader(make_image("8.2", 0, [(0, 0, 0)] * 3), "8.2.1").read(STACK)
    assert whole is not None and whole.unused[-1] == Range(STACK + find_temporary(0), STACK + find_temporary(TEMPORARIES))
    frame = FrameReader(make_image("8.2", 0, [(0, 0, 0)] * (1 << 14 | 1)), "8.2.1").read(STACK)
    assert frame is not None and frame.unused == [Range(STACK + 56, STACK + 64), Range(STACK + 72, STACK + 80)]
