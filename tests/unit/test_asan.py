"""AddressSanitizer's allocator in a synthetic image: chunks at every possible address, and every kind of damage."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import fake
import pytest

from findleaks.allocators.asan.engine import read_chunks
from findleaks.allocators.asan.layout import FREE_ARRAY, MAGIC, REGION, SPACE, class_size
from findleaks.allocators.asan.thread_caches import CLASS
from findleaks.allocators.directory import Directory, build_directory
from findleaks.allocators.sites import Sites
from findleaks.engine.load import load
from findleaks.engine.terms import State
from findleaks.errors import Interrupted
from findleaks.graph.roots import root_ranges
from findleaks.target.arch import X86_64
from findleaks.target.base import Module, Piece, Range

SPACE_AT, DATA, CODE = 0x600000000000, 0x700000, 0x500000
INFOS = SPACE_AT + SPACE
STACKS, POINTERS, HEADERS, LARGE, CACHE, FAKE = (
    0x7F0000000000,
    0x7F0000100000,
    0x7F0000200000,
    0x7F0000300000,
    0x7F0000400000,
    0x7F0000500000,
)
SHADOW = 0x7FFF7000
USED, FREED = 2, 3


class Image:
    """The memory of a process with the runtime of GCC 12: chunks of 32 and of 256 bytes, a large chunk, a stack depot, and a fake stack."""

    def __init__(self) -> None:
        self.parts = {
            DATA: bytearray(0x4000),
            SHADOW: bytearray(b"\xfa" * 0x1000),
            INFOS: bytearray(0x2000),
            SPACE_AT + 2 * REGION: bytearray(0x10000),
            SPACE_AT + 2 * REGION + FREE_ARRAY: bytearray(0x10000),
            SPACE_AT + 16 * REGION: bytearray(0x10000),
            STACKS: bytearray(0x1000),
            POINTERS: bytearray(0x80000),
            HEADERS: bytearray(0x1000),
            LARGE: bytearray(0x23000),
            CACHE: bytearray(0x10000),
            FAKE: bytearray(0x1000 + 0x800 + (11 << 16)),
        }
        self.used: dict[int, int] = {}
        self.put(DATA + 0x100, SPACE_AT, SPACE + 0x2000, CODE, 0, 0, 5000, INFOS, 0)
        self.put(DATA + 0x140, 4096, HEADERS, HEADERS, 0x800000, CODE, 0, 0x4000, 1)
        self.put(DATA + 0x200, POINTERS)
        for number, frames in enumerate(((CODE + 0x10, CODE + 0x20), (CODE + 0x10, 5), (CODE + 0x11,)), 1):
            self.put(STACKS + 64 * number, len(frames), *frames)
            self.put(POINTERS + 8 * number, STACKS + 64 * number)
        for number, carved in ((2, 8 * 32), (16, 4 * 256)):
            self.put(INFOS + 128 * number + 24, 0x10000 if number == 2 else 0, carved, 0, 0x10000)
        small = SPACE_AT + 2 * REGION
        self.chunk(small, USED, 5, 1)
        self.chunk(small + 32, USED, 16, 2)
        self.chunk(small + 64, FREED, 9, 1, 3)
        middle = SPACE_AT + 16 * REGION
        self.chunk(middle, USED, 100, 1, begin=64)
        self.chunk(middle + 256, FREED, 200, 2, 3, begin=32)
        self.put(HEADERS, LARGE)
        self.put(LARGE, LARGE, 0x23000, 0x22000, 0)
        self.chunk(LARGE + 4096, USED, 0x21000, 2, begin=2048)
        for number in range(1, 53):
            self.put(CACHE + 0x100 + number * CLASS, 0x100 << 32, class_size(number))
        self.put(CACHE + 0x100 + CLASS + 16, small + 48)  # two free chunks' offsets, which look like a pointer
        self.put(FAKE + 88, 16, 0)
        self.put(FAKE + 0x1000, 1 << 8)  # the second of the smallest frames is in use
        self.put(FAKE + 0x1800, small + 16, *[0] * 7, middle + 64)

    def put(self, address: int, *words: int) -> None:
        start = next(start for start, data in self.parts.items() if start <= address < start + len(data))
        struct.pack_into(f"<{len(words)}Q", self.parts[start], address - start, *words)

    def chunk(self, at: int, state: int, size: int, stack: int, freed: int = 0, begin: int = 16) -> int:
        """Return the header of a chunk whose block begins `begin` bytes after the start of the chunk."""
        if begin > 16:
            self.put(at, MAGIC, at + begin - 16)
        self.put(at + begin - 16, state | size << 32, stack, freed)
        if state == USED:
            self.used[at + begin] = size
        return at + begin - 16

    def target(self) -> fake.FakeTarget:
        return fake.FakeTarget(
            {**self.parts, CODE: bytes(0x1000)},
            permissions={CODE: "r-x"},
            modules=[Module("/lib/libasan.so.8", 0, CODE, DATA + 0x4000)],
        )

    def read(self, pure: bool = False) -> Directory:
        target = self.target()
        return build_directory(target, load(target.arch, pure))


@pytest.fixture
def image() -> Image:
    return Image()


def find_in_use(directory: Directory) -> dict[int, int]:
    blocks = directory.blocks
    return {blocks.address(i): blocks.size(i) for i in range(len(blocks)) if blocks.state(i) == State.IN_USE}


SMALL, MIDDLE = SPACE_AT + 2 * REGION, SPACE_AT + 16 * REGION


@pytest.mark.parametrize("pure", [False, True])
def test_every_block(image: Image, pure: bool) -> None:
    directory = image.read(pure)
    assert [allocator.title for allocator in directory.allocators] == ["AddressSanitizer"]
    assert directory.problems == [] and find_in_use(directory) == image.used and len(image.used) == 4
    blocks = directory.blocks
    assert len(blocks) == 8 + 4 + 1  # including the chunks that malloc never returned
    assert {blocks.state(blocks.find(address)) for address in (SMALL + 64 + 16, MIDDLE + 256 + 32, SMALL + 7 * 32 + 16)} == {State.FREE}
    assert directory.allocators[0].summary() == {"quarantined": 2, "large": 1}
    caches = {cache.name: cache for cache in directory.allocators[0].caches(blocks)}
    assert {name: (cache.in_use, cache.free, cache.own["quarantined"]) for name, cache in caches.items()} == {
        "32": (2, 6, 1),
        "256": (1, 3, 1),
        "large": (1, 0, 0),
    }


def test_stacks(image: Image) -> None:
    directory = image.read()
    sites = Sites(directory.allocators[0].recordings(directory.blocks))
    assert sites.warnings == []
    found = {address: [one.site.frames for one in sites.list_all(address)] for address in (*image.used, SMALL + 80, MIDDLE + 288)}
    first, second, third = (CODE + 0x10, CODE + 0x20), (CODE + 0x10, 5), (CODE + 0x11,)
    assert found == {
        SMALL + 16: [first],
        SMALL + 48: [second],
        MIDDLE + 64: [first],
        LARGE + 4096 + 2048: [second],
        SMALL + 80: [first, third],
        MIDDLE + 288: [second, third],
    }
    assert [(one.site.live, one.recording.freed) for one in sites] == [((2, 0x21010), False), ((2, 105), False), ((0, 0), True)]


def test_memory_that_is_no_root(image: Image) -> None:
    """Three kinds of memory are not roots: the shadow, the thread caches, and what functions that have returned left on a fake stack."""
    target = image.target()
    engine = load(target.arch)
    roots = root_ranges(target, engine, build_directory(target, engine).list_claimed())
    live = FAKE + 0x1800 + 64
    assert [Range(start, end) for start, end in roots if start >= FAKE] == [Range(live, live + 64)]
    assert not [start for start, _ in roots if start in range(SHADOW, SHADOW + 0x1000) or start in range(SMALL, INFOS + 0x2000)]
    cache = range(CACHE + 0x100, CACHE + 0x100 + 54 * CLASS)
    assert not [start for start, end in roots if start < cache.stop and end > cache.start]


Damage = Callable[[Image], None]
DAMAGES: dict[str, tuple[Damage, int, str]] = {
    "state": (lambda image: image.put(SMALL, 0x41 | 5 << 32, 1), SMALL, "has the state 65, which does not exist"),
    "size": (lambda image: image.put(SMALL, USED | 17 << 32, 1), SMALL, "has a size of 17 bytes, but the chunk has a capacity of 16"),
    "nothing": (lambda image: image.put(SMALL, USED, 1), SMALL, "has a size of 0 bytes"),
    "place": (lambda image: image.put(MIDDLE + 8, MIDDLE + 256), MIDDLE, "refers to a chunk header at"),
    "large": (lambda image: image.put(LARGE + 4096 + 2048 - 16, 0x55, 1), LARGE + 4096 + 2032, "has the state 85"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_headers(image: Image, name: str) -> None:
    """A block with a damaged header counts as in use, with the largest size that is possible. The other blocks do not change."""
    damage, address, what = DAMAGES[name]
    damage(image)
    directory = image.read()
    assert [(problem.address, what in problem.what) for problem in directory.problems] == [(address, True)]
    used = find_in_use(directory)
    others = {block: size for block, size in image.used.items() if used.get(block) == size}
    assert len(others) == 3 and len(used) == 4


def test_damaged_records(image: Image) -> None:
    image.put(INFOS + 128 * 2 + 24, 0, 33)
    image.put(LARGE, LARGE + 1)
    directory = image.read()
    assert [problem.address for problem in directory.problems] == [INFOS + 256, LARGE]
    assert find_in_use(directory) == {MIDDLE + 64: 100}


def test_damaged_depot(image: Image) -> None:
    """If a stack is unreadable, its site is empty and a warning is reported. Without a depot, there are no sites and no warning."""
    image.put(STACKS + 64 * 3, 1 << 40)
    image.put(POINTERS + 8 * 4, 0)
    directory = image.read()
    assert not Sites(directory.allocators[0].recordings(directory.blocks)).recordings
    image.put(STACKS + 64 * 3, 1)
    image.chunk(SMALL, USED, 5, 77)
    directory = image.read()
    sites = Sites(directory.allocators[0].recordings(directory.blocks))
    assert len(sites.warnings) == 1 and "1 of 3 stacks" in sites.warnings[0]
    assert sites[sites.of(SMALL + 16)].site.frames == ()


def test_older_headers(image: Image) -> None:
    """LLVM 11: the first word has the state and the thread (all bits are 1 in a free chunk); the second word has the size."""
    for at, size in ((SMALL, 5), (SMALL + 32, 16)):
        image.put(at, USED | 0xFFFFFF << 32 | 1 << 60, size | 7 << 32)
    image.put(SMALL + 64, 0)
    image.put(MIDDLE, 0)
    image.put(MIDDLE + 256, 0)
    directory = image.read()
    assert len(directory.blocks) == 0
    assert [problem.what.partition(":")[0] for problem in directory.problems] == [
        "AddressSanitizer in libasan.so.8 has the chunk headers of LLVM 11, GCC 10 or older"
    ]


@pytest.mark.parametrize("tagged", [False, True])
def test_hwasan_is_reported_as_unsupported(image: Image, tagged: bool) -> None:
    """HWASan keeps sizes and states outside of the chunks, and its pointers have tags. LeakSanitizer alone has no tags,
    so nothing is reported."""
    for number, count in ((2, 8), (16, 4)):
        image.put(INFOS + 128 * number + 40, 16 * count)
    target = image.target()
    target.tagged = tagged
    directory = build_directory(target, load(target.arch))
    assert len(directory.blocks) == 0
    said = [problem.what.partition(":")[0] for problem in directory.problems]
    assert said == ["HWAddressSanitizer in libasan.so.8 has an unsupported allocator, which stores sizes outside of the chunks"] * tagged


def test_reference_engine_reads_the_same(image: Image) -> None:
    """Chunks of all sizes that begin at any address, with random headers, intact and damaged."""
    rng = random.Random(7)
    native, pure = load(X86_64), load(X86_64, pure=True)
    for _ in range(200):
        size, start = class_size(rng.randrange(2, 40)), SMALL + 16 * rng.randrange(1000)
        data = bytearray(rng.randbytes(size * rng.randrange(1, 30)))
        for at in range(0, len(data), size):
            place = 16 * rng.randrange(size // 16)
            if rng.random() < 0.5:
                struct.pack_into("<QQ", data, at, MAGIC, start + at + rng.choice((place, place, place + 8, size)))
            else:
                place = 0
            state, used = rng.choice((0, 2, 2, 3, 3, 65)), rng.choice((rng.randrange(size + 2), 1 << 33))
            if rng.random() < 0.9:
                struct.pack_into("<Q", data, at + place, state | used << 32 & (1 << 64) - 1)
        piece = Piece(start, memoryview(data))
        assert read_chunks(native, piece, size) == read_chunks(pure, piece, size)


def test_interrupted(image: Image) -> None:
    target = image.target()
    target.stop_after(3)
    with pytest.raises(Interrupted):
        build_directory(target, load(target.arch))
