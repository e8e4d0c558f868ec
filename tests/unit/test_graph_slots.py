"""musl's groups, slots and chunks: both engines read the heap that the test made."""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Iterator

import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.allocators.musl import engine as slots
from findleaks.allocators.musl.engine import BATCH, GROUP, LARGE, SUMS, SlotGroups, TagWalk
from findleaks.allocators.musl.layout import AREA, CLASSES
from findleaks.engine.contract import Engine
from findleaks.engine.terms import State
from findleaks.target.base import Piece, Range

SEEDS = st.integers(0, 2**32 - 1)
BASE = 0x7F0000010000
AREAS = 0x7E0000000000
WILD = (0, 1, 5, 16, 0xE000, 0x0001E000, 0xFF00, 0xC000, BASE, BASE + 16, AREAS, 1 << 63, (1 << 64) - 1, (1 << 64) - 16)
ENGINES = [graphs.native, graphs.pure]

Blocks = list[tuple[int, int, int]]


def make_engines() -> list[Engine]:
    return [graphs.native(), graphs.pure()]


class Slabs:
    """Memory of mallocng: groups with every kind of slot, whose metas are in any order."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.data = bytearray(1 << 20)
        self.metas: list[tuple[int, int, int, int]] = []  # mem, avail, freed, bits
        self.places = [AREAS + AREA * area + 24 + 40 * n for area in range(2) for n in range(101)]
        rng.shuffle(self.places)
        self.expected: Blocks = []
        at = BASE
        for _ in range(rng.randrange(1, 9)):
            at = self.top(at)
            if at - BASE > 0xA0000:
                break
            at += AREA * rng.choice((0, 0, 0, 1, 3))
        self.end = at
        self.expected.sort()
        self.areas = bytearray(2 * AREA)
        for place, (mem, avail, freed, bits) in zip(self.places, self.metas):
            struct.pack_into("<QIIQ", self.areas, place - AREAS + 16, mem, avail, freed, bits)

    def put(self, at: int, form: str, *values: int) -> None:
        struct.pack_into("<" + form, self.data, at - BASE, *values)

    def top(self, mem: int) -> int:
        """Write a group that is a mapping, or one from memory that ld.so donated. Return the address of its end."""
        rng = self.rng
        way = rng.random()
        if way < 0.15:
            pages = rng.choice((1, 2, 30, 33))
            self.group(mem, rng.choice((LARGE, LARGE, 40)), 1, pages, pages * AREA - 16, 1)
            return mem + pages * AREA
        number, count = rng.choice((0, 1, 3, 7, 9, 11, 19, 23, 30, 47)), rng.choice((1, 2, 5, 8, 31, 32))
        stride = CLASSES[number] * 16
        if way < 0.3 and count * stride < 0x8000:
            self.group(mem, number, count, 0, stride, 0)
            return mem + -(-(16 + count * stride) // AREA) * AREA
        count = max(2, min(count, 0x40000 // stride))
        pages = -(-(16 + count * stride) // AREA)
        self.group(mem, number, count, pages, stride, 1)
        return mem + pages * AREA

    def group(self, mem: int, number: int, count: int, pages: int, stride: int, freeable: int) -> None:
        rng = self.rng
        avail, freed = (rng.getrandbits(32) & rng.getrandbits(32) & (1 << count) - 1 for _ in range(2))
        meta = self.places[len(self.metas)]
        self.metas.append((mem, avail, freed & ~avail, count - 1 | freeable << 5 | number << 6 | pages << 12))
        self.put(mem, "Q", meta)
        for slot in range(count):
            start, end = mem + 16 + slot * stride, mem + 12 + (slot + 1) * stride
            if (avail | freed) >> slot & 1:
                self.expected.append((start, stride - 4, State.FREE))
                continue
            inner = [n for n in range(30) if 16 + CLASSES[n] * 16 <= stride - 16]
            if inner and stride < 0x4000 and rng.random() < 0.15 and len(self.metas) < 150:
                which = rng.choice(inner)
                self.put(start - 3, "B", slot | 6 << 5)
                self.group(start, which, max(1, min(32, (stride - 16) // (CLASSES[which] * 16))), 0, CLASSES[which] * 16, 1)
                continue
            block, room = start, stride - 4
            if rng.random() < 0.2 and stride > 32:
                units = rng.randrange(1, (stride - 4 + 15) // 16)
                self.put(start - 4, "BBH", 0, 7 << 5, units & 0xFFFF)
                block, room = start + units * 16, room - units * 16
            reserve = min(rng.choice((0, 1, 2, 3, 4, 5, 6, rng.randrange(room + 1))), room)
            if reserve >= 5:
                self.put(end - 4, "I", reserve)
            self.put(block - 4, "BBH", 0, slot | min(reserve, 5) << 5, (block - mem - 16) // 16 & 0xFFFF)
            self.expected.append((block, room - reserve, State.IN_USE))

    def damage(self) -> None:
        rng = self.rng
        for _ in range(rng.randrange(8)):
            wild = rng.choice((*WILD, rng.getrandbits(64), BASE + 16 * rng.randrange(0x4000)))
            if rng.random() < 0.5:
                place = rng.choice(self.places[: len(self.metas)]) - AREAS + rng.choice((16, 24, 32))
                struct.pack_into("<Q", self.areas, place, wild if rng.random() < 0.5 else 1 << rng.randrange(64))
            else:
                mem, _, _, bits = rng.choice(self.metas)
                stride = CLASSES[bits >> 6 & 63] * 16 if bits >> 6 & 63 < len(CLASSES) else 16
                place = mem + rng.choice((0, 12 + stride * rng.randrange((bits & 31) + 1), 8 + stride)) - BASE
                struct.pack_into("<I", self.data, place, wild & 0xFFFFFFFF)

    def read(self, engine: Engine, memory: list[Piece], areas: list[Piece]) -> tuple[SlotGroups, list[slots.SlotRead]]:
        regions = [Range(BASE, BASE + len(self.data)), Range(1 << 62, (1 << 62) + AREA)]
        found = slots.read_groups(engine, areas, [AREAS, AREAS + AREA, AREAS + 2 * AREA], CLASSES, regions)
        reads = []
        for at in range(0, len(found.batches), BATCH):
            _, _, _, first, last, room, _ = found.batches[at : at + BATCH]
            reads.append(slots.read_slots(engine, memory, found, first, last, room))
        return found, reads


@given(seed=SEEDS)
@settings(max_examples=graphs.share(60))
def test_slots_are_read_as_written(seed: int) -> None:
    rng = random.Random(seed)
    heap = Slabs(rng)
    memory = graphs.cut(BASE, bytes(heap.data), rng, rng.choice((1, 8, AREA)))
    for engine in make_engines():
        found, reads = heap.read(engine, memory, graphs.cut(AREAS, bytes(heap.areas), rng, 1))
        assert list(found.wrong) == [slots.MISSING, AREAS + 2 * AREA, 0, 0]
        assert [(*block,) for read in reads for block in zip(*read[:3])] == heap.expected
        assert not any(read.troubles for read in reads)
        assert len(found.records) == GROUP * len(heap.metas)
        assert sum(found.sums[::SUMS]) == len(heap.metas)
        assert sum(found.sums[6::SUMS]) == sum(size for _, size, state in heap.expected if state == State.IN_USE)
        assert sum(found.sums[5::SUMS]) == sum(size for _, size, state in heap.expected if state == State.FREE)
        assert sum(found.sums[1::SUMS]) - sum(found.sums[3::SUMS]) == len(heap.expected)
        ends = found.batches[2::BATCH]
        assert list(ends[:-1]) <= list(found.batches[1::BATCH][1:])
        assert sum(found.sums[4::SUMS]) == sum(ends) - sum(found.batches[1::BATCH])


@given(seed=SEEDS)
@settings(max_examples=graphs.share(150))
def test_engines_agree_on_damaged_slots(seed: int) -> None:
    rng = random.Random(seed)
    heap = Slabs(rng)
    heap.damage()
    memory = graphs.cut(BASE, bytes(heap.data), rng, rng.choice((1, 4, 8, AREA)), 9)
    areas = graphs.cut(AREAS, bytes(heap.areas), rng, rng.choice((8, AREA)))
    for pieces in (memory, areas):
        if len(pieces) > 1 and rng.random() < 0.3:
            del pieces[rng.randrange(len(pieces))]
    first, other = (heap.read(engine, memory, areas) for engine in make_engines())
    assert first == other
    floor = 0
    blocks = graphs.native().blocks(graphs.X86_64, 16)
    for read in first[1]:
        blocks.append(*read[:3])  # their starts ascend, and no block overlaps with another one
        floor += len(read.starts)
    assert len(blocks) == floor


@pytest.mark.parametrize("engine", ENGINES)
def test_impossible_groups(engine: type) -> None:
    """One invalid meta, beside a group of two pages and a group of 8 slots of 2,032 bytes. The first of these slots is free."""
    good = [(BASE, 0, 0, LARGE << 6 | 2 << 12), (BASE + 0x10000, 1, 0, 7 | 1 << 5 | 23 << 6 | 9 << 12)]
    slot = BASE + 0x10000 + 16 + CLASSES[23] * 16
    for mem, bits, code in (
        (BASE + 8, 1 | 1 << 5 | 1 << 12, slots.CORRUPT),  # not a multiple of 16
        ((1 << 64) - 16, 1 << 12, slots.CORRUPT),  # ends after the last address
        ((1 << 64) - 0x2000, (1 << 52) - 1 << 12, slots.CORRUPT),
        (BASE + 0x40000, 60 << 6 | 1 << 12, slots.CORRUPT),  # a size class that does not exist
        (BASE + 0x40000, 1 | LARGE << 6 | 1 << 12, slots.CORRUPT),  # two slots in a group for one
        (BASE + 0x40000, LARGE << 6, slots.CORRUPT),  # no pages
        (BASE + 0x40000, 31 | 23 << 6 | 1 << 12, slots.CORRUPT),  # too many slots for the pages
        (BASE + 0x40000, 1 | 1 << 5, slots.NO_SLOT),
        (1 << 50, 1 | 1 << 5 | 1 << 12, slots.NO_REGION),
        (BASE + (1 << 20) - 0x1000, 1 | 1 << 5 | 2 << 12, slots.NO_REGION),
        (BASE + 0x1000, 1 | 1 << 5 | 1 << 12, slots.OVERLAPS),
        (BASE + 0x1000, 1, slots.OVERLAPS),
        (slot + 32, 1 | 1 << 5, slots.MISFIT),
        (slot, 2 | 1 << 5 | 19 << 6, slots.MISFIT),  # overlaps with the next slot
        (BASE + 0x10000, 1 | 1 << 5, slots.MISFIT),
        (BASE + 0x10010, 1 | 1 << 5, slots.IN_FREE),
    ):
        area = bytearray(AREA)
        for at, (start, avail, freed, last) in enumerate([*good, (mem, 0, 0, bits)]):
            struct.pack_into("<QIIQ", area, 24 + 40 * at + 16, start, avail, freed, last)
        found = slots.read_groups(engine(), (graphs.piece(AREAS, area),), [AREAS], CLASSES, [Range(BASE, BASE + (1 << 20))])
        assert list(found.wrong[:3]) == [code, AREAS + 24 + 80, mem]
        assert found.records[::GROUP] == array("Q", [BASE, BASE + 0x10000])
        with pytest.raises(ValueError, match="more than 3 slots"):
            slots.read_slots(engine(), (), found, 0, 2, 3)
        read = slots.read_slots(engine(), (), found, 0, 99, 9)
        assert list(read.troubles[::3]) == [slots.UNREADABLE] * 8


@pytest.mark.parametrize(
    ("reported", "front", "wide", "code"),
    [
        (0, 1, 0x1C000, 0),
        (0, 1, 0x1C001, slots.NOT_THERE),
        (0, 0, 0x1C000, slots.NOT_THERE),
        (0xC000, 1, 0x1C000, slots.NOT_THERE),
        (0xC000, 0, 0x1C000, slots.NOT_THERE),
    ],
)
def test_offsets_of_32_bits(reported: int, front: int, wide: int, code: int) -> None:
    """A block 0x1C0000 bytes after the start of its slot. The start has only 16 bits of this number: 0xC000 units."""
    pages, length = 0x240, 0x240 * AREA - 16
    area, head = bytearray(AREA), bytearray(32)
    struct.pack_into("<QIIQ", area, 24 + 16, BASE, 0, 0, LARGE << 6 | pages << 12)
    struct.pack_into("<Q4xBBH", head, 0, AREAS + 24, 0, 7 << 5, 0xC000)
    block = BASE + 16 + 0x1C0000
    pieces = tuple(
        graphs.piece(address, data)
        for address, data in (
            (BASE, head),
            (block - 8, struct.pack("<IBBH", wide, front, 5 << 5, reported)),
            (BASE + 8 + length, struct.pack("<II", 99, 0)),
        )
    )
    answers = []
    for engine in make_engines():
        found = slots.read_groups(engine, (graphs.piece(AREAS, area),), [AREAS], CLASSES, [Range(BASE, BASE + pages * AREA)])
        answers.append((found, slots.read_slots(engine, pieces, found, 0, 1, 1)))
    assert answers[0] == answers[1]
    read = answers[0][1]
    assert list(read.troubles) == ([code, 0, 0] if code else [])
    start, size = (BASE + 16, length - 4) if code else (block, BASE + 12 + length - block - 99)
    assert (list(read.starts), list(read.sizes), list(read.states)) == ([start], [size], [State.IN_USE])


def make_chunks(rng: random.Random) -> tuple[bytearray, Blocks]:
    """Return random memory of chunks, and its blocks."""
    data, blocks = bytearray(16), []
    before = 1
    for _ in range(rng.randrange(60)):
        size = 32 * rng.choice((1, 1, 2, 3, 40))
        csize = size | rng.randrange(2)
        blocks.append((BASE + len(data) + 16, size - 16, State.IN_USE if csize & 1 else State.FREE))
        data += struct.pack("<QQ", before, csize) + rng.randbytes(size - 16)
        before = csize
    data += struct.pack("<QQ", before, 1)
    return data, blocks


def walk(engine: Engine, pieces: list[Piece], limit: int, rooms: list[int]) -> Iterator[TagWalk]:
    """Walk until a chunk has no size, or until no piece has the next header."""
    at, before = BASE + 16, 1
    for number in range(300):
        for piece in pieces:
            if piece.address <= at <= piece.address + len(piece.data) - 16:
                break
        else:
            return
        read = slots.walk_tags(engine, piece, at, before, limit, rooms[number % len(rooms)])
        yield read
        at, before = read.chunk, read.before
        if read.code == slots.DIFFERS:
            before = struct.unpack_from("<Q", piece.data, at - piece.address)[0]
        elif read.code != slots.MORE:
            return


@given(seed=SEEDS)
@settings(max_examples=graphs.share(100))
def test_chunks_with_tags_at_both_ends(seed: int) -> None:
    rng = random.Random(seed)
    data, expected = make_chunks(rng)
    limit = BASE + len(data)
    for engine in make_engines():
        (read,) = walk(engine, [graphs.piece(BASE, data)], limit, [1000])
        assert [(*block,) for block in zip(*read[:3])] == expected
        assert (read.chunk, read.code) == (limit - 16, slots.ENDS)
    pieces = graphs.cut(BASE, bytes(data), rng, 16)
    for _ in range(rng.randrange(4)):
        place = 16 + 8 * rng.randrange(len(data) // 8 - 2)
        struct.pack_into("<Q", data, place, rng.choice((*WILD, 33, 32, 0x41, len(data) & -32)))
    limit -= rng.choice((0, 0, 16, 100))
    for damaged in (pieces, [graphs.piece(BASE, data)], graphs.cut(BASE, bytes(data), rng, 8)):
        rooms = [rng.randrange(1, 20) for _ in range(5)]
        one, other = (list(walk(engine, damaged, limit, rooms)) for engine in make_engines())
        assert one == other
        assert all(size > 0 and start + size <= limit for read in one for start, size in zip(read.starts, read.sizes))


@pytest.mark.parametrize("chunk", [0, BASE - 16, BASE + 1, BASE + 8, BASE + 48, BASE + 56, BASE + 64, (1 << 64) - 16])
def test_a_walk_that_begins_anywhere(chunk: int) -> None:
    data = struct.pack("<8Q", 1, 33, 0, 0, 33, 1, 0, 0)
    for room in (0, 5):
        for limit in (0, BASE + 40, BASE + 64, (1 << 64) - 1):
            reads = [slots.walk_tags(engine, graphs.piece(BASE, data), chunk, 1, limit, room) for engine in make_engines()]
            assert reads[0] == reads[1]
            assert not reads[0].starts or chunk == BASE
