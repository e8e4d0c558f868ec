"""Stack maps of Go's functions, encoded by the test. Without a valid map, each word of the frame counts as a pointer."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any, Optional

import pytest
from fake import FakeTarget

from findleaks.allocators.memory import Memory
from findleaks.runtimes.go.pclntab import Function
from findleaks.runtimes.go.stack_maps import FrameMap, StackMaps, StackObject

ENTRY, DEPTH, RODATA = 0x400000, 48, 0x20000
PLACES = 0x10000, 0x11000, 0x12000  # maps of arguments, maps of locals, stack objects


def stack_map(bits: int, *masks: int) -> bytes:
    return struct.pack("<ii", len(masks), bits) + b"".join(mask.to_bytes(-(-bits // 8), "little") for mask in masks)


def stack_objects(*records: tuple[int, int, int, int]) -> bytes:
    return struct.pack("<Q", len(records)) + b"".join(struct.pack("<iiiI", *one) for one in records)


ARGUMENTS, LOCALS = stack_map(2, 0b01, 0b10), stack_map(5, 0b10001, 0b00100)
OBJECT = -40, 24, 16, 4


def read(
    arguments: bytes = ARGUMENTS,
    locals_: bytes = LOCALS,
    objects: bytes = b"",
    index: Optional[int] = 1,
    linked: bool = False,
    depth: int = DEPTH,
    pc: int = ENTRY + 9,
) -> Optional[FrameMap]:
    data = [arguments, locals_, objects]
    memory: dict[int, bytes] = {place: one for place, one in zip(PLACES, data) if one}
    memory[RODATA] = bytes([0xFF, 0xFF, 0xFF, 0xFF, 0b10])
    table: Any = SimpleNamespace(
        module=SimpleNamespace(rodata=RODATA),
        pcdata=lambda function, number, at: index if (number, at) == (1, pc - 1) else -1,
        funcdata=lambda function, number: PLACES[number] if data[number] else 0,
    )
    function = Function(ENTRY, "main.f", 0, 0, 0, (0, 0, 0), (), (), 16)
    return StackMaps(Memory(FakeTarget(memory)), linked).find(table, function, pc, depth)


def test_pointers_of_locals_and_arguments() -> None:
    """The return address and the frame pointer are above the locals. On AArch64, the return address is at the low end
    of the frame, and the frame pointer below it."""
    assert read() == FrameMap((-16 - 3 * 8, 8), [])
    assert read(index=0) == FrameMap((-16 - 5 * 8, -16 - 8, 0), [])
    assert read(linked=True) == FrameMap((-8 - 3 * 8, 8 + 8), [])


def test_map_of_the_entry() -> None:
    """The first map is used for a goroutine that has not run yet, and for code without an index."""
    assert read(pc=ENTRY, depth=0) == FrameMap((0,), [])
    assert read(index=-1) == read(index=0)


def test_frame_without_locals() -> None:
    assert read(locals_=b"", depth=8) == FrameMap((8,), [])
    assert read(locals_=b"", depth=16, linked=True) == FrameMap((16,), [])
    assert read(locals_=stack_map(0, 0, 0)) == FrameMap((8,), [])


def test_stack_objects() -> None:
    """A stack object has a bitmap. If a program describes its pointers instead, each of its words counts. Incomplete
    frames have no stack objects."""
    found = read(objects=stack_objects(OBJECT, (0, 16, -16, 0)))
    assert found is not None
    assert found.objects == [StackObject(-16 - 40, 24, [8]), StackObject(0, 16, [0, 8])]
    at_entry = read(objects=stack_objects(OBJECT), pc=ENTRY, depth=0)
    assert at_entry is not None and at_entry.objects == []


@pytest.mark.parametrize(
    "damage",
    [
        {"index": 2},
        {"index": -2},
        {"index": None},
        {"depth": -8},
        {"locals_": b""},
        {"locals_": stack_map(6, 0, 0)},  # larger than the frame
        {"locals_": LOCALS[:8]},
        {"locals_": struct.pack("<ii", -1, 5)},
        {"locals_": struct.pack("<ii", 2, 1 << 30)},
        {"arguments": b""},
        {"arguments": stack_map(3, 0, 0b100)},  # a pointer after the arguments
        {"objects": struct.pack("<Q", 1)},
        {"objects": struct.pack("<Q", 1 << 60)},
        {"objects": stack_objects((-40, 8, 16, 0))},
        {"objects": stack_objects((-40, 24, 16, 64))},  # an unreadable bitmap
        {"objects": stack_objects((-40, -8, 0, 0))},
    ],
)
def test_damage(damage: dict[str, Any]) -> None:
    assert read(**damage) is None
