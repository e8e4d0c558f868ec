"""The C engine and the reference engine write the same records of a heap dump, also for damaged objects."""

from __future__ import annotations

import random
import struct
from array import array

import graphs
import pytest

from findleaks.engine.contract import Engine
from findleaks.runtimes.jvm.engine import ARRAY, FIXED, MIRROR, OBJECTS, ClassTable, HeaderLayout, ObjectWalk, References
from findleaks.runtimes.jvm.heap_dump.fields import _numbers
from findleaks.runtimes.jvm.heap_dump.records import OBJECT, TYPES, RecordEncoder, Written
from findleaks.target.arch import Arch

BASE = 0xF0000000
NARROW, WIDE, COMPACT = HeaderLayout(8, 4, 0, 12, 8), HeaderLayout(8, 8, 0, 16, 16), HeaderLayout(0, 8, 42, 8, 8)
KINDS = [
    (FIXED, 24, 0, 0),
    (ARRAY, 24, 0, 0),
    (ARRAY, 24, 1, 0),
    (ARRAY, 24, 3, 0),
    (OBJECTS, 24, 0, 0),
    (MIRROR, 40, 44, 48),
    (FIXED, 104, 0, 0),
]
ELEMENTS = [0, 8, 5, 11, OBJECT, 0, 0]
FIELDS: list[list[tuple[int, int]]] = [[(16, 10), (12, 8)], [], [], [], [], [], [(16, kind) for kind in sorted(TYPES.values())]]
FIELDS[-1] += [(100, 11), (96, 7), (40, OBJECT), (1 << 31, OBJECT), (103, 4)]  # the first and the fourth offset are beyond the end


class Heap:
    """Random objects in memory."""

    def __init__(self, header: HeaderLayout, size: int, arch: Arch, state: random.Random) -> None:
        self.header, self.size, self.arch = header, size, arch
        self.memory, self.starts, self.sizes, self.numbers = bytearray(), array("Q"), array("Q"), array("HI"[header.alignment == 16])
        order = "<" if arch.byteorder == "little" else ">"
        for _ in range(60):
            number = state.randrange(len(KINDS))
            kind, first, shift, _ = KINDS[number]
            length = state.choice([0, 1, 5, 100])
            width = size if kind == OBJECTS else 1 << shift
            bytes_of = first if kind == FIXED else 96 if kind == MIRROR else first + length * width
            one = bytearray(state.randbytes(bytes_of + -bytes_of % header.alignment))
            struct.pack_into(order + "I", one, header.length_at, state.choice([length, length, length, 1 << 31, 0xFFFFFFFF]))
            for at in range(24, len(one) - size + 1, 4 * size):
                one[at : at + size] = bytes(size)  # null references
            self.starts.append(BASE + len(self.memory))
            self.sizes.append(len(one))
            self.numbers.append(number)
            self.memory += one

    def records(self, engine: Engine, room: int, cuts: list[int], references: References) -> list[tuple[int, int, bytes]]:
        """Return the result of each call: the reason why it ended, the next object, the records."""
        table = ClassTable()
        blocks = engine.blocks(engine.arch, 8)
        blocks.append(self.starts, self.sizes, bytes(len(self.starts)))
        blocks.seal()
        encoder = RecordEncoder(ObjectWalk(self.header, references, table), blocks, self.numbers, room)
        for number, row in enumerate(KINDS):
            table.add(number + 1, row, array("I"))
            encoder.add_class(0 if number == 1 else 0xABC00 + number, ELEMENTS[number], FIELDS[number])
        found = []
        for low, high in zip([0, *cuts], [*cuts, len(self.memory)]):
            result = Written.NO_ROOM
            while result != Written.DONE:
                result = encoder.run(engine, graphs.piece(BASE + low, bytes(self.memory[low:high])))
                found.append((int(result), encoder.next, bytes(encoder.buffer[: encoder.length])))
                if result == Written.PARTLY_PRESENT or (result == Written.NO_ROOM and not encoder.length):
                    encoder.next += 1
        return found


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=lambda arch: str(arch.name))
@pytest.mark.parametrize(("header", "size"), [(NARROW, 4), (WIDE, 8), (COMPACT, 4)], ids=["narrow", "wide", "compact"])
def test_engines_agree(header: HeaderLayout, size: int, arch: Arch) -> None:
    for seed in range(6):
        state = random.Random(seed)
        heap = Heap(header, size, arch, state)
        references = References(size, *state.choice([(0, 0), (BASE - 64, 0), (BASE - 64, 3)]))
        cuts = sorted(state.sample(range(1, len(heap.memory)), 4))
        for room in (1 << 16, 300, 60):
            expected = heap.records(graphs.pure(arch), room, cuts, references)
            assert heap.records(graphs.native(arch), room, cuts, references) == expected
        assert sum(len(data) for _, _, data in heap.records(graphs.pure(arch), 1 << 16, [], references)) > 1000


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=lambda arch: str(arch.name))
def test_values_of_each_type(arch: Arch) -> None:
    """Numbers are big-endian in a heap dump, and references have 8 bytes."""
    order = "<" if arch.byteorder == "little" else ">"
    for engine in (graphs.pure(arch), graphs.native(arch)):
        blocks = engine.blocks(arch, 8)
        blocks.seal()
        encoder = RecordEncoder(ObjectWalk(NARROW, References(4, BASE, 3), ClassTable()), blocks, array("I"), 64)
        for kind, form in ((4, "B"), (5, "H"), (6, "f"), (7, "d"), (8, "b"), (9, "h"), (10, "i"), (11, "q")):
            values = (1, 0, 100) if form == "B" else (1, 5, 77)
            assert encoder.encode_values(engine, struct.pack(f"{order}3{form}", *values), kind) == struct.pack(f">3{form}", *values)
        assert encoder.encode_values(engine, struct.pack(f"{order}3I", 0, 1, 0xFFFFFFFF), OBJECT) == struct.pack(
            ">3Q", 0, BASE + 8, BASE + 0x7FFFFFFF8
        )
        assert encoder.encode_values(engine, b"", 10) == b""


def test_numbers_of_a_stream() -> None:
    """Numbers as in unsigned5.hpp: the last of five bytes may have any value, and a zero byte ends the stream."""
    assert list(_numbers(bytes([1, 2, 191, 192, 1, 193, 1, 255, 191]))) == [0, 1, 190, 191, 192, 254 + (190 << 6)]
    assert list(_numbers(bytes([255] * 5 + [3, 0, 9]))) == [sum(254 << 6 * place for place in range(5)), 2]
    assert list(_numbers(b"\xff\xff")) == []
