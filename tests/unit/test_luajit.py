"""LuaJIT's chunks and values: both engines agree on states, references, and local variables."""

from __future__ import annotations

import random
import struct

import graphs
import pytest
from fake import FakeTarget
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.allocators.luajit.engine import DIFFERS, ENDS, MORE, NO_SIZE, walk_chunks
from findleaks.allocators.luajit.instance import LuaJitAllocator
from findleaks.allocators.luajit.layout import FENCEPOST
from findleaks.allocators.luajit.references import (
    ADDRESS,
    decode,
    decode_light_userdata,
    is_light,
    read_light_segments,
    remove_type_tags,
    try_light_segments,
)
from findleaks.allocators.memory import Memory
from findleaks.engine import load
from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.terms import State
from findleaks.target.arch import X86_64
from findleaks.target.base import Piece

BASE = 0x7F00_0000_0000
ENGINES = (PureEngine(X86_64), load.load(X86_64))
NUMBERS = [0, 0x3FF0000000000000, 0xFFF0000000000000, 0xFFF8000000000000, (1 << 64) - 1, (1 << 64) - 1 ^ 1 << 47, (1 << 64) - 1 ^ 1 << 48]
"""0, 1.0, -inf, NaN, nil, false and true."""


def make_chunks(rng: random.Random) -> tuple[bytearray, list[tuple[int, int, int]]]:
    """Return chunks with a fencepost at the end, and their blocks."""
    data, blocks, free = bytearray(), [], 0
    for _ in range(rng.randrange(40)):
        size, used = 8 * rng.randrange(4, 40), bool(free) or rng.randrange(3) > 0
        previous = 0 if free else 1
        blocks.append((BASE + len(data) + 16, size - 8, State.IN_USE if used else State.FREE))
        data += struct.pack("<QQ", free or rng.getrandbits(64), size | previous | 2 * used) + rng.randbytes(size - 16)
        free = 0 if used else size
    if free:
        return make_chunks(rng)
    return data + struct.pack("<QQ", 0, FENCEPOST), blocks


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=graphs.share(100))
def test_chunks(seed: int) -> None:
    rng = random.Random(seed)
    data, expected = make_chunks(rng)
    limit = BASE + len(data)
    for engine in ENGINES:
        read = walk_chunks(engine, graphs.piece(BASE, bytes(data)), BASE, 0, limit, 1000)
        assert [*zip(*read[:3])] == expected and (read.chunk, read.code) == (limit - 16, ENDS)
    for _ in range(rng.randrange(4)):
        place = 8 * rng.randrange(len(data) // 8)
        struct.pack_into("<Q", data, place, rng.choice((0, 1, 7, 32, 35, FENCEPOST, (1 << 64) - 1, rng.getrandbits(64))))
    cut = rng.randrange(len(data) + 1)
    for room in (rng.randrange(1, 6), 1000):
        reads = [walk_chunks(engine, graphs.piece(BASE, bytes(data[:cut])), BASE, 0, limit, room) for engine in ENGINES]
        assert reads[0] == reads[1]
        assert all(size >= 24 and start + size <= limit + 8 for start, size in zip(reads[0].starts, reads[0].sizes))


@pytest.mark.parametrize(
    ("head", "free", "previous", "code"),
    [
        (35, 0, 0, MORE),
        (34, 32, 32, MORE),
        (34, 32, 40, DIFFERS),
        (34, 0, 0, DIFFERS),
        (35, 32, 32, DIFFERS),
        (19, 0, 0, NO_SIZE),
        (39, 0, 0, NO_SIZE),
    ],
)
def test_headers(head: int, free: int, previous: int, code: int) -> None:
    """The walk stops at a header that contradicts the chunk before it."""
    data = struct.pack("<4Q", previous, head, 0, 0)
    for engine in ENGINES:
        read = walk_chunks(engine, graphs.piece(BASE, data), BASE, free, BASE + 4096, 10)
        assert (read.code, len(read.starts)) == (code, code == MORE)


@given(kinds=st.lists(st.tuples(st.integers(4, 12), st.integers(0, ADDRESS)), max_size=20), shift=st.integers(0, 7))
def test_references(kinds: list[tuple[int, int]], shift: int) -> None:
    """The values of all types of objects become addresses. Other values do not change."""
    values = [(~kind << 47 | address) & (1 << 64) - 1 for kind, address in kinds]
    wanted = [address for _, address in kinds]
    assert [decode(value) for value in values] == wanted and [decode(number) for number in NUMBERS] == NUMBERS
    values, wanted = [*values, *NUMBERS], [*wanted, *NUMBERS]
    data = bytes(shift) + struct.pack(f"<{len(values)}Q", *values) + b"\xff" * 3
    made = remove_type_tags(Piece(BASE - shift, memoryview(data)))
    assert bytes(made.data) == bytes(shift) + struct.pack(f"<{len(wanted)}Q", *wanted) + b"\xff" * 3


def make_light(index: int, address: int) -> int:
    """Return a light userdata whose upper bits are an index of the table."""
    return 0x1FFFC << 47 | index << 39 | address & (1 << 39) - 1


@given(numbers=st.lists(st.tuples(st.integers(0, 255), st.integers(0, ADDRESS)), max_size=20), shift=st.integers(0, 7))
def test_light_userdata(numbers: list[tuple[int, int]], shift: int) -> None:
    """Light userdata become addresses if their index is in the table. Other values do not change."""
    table = [0xAB << 39, 0xFF << 39, 0]
    values = [*(make_light(index % 4, address) for index, address in numbers), *NUMBERS, ~4 & (1 << 64) - 1]
    wanted = [
        table[value >> 39 & 0xFF] | value & (1 << 39) - 1 if is_light(value) and value >> 39 & 0xFF < 3 else value for value in values
    ]
    data = bytes(shift) + struct.pack(f"<{len(values)}Q", *values) + b"\xff" * 3
    made = decode_light_userdata(Piece(BASE - shift, memoryview(data)), table)
    assert bytes(made.data) == bytes(shift) + struct.pack(f"<{len(wanted)}Q", *wanted) + b"\xff" * 3


def test_light_userdata_of_several_states() -> None:
    """In memory of an unknown state, a light userdata is decoded with the table that gives a readable address."""
    memory = Memory(FakeTarget({BASE: bytes(200)}))
    tables = [(0x55 << 40, 0x7F << 40), (0x7F << 40,)]
    values = [make_light(1, BASE + 8), make_light(0, BASE), make_light(0, 0x1234), 5]
    data = struct.pack("<4Q", *values)
    assert struct.unpack("<4Q", try_light_segments(memory, Piece(BASE, memoryview(data)), tables)) == (BASE + 8, BASE, values[2], 5)


def test_each_segment_has_the_table_of_its_state() -> None:
    """The segments of two states alternate. Pieces may begin and end inside a segment, or between two segments."""
    tables = [(0x55 << 40,), (0x7F << 40,)]
    made = LuaJitAllocator.__new__(LuaJitAllocator)
    made.memory, made._light_segments = Memory(FakeTarget({})), tables
    made._tables_by_segment = [(BASE + 64 * at, BASE + 64 * at + 32, tables[at % 2]) for at in range(6)]
    value = make_light(0, 8)
    wanted = [(tables[at // 8 % 2][0] | 8) if at % 8 < 4 else value for at in range(48)]
    for first in range(48):
        for end in range(first + 1, 49):
            data = struct.pack(f"<{end - first}Q", *[value] * (end - first))
            found = made.decode_references(Piece(BASE + 8 * first, memoryview(data))).data
            assert list(struct.unpack(f"<{end - first}Q", found)) == wanted[first:end]


@pytest.mark.parametrize(
    ("last", "table", "wanted"),
    [
        (1, (0x7F << 8, 0x55 << 8), (0x7F << 40, 0x55 << 40)),
        (1, (0x7F << 8, 0x7F << 8), ()),
        (0, (0x7F << 8 | 1, 0), ()),
        (255, (0x7F << 8, 0x55 << 8), ()),
    ],
)
def test_tables_of_light_userdata(last: int, table: tuple[int, int], wanted: tuple[int, ...]) -> None:
    """A damaged table is not used."""
    state = bytearray(200)
    state[35] = last
    struct.pack_into("<Q", state, 112, BASE + 4096)
    target = FakeTarget({BASE: bytes(state), BASE + 4096: struct.pack("<II", *table).ljust(2048, b"\0")})
    assert read_light_segments(Memory(target), BASE) == wanted
