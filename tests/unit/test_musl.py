"""musl's mallocs in synthetic images: blocks at every possible position, and every kind of damage."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import fake
import graphs
import pytest

from findleaks.allocators.base import Allocator
from findleaks.allocators.directory import Directory, build_directory
from findleaks.allocators.memory import Memory
from findleaks.allocators.musl import old_heaps
from findleaks.allocators.musl.layout import CLASSES, Meta, Old, bin_of, contexts
from findleaks.engine.contract import Engine
from findleaks.engine.load import load
from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.terms import State
from findleaks.graph.roots import register_words
from findleaks.target.arch import AARCH64, X86_64, Arch
from findleaks.target.base import Module

DATA, GUARD, AREAS, SLABS, LARGE, DONATED = 0x600000, 0x10000000, 0x10001000, 0x70000000, 0x70100000, 0x600800
SECRET = 0x1122334455667788
CONTEXT = DATA + 0x100
ENGINES = [PureEngine, load]


class Image:
    """The memory of mallocng, as its source code would fill it. `used` maps the blocks in use to their sizes."""

    def __init__(self, paged: bool = False, arch: Arch = X86_64) -> None:
        self.arch = arch
        self.layout = contexts(arch.word)[paged]
        self.meta = Meta(arch.word)
        self.parts = {DATA: bytearray(0x1000), GUARD: bytearray(0x1000), AREAS: bytearray(0x2000)}
        self.parts[SLABS] = bytearray(0x4000)
        self.parts[LARGE] = bytearray(0x300000)
        self.metas = 0
        self.used: dict[int, int] = {}
        self.usage = [0] * 48
        self.active: dict[int, int] = {}
        for area, after in ((AREAS, AREAS + 0x1000), (AREAS + 0x1000, 0)):
            self.put(area, self.pack("QPi", SECRET, after, self.meta.count))
        self.put(CONTEXT, self.pack("Q", SECRET))
        if paged:
            self.word(CONTEXT + 8, 4096)
        self.put(CONTEXT + self.layout.init_done, self.pack("ii", 1, 3))
        self.put(CONTEXT + self.layout.area_head, self.pack("PP", AREAS, AREAS + 0x1000))
        # A page of 31 slots of 128 bytes, with every kind of reserve: cycled and aligned slots, freed slots and unused slots.
        mem = self.group(SLABS, 7, 31, 0x7FC0, 0x7FFF8000, 1)
        for slot, size in enumerate((124, 123, 122, 121, 120, 119)):
            self.enframe(mem, 128, slot, size)
        # A class of 18 units, whose slots have room to move the block.
        mem = self.group(SLABS + 0x1000, 12, 7, 0x60, 0, 1)
        for slot, (size, offset) in enumerate(((270, 0), (260, 1), (100, 3), (64, 8), (0, 17))):
            self.enframe(mem, 288, slot, size, offset)
        # A group of ten slots of 32 bytes inside the slot of another group. In the outer group, there is a block before
        # and after this slot.
        mem = self.group(SLABS + 0x2000, 19, 3, 0, 0, 1)
        self.enframe(mem, 1008, 0, 1000)
        self.enframe(mem, 1008, 2, 900)
        self.enframe(mem, 1008, 1, 1004)
        inner = mem + 16 + 1008
        self.byte(inner - 3, 1 | 6 << 5)
        self.group(inner, 1, 31, 0x7FFFFFF0, 0, 0)
        for slot in range(4):
            self.enframe(inner, 32, slot, 20 + slot, nested=True)
        del self.used[inner]
        # Two blocks that are separate mappings: a plain block, and a block aligned to 1 MiB, whose offset has more than 16 bits.
        mem = self.group(LARGE, 63, 1, 0, 0, 0x40)
        self.enframe(mem, 0x40 * 4096 - 16, 0, 200_000, 5)
        mem = self.group(LARGE + 0x40000, 63, 1, 0, 0, 0x240)
        self.aligned(mem, 0x240 * 4096 - 16, LARGE + 0x200000, 300_000)
        # Memory that ld.so donated, which is free.
        self.group(DONATED, 3, 1, 0, 1, 0, freeable=0)
        self.put(CONTEXT + self.layout.usage, self.pack("48P", *self.usage))

    def put(self, address: int, data: bytes) -> None:
        for start, memory in self.parts.items():
            if start <= address < start + len(memory):
                memory[address - start : address - start + len(data)] = data
                return
        raise ValueError(hex(address))

    def word(self, address: int, value: int) -> None:
        self.put(address, self.arch.pack([value]))

    def pack(self, form: str, *values: int) -> bytes:
        """Pack values. The format P is a word."""
        return struct.pack(self.arch.word_format[0] + form.replace("P", self.arch.word_format[1]), *values)

    def byte(self, address: int, value: int) -> None:
        self.put(address, bytes([value]))

    def group(self, mem: int, number: int, count: int, avail: int, freed: int, maplen: int, freeable: int = 1) -> int:
        meta = AREAS + (self.metas >= 4) * 0x1000 + self.meta.first + self.meta.size * self.metas
        self.metas += 1
        ring = meta if avail | freed and number < 48 else 0
        if ring:
            self.word(CONTEXT + self.layout.active + self.arch.word * number, meta)
        bits, active = count - 1 | freeable << 5 | number << 6 | maplen << 12, count - 1
        if self.arch.byteorder == "big":  # bit fields begin at the highest bit
            pages, active = 8 * self.arch.word - 12, active << 3
            bits = ((count - 1 << 1 | freeable) << 6 | number) << pages | maplen
        self.put(meta, self.pack("PPPIIP", ring, ring, mem, avail, freed, bits))
        self.put(mem, self.pack("PB", meta, active))
        if number < 48 and freeable:
            self.usage[number] += count
        return mem

    def header(self, at: int, slot: int, end: int, size: int, offset: int) -> None:
        reserve = end - at - size
        self.byte(end - reserve, 0)
        if reserve >= 5:
            self.put(end - 5, self.pack("BI", 0, reserve))
        wide = offset > 0xFFFF
        self.put(at - 4, self.pack("BBH", wide, slot | min(reserve, 5) << 5, 0 if wide else offset))
        if wide:
            self.put(at - 8, self.pack("I", offset))
        self.used[at] = size

    def enframe(self, mem: int, stride: int, slot: int, size: int, offset: int = 0, nested: bool = False) -> None:
        start = mem + 16 + slot * stride
        if offset:
            self.put(start - 4, self.pack("BBH", 0, 7 << 5, offset))
        at = start + 16 * offset
        self.header(at, slot, start + stride - 4, size, (at - mem - 16) // 16)

    def aligned(self, mem: int, stride: int, at: int, size: int) -> None:
        start = mem + 16
        self.put(start - 4, self.pack("BBH", 0, 7 << 5, (at - start) // 16 & 0xFFFF))
        self.header(at, 0, start + stride - 4, size, (at - start) // 16)

    def target(self) -> fake.FakeTarget:
        names = {DATA: "/lib/any.so"}
        modules = [Module("/lib/any.so", DATA, DATA, DATA + 0x1000)]
        memory = {k: bytes(v) for k, v in self.parts.items()}
        return fake.FakeTarget(memory, names=names, permissions={GUARD: "---"}, modules=modules, arch=self.arch)


def read(target: fake.FakeTarget, engine: Callable[..., Engine] = PureEngine) -> tuple[Directory, Allocator]:
    directory = build_directory(target, engine(target.arch))
    (allocator,) = directory.allocators
    assert allocator.name == "musl"
    return directory, allocator


def find_in_use(directory: Directory) -> dict[int, int]:
    blocks = directory.blocks
    return {blocks.address(i): blocks.size(i) for i in range(len(blocks)) if blocks.state(i) == State.IN_USE}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("arch", graphs.ARCHES, ids=lambda arch: arch.name)
def test_blocks_have_the_requested_bounds(arch: Arch, paged: bool, engine: Callable[..., Engine]) -> None:
    image = Image(paged, arch)
    directory, allocator = read(image.target(), engine)
    assert directory.problems == []
    used = find_in_use(directory)
    assert {address: used[address] for address in image.used} == image.used
    assert [problem for problem in allocator.verify(directory.blocks) if problem] == []
    rows = allocator.caches(directory.blocks)
    assert sum(row.in_use for row in rows) == len(used)
    assert sum(row.free for row in rows) == directory.blocks.totals(State.FREE).blocks > 30
    assert sum(row.in_use_bytes for row in rows) == sum(used.values())
    assert {row.arena for row in rows} == {"main", "mmapped", "donated"}
    assert allocator.read_counters() == {f"usage_by_class[{n}]": count for n, count in enumerate(image.usage) if count}
    inner = SLABS + 0x2000 + 16 + 1008
    assert directory.blocks.find(inner) < 0  # the slot that contains a group is not a block
    claimed = directory.list_claimed()
    for address in (CONTEXT, AREAS, AREAS + 0x1FF8, SLABS, inner, DONATED + 8):
        assert any(start <= address < end for start, end in claimed), hex(address)
    assert not any(start <= DATA < end for start, end in claimed)
    assert "slot 2" in allocator.locate(SLABS + 16 + 2 * 128 + 5)


DAMAGE: dict[str, tuple[Callable[[Image], None], str, int]] = {
    # Name of the damage, a part of the message, and how many blocks may be missing.
    "list of areas": (lambda i: i.word(AREAS + 8, AREAS), "list of meta_areas is broken", 0),
    "group beyond memory": (lambda i: i.word(AREAS + 24 + 16, 0x123456789000), "is not in writable memory", 6),
    "class that is none": (lambda i: i.word(AREAS + 24 + 32, 30 | 1 << 5 | 50 << 6 | 1 << 12), "is corrupt", 6),
    "group's header": (lambda i: i.word(SLABS, 0x4141414141414141), "has 0x4141414141414141 for its meta", 0),
    "header of a block": (lambda i: i.byte(SLABS + 16 + 128 - 2, 0x77), "the header of the block", 0),
    "moved block": (lambda i: i.byte(SLABS + 0x1000 + 16 + 288 - 2, 0x0F), "begins elsewhere than the header indicates", 1),
    "size at the end": (lambda i: i.put(SLABS + 16 + 6 * 128 - 8, b"\xff\xff\xff"), "the number at the end of its slot", 0),
    "overrun of no reserve": (lambda i: i.byte(SLABS + 16 + 124, 0x58), "overrun", 1),
    "overrun of some": (lambda i: i.byte(SLABS + 16 + 2 * 128 + 122, 0x58), '"X" is directly after its end, where a 0 belongs', 0),
    "both masks": (lambda i: i.put(AREAS + 24 + 28, struct.pack("<I", 0x7FFFFFC0)), "both available and freed", 0),
    "bits beyond": (lambda i: i.put(AREAS + 24 + 24, struct.pack("<I", 0x80007FC0)), "for slots it does not have", 0),
    "ring": (lambda i: i.word(AREAS + 24, AREAS + 24 + 40), "which has", 0),
    "usage": (lambda i: i.word(CONTEXT + i.layout.usage + 56, 99), "usage_by_class[7]", 0),
    "behind a free slot": (lambda i: i.byte(SLABS + 16 + 31 * 128 - 4, 9), "behind the last slot", 0),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_reported_and_the_rest_is_read(name: str, engine: Callable[..., Engine]) -> None:
    image = Image()
    harm, reported, gone = DAMAGE[name]
    harm(image)
    directory, allocator = read(image.target(), engine)
    said = [problem.what for problem in [*directory.problems, *allocator.verify(directory.blocks)] if problem]
    assert any(reported in what for what in said), said
    assert len(said) <= 4, said
    used = find_in_use(directory)
    assert len(image.used.keys() - used.keys()) <= gone
    assert len(said) <= 4, said


class OldImage:
    """The memory of oldmalloc: a sequence of chunks, two mapped chunks, bins."""

    HEAP, MAPPED, MAL = 0x20000000, 0x70000000, DATA + 0x200

    def __init__(self, arch: Arch = X86_64) -> None:
        self.arch = arch
        self.parts = {DATA: bytearray(0x1000), self.HEAP: bytearray(0x4000), self.MAPPED: bytearray(0x100000)}
        self.layout = Old(arch.word)
        header, align, word = self.layout.overhead, self.layout.align, arch.word
        self.used: dict[int, int] = {}
        self.bins: dict[int, list[int]] = {}
        self.free: list[int] = []
        at, before, left, number = self.HEAP + align - header, 1, 0x4000 - align, 0
        while left:
            size = min(align * (1 + number * 7 % 20), left)
            size = left if left - size < 2 * align else size
            free = number % 3 == 2
            self.word(at, before)
            self.word(at + word, size | (not free))
            if free:
                self.bins.setdefault(bin_of(size, align), []).append(at)
                self.free.append(at + header)
            else:
                self.used[at + header] = size - header
            before, at, left, number = size | (not free), at + size, left - size, number + 1
        self.word(at, before)
        self.word(at + word, 1)
        for number in range(60):
            self.chain(number, self.bins.get(number, []))
        self.put(self.MAL, self.pack("Q", sum(1 << number for number in self.bins)))
        self.map(self.MAPPED, 0x40000, align)
        self.map(self.MAPPED + 0x40000, 0x50000, 2 * align)
        self.map(self.MAPPED + 0x90000, 0x60000, 0x10000)

    put, word, pack = Image.put, Image.word, Image.pack

    def chain(self, number: int, chunks: list[int]) -> None:
        header = self.layout.overhead
        end = self.MAL + 8 + self.layout.bin * number + 8 - header
        ring = [end, *chunks, end]
        for before, chunk, after in zip(ring, ring[1:], ring[2:]):
            self.put(chunk + header, self.pack("PP", after, before))
        self.put(end + header, self.pack("PP", ring[1], ring[-2]))

    def map(self, base: int, length: int, offset: int) -> None:
        header = self.layout.overhead
        self.put(base + header, self.pack("PP", header, length - header))
        self.put(base + offset - header, self.pack("PP", offset - header, length - offset + header))
        self.used[base + offset] = length - offset

    def target(self) -> fake.FakeTarget:
        modules = [Module("/lib/any.so", DATA, DATA, DATA + 0x1000)]
        memory = {k: bytes(v) for k, v in self.parts.items()}
        return fake.FakeTarget(memory, names={DATA: "/lib/any.so"}, modules=modules, arch=self.arch)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("arch", graphs.ARCHES, ids=lambda arch: arch.name)
def test_chunks_and_mapped_chunks(arch: Arch, engine: Callable[..., Engine]) -> None:
    image = OldImage(arch)
    directory, allocator = read(image.target(), engine)
    assert directory.problems == []
    assert find_in_use(directory) == image.used
    assert directory.blocks.totals(State.FREE).blocks == len(image.free)
    assert [problem for problem in allocator.verify(directory.blocks) if problem] == []
    rows = allocator.caches(directory.blocks)
    assert (sum(row.in_use for row in rows), sum(row.free for row in rows)) == (len(image.used), len(image.free))
    assert sum(arena.in_use for arena in allocator.arenas(directory.blocks)) == sum(image.used.values())


def old_damage(image: OldImage, name: str) -> None:
    chunk = sorted(image.used)[3] - 16
    free = image.free[2] - 16
    if name == "psize":
        image.word(chunk, 0x58)
    elif name == "whole header":
        image.put(chunk, b"AAAAAAAABBBBBBBB")
    elif name == "two headers":
        after = min(block for block in (*image.used, *image.free) if block > chunk + 16)
        image.put(chunk, b"A" * (after - chunk))
    elif name == "link":
        image.word(free + 24, 0x4141414141414140)
    elif name == "forward link":
        image.word(free + 16, chunk)
    elif name == "binmap":
        image.word(image.MAL, 0)


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("psize", "was overrun"),
        ("whole header", "the block before it overran"),
        ("two headers", "is the first sound one"),
        ("link", "before it"),
        ("forward link", "which is not a free chunk"),
    ],
)
def test_damage_of_oldmalloc_is_reported(name: str, reported: str) -> None:
    image = OldImage()
    old_damage(image, name)
    directory, allocator = read(image.target())
    said = [problem.what for problem in [*directory.problems, *allocator.verify(directory.blocks)] if problem]
    assert any(reported in what for what in said), said
    assert len(said) <= 4, said
    assert len(image.used.keys() - find_in_use(directory).keys()) <= 1


@pytest.mark.parametrize("kind", [Image, OldImage])
def test_any_bytes_may_be_wrong(kind: type[Image] | type[OldImage]) -> None:
    """Random words, except in the program text: no exception, no endless loop, and blocks stay inside heaps."""
    for seed in range(60):
        image = kind()
        r = random.Random(seed)
        words = [AREAS + 8 * r.randrange(64) for _ in range(3)] if kind is Image else []
        for start, memory in image.parts.items():
            words += [start + 8 * r.randrange(min(len(memory), 0x2000) // 8) for _ in range(r.randrange(6))]
        for address in words:
            if any(start <= address < start + len(memory) for start, memory in image.parts.items()):
                wild = (r.getrandbits(64), r.getrandbits(12), SLABS + 16 * r.getrandbits(10), AREAS + 8 * r.getrandbits(9), 0, 1)
                image.word(address, r.choice(wild))
        target = image.target()
        directory = build_directory(target, PureEngine(target.arch))
        for allocator in directory.allocators:
            list(allocator.verify(directory.blocks))
            allocator.caches(directory.blocks)
            allocator.arenas(directory.blocks)
            allocator.locate(r.choice(words or [1]))


def test_bins_and_metas_have_the_sizes_of_the_source() -> None:
    assert (Meta(8).count, Meta(4).count) == (101, 170)
    assert [bin_of(32 * n, 32) for n in (1, 2, 33, 34, 40, 513, 0x1C01, 0x1C02)] == [0, 1, 32, 32, 32, 48, 63, 63]
    assert [layout.usage for layout in contexts(8)] == [464, 472]
    assert len(CLASSES) == 48


def test_dtv_of_musl_begins_at_its_pointer() -> None:
    """In glibc, the dtv begins two words earlier. In musl, a leaked block may be at this address."""
    tcb, dtv = 0x30000100, 0x30000800
    memory = bytearray(0x1000)
    struct.pack_into("<4Q", memory, 0x100, tcb, dtv, tcb, tcb)
    musl = fake.FakeTarget({0x30000000: bytes(memory)}, threads=[fake.thread(1, 0, thread_pointer=tcb)])
    assert dtv - 16 not in register_words(musl)
    struct.pack_into("<4Q", memory, 0x100, tcb, dtv, tcb, 1)
    glibc = fake.FakeTarget({0x30000000: bytes(memory)}, threads=[fake.thread(1, 0, thread_pointer=tcb)])
    assert dtv - 16 in register_words(glibc)


@pytest.mark.parametrize("engine", ENGINES)
def test_donated_chunks_are_as_long_as_a_page_of_the_machine(engine: Callable[..., Engine]) -> None:
    """ld.so donates the rest of the last page of a file's data: up to 64 KiB on a machine with such pages, and several pages of 4 KiB."""
    start, sizes = DATA + 0xC10, [0x40, 0xE000, 0x20]
    memory, at, before = bytearray(0x10000), start, 1
    for size in (*sizes, 0):
        struct.pack_into("<2Q", memory, at - DATA, before, size | 1)
        at, before = at + size, size | 1
    arch = AARCH64.with_page(1 << 16)
    modules = [Module("/lib/any.so", DATA, DATA, DATA + len(memory))]
    target = fake.FakeTarget({DATA: bytes(memory)}, names={DATA: "/lib/any.so"}, modules=modules, arch=arch)
    (segment,), mapped = old_heaps.find_heaps(Memory(target), engine(arch), Old(8), [])
    assert [size for _, size, _ in segment.blocks()] == [size - 16 for size in sizes]
    assert mapped == []


def test_time_for_headers_beyond_their_mapping_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """A former bug: for each header, a block with an alignment was searched up to the end of the mapping. A megabyte of
    headers took a second, a hundred megabytes took hours."""
    looks = 0
    words = Memory.words

    def count_reads(self: Memory, address: int, count: int) -> tuple[int, ...] | None:
        nonlocal looks
        looks += 1
        return words(self, address, count)

    monkeypatch.setattr(Memory, "words", count_reads)
    start, pages = 0x7F00_0000_0000, 1024
    header = struct.pack("<4Q", 0, 0, 16, (1 << 30) + 4096 - 16)
    target = fake.FakeTarget({start: header.ljust(4096, b"\0") * pages})
    layout = Old(8)
    segments, mapped = old_heaps.find_heaps(Memory(target), PureEngine(X86_64), layout, [])
    assert (segments, mapped) == ([], [])
    assert looks < 100 * pages
