"""jemalloc's heaps in synthetic images: all supported layouts, and every kind of damage."""

from __future__ import annotations

import random

import graphs
import pytest
from image_jemalloc import (
    ARENA,
    ARENAS,
    BASE,
    BASE_SIZE,
    DATA,
    HEAP,
    HEAP_SIZE,
    INFOS,
    LEAF,
    PAGE,
    ROOT,
    SIZES,
    SMALL,
    TID,
    TLS,
    Image,
    profiler,
    read,
    states,
)

from findleaks.allocators import directory
from findleaks.allocators.base import State
from findleaks.allocators.directory import build_directory
from findleaks.allocators.jemalloc import layout
from findleaks.engine import load as engine
from findleaks.target.arch import X86_64, Arch


@pytest.fixture(autouse=True)
def jemalloc_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the finders of other allocators."""
    monkeypatch.setattr(directory, "FINDERS", ("findleaks.allocators.jemalloc",))


LAYOUTS = [(layout.EDATA, 48), (layout.EXTENT, 48), (layout.EDATA, 57), (layout.EXTENT, 57)]


@pytest.mark.parametrize("arch", [X86_64, graphs.ARCHES[3]], ids=lambda arch: arch.name)
@pytest.mark.parametrize(("kind", "bits"), [*LAYOUTS, (layout.EDATA, 64), (layout.EXTENT, 64)])
def test_every_layout(kind: layout.ExtentLayout, bits: int, arch: Arch) -> None:
    image = Image(kind, bits, arch)
    directory, jemalloc = read(image.build())
    assert directory.problems == []
    assert jemalloc.version == kind.name and jemalloc.where == "program" and jemalloc.parts.root.address == ROOT
    assert states(directory, image.blocks["used"]) == {"IN_USE"}
    assert states(directory, image.blocks["free"]) == {"FREE"}
    assert states(directory, image.cached) == {"CACHED"}
    assert states(directory, [image.stacks]) == {"METADATA"}
    assert directory.blocks.size(directory.blocks.find(image.odd)) == 20480
    assert directory.blocks.find(image.heap - PAGE) == -1, "dirty pages must not be blocks"
    assert [(cache.thread, cache.size, cache.blocks) for cache in jemalloc.thread_caches(directory.blocks)] == [(TID, 32, 2)]
    assert list(jemalloc.verify(directory.blocks)) == []
    (cache,) = [cache for cache in jemalloc.caches(directory.blocks) if cache.size == 32]
    assert (cache.in_use, cache.cached, cache.free, cache.total, cache.allocs) == (126, 2, 128, 256, 133)
    assert cache.own["curregs"] == 128 and cache.own["curslabs"] == 2 and cache.own["nregs"] == 128
    assert jemalloc.read_counters()["active"] == 3 * PAGE + 5 * PAGE + 6 * PAGE
    claimed = directory.list_claimed()
    for address in (BASE, ARENA, image.descriptors[0], ROOT, image.entries, image.dirty, image.bin_of_32, image.heads):
        assert any(start <= address < end for start, end in claimed), hex(address)


@pytest.mark.parametrize(
    ("row", "is_known"),
    [
        (layout.BINS[-1], True),  # the jemalloc in DuckDB
        (layout.BINS[-1]._replace(size=344, slabcur=312, nonfull=320), False),
    ],
    ids=["batches", "unknown"],
)
def test_bins_with_more_counters(row: layout.BinLayout, is_known: bool) -> None:
    """Counters of an unknown layout are not read. The thread cache is then found in thread-local storage."""
    image = Image(row=row)
    directory, jemalloc = read(image.build())
    assert directory.problems == [] and list(jemalloc.verify(directory.blocks)) == []
    assert (jemalloc.parts.shape.bins is not None, jemalloc.parts.shape.counts) == (is_known, is_known)
    assert states(directory, image.cached) == {"CACHED"} and states(directory, image.blocks["used"]) == {"IN_USE"}


def test_locations() -> None:
    image = Image()
    _, jemalloc = read(image.build())
    assert jemalloc.locate(image.odd) == "extent of a 20480-byte block of arena 0"
    assert jemalloc.locate(image.blocks["free"][0]) == "slab of 32-byte regions of arena 0"
    assert jemalloc.locate(image.heap - 1) == "dirty pages of arena 0"
    assert jemalloc.locate(ROOT) == "root of the radix tree" and jemalloc.locate(INFOS) == "table of small classes"
    assert jemalloc.locate(ARENA + 8) == "arena 0's structure" and jemalloc.locate(image.bin_of_32) == f"thread cache of thread {TID}"
    assert jemalloc.locate(DATA) == ""


def test_programs_without_a_heap() -> None:
    """Two programs: one with a large .bss and without jemalloc, and one whose jemalloc was never used."""
    image = Image()
    image.memory[DATA][ROOT - DATA :] = bytes(len(image.memory[DATA]) - (ROOT - DATA))
    assert build_directory(image.build(), engine.load(X86_64)).allocators == []
    image.memory[DATA][:] = bytes(len(image.memory[DATA]))
    assert build_directory(image.build(), engine.load(X86_64)).allocators == []


@pytest.mark.parametrize("word", [1, 2], ids=["address", "size"])
def test_descriptor_written_over(word: int) -> None:
    image = Image()
    target = image.build()
    target.write_word(image.descriptors[1] + 8 * word, 0x4141414141414141)
    directory, _ = read(target)
    assert any(problem.address == image.descriptors[1] and "not read" in problem.what for problem in directory.problems)
    assert states(directory, image.blocks["used"][100:]) == {"IN_USE"}, "the other extents must be read"


def test_class_written_over() -> None:
    image = Image()
    target = image.build()
    target.write_word(image.descriptors[1], 1 << 12 | 99 << layout.EDATA.szind)
    directory, _ = read(target)
    assert any("size class 99, but the number of these classes is 36" in problem.what for problem in directory.problems)
    assert states(directory, [image.odd]) == {"IN_USE"}


def test_invalid_tree() -> None:
    image = Image()
    target = image.build()
    target.write_word(ROOT + 8, 0xDEADBEEF)
    directory, _ = read(target)
    (problem,) = [problem for problem in directory.problems if problem.address == ROOT + 8]
    assert "0xdeadbeef" in problem.what
    assert states(directory, image.blocks["used"]) == {"IN_USE"}


def test_bitmap_against_count() -> None:
    image = Image()
    target = image.build()
    target.write_word(image.descriptors[1] + 64, 0)
    directory, jemalloc = read(target)
    (problem,) = [problem for problem in jemalloc.verify(directory.blocks) if "its bitmap has 32" in problem.what]
    assert problem.address == image.descriptors[1]


def test_freed_twice() -> None:
    image = Image()
    image.put(image.entries, image.cached[0], image.cached[0])
    directory, jemalloc = read(image.build())
    assert any("it was freed 2 times" in problem.what for problem in jemalloc.verify(directory.blocks))
    image.put(image.entries, image.cached[0], image.blocks["free"][0])
    directory, jemalloc = read(image.build())
    assert any("is free according to its slab" in problem.what for problem in jemalloc.verify(directory.blocks))


def test_cached_memory_is_no_block() -> None:
    image = Image()
    image.put(image.entries, image.cached[0] + 8, 0x4141414141414141)
    directory, jemalloc = read(image.build())
    reported = [problem.what for problem in directory.problems]
    assert any("0x4141414141414141, where no block begins" in what for what in reported) and any(
        hex(image.cached[0] + 8) in what for what in reported
    )
    found = [problem.what for problem in jemalloc.verify(directory.blocks)]
    assert any("8 bytes inside a block" in what for what in found) and any("which is not a block" in what for what in found)


@pytest.mark.parametrize("kind", [layout.EDATA, layout.EXTENT])
def test_stack_written_over(kind: layout.ExtentLayout) -> None:
    image = Image(kind)
    image.put(image.bin_of_32, 0x4141414100000000 if kind is layout.EXTENT else image.entries, 0, 0x41414141414141)
    directory, jemalloc = read(image.build())
    if kind is layout.EDATA:
        assert any("thread cache" in problem.what for problem in directory.problems)
    assert states(directory, image.blocks["used"]) == {"IN_USE"}
    assert jemalloc.thread_caches(directory.blocks) == []


def test_a_block_that_would_end_after_its_extent() -> None:
    """The position of the block in its page and its size class are separate fields of a descriptor. The next extent
    begins where the extent ends."""
    image = Image()
    start = image.heap
    image.extent(PAGE, layout.ACTIVE, SIZES.index(32), 0, 0, PAGE - 24)
    image.extent(PAGE, layout.ACTIVE, SIZES.index(PAGE), 0)
    directory, _ = read(image.build())
    blocks = directory.blocks
    assert [blocks.size(blocks.find(at)) for at in (start + PAGE - 24, start + PAGE)] == [24, PAGE]


@pytest.mark.parametrize("value", [0x4141414141414141, TLS + 0x1000, 8])
def test_invalid_ring(value: int) -> None:
    image = Image()
    image.put(TLS + 0x1000 + 16, value)
    directory, _ = read(image.build())
    assert any("the list of thread caches of arena 0" in problem.what for problem in directory.problems)
    assert states(directory, image.cached) == {"CACHED"}, "the first extent of the list is intact"


def test_tree_and_links_against_descriptors() -> None:
    image = Image()
    key = (HEAP >> 12) + 5 + 2
    image.put(LEAF + 8 * (key & (1 << 18) - 1), SMALL.index(64) << 48 | image.descriptors[1] | 1)
    large = [image.descriptors[0], image.descriptors[4]]
    image.put(large[0] + 40, large[1], large[1])
    image.put(large[1] + 40, large[0], large[1])
    directory, jemalloc = read(image.build())
    found = [problem.what for problem in jemalloc.verify(directory.blocks)]
    assert any("the radix tree has" in what or "radix tree" in what for what in found + [problem.what for problem in directory.problems])
    assert any("does not link" in what for what in found)


def test_counters_that_differ_are_reported() -> None:
    image = Image()
    row = layout.BINS[0]
    image.put(image.bins + SMALL.index(32) * row.size + row.stats + 24, 129)
    directory, jemalloc = read(image.build())
    (problem,) = [problem for problem in directory.problems if "regions in" in problem.what]
    assert not problem.corrupt and "129 regions in 2 slabs of 32 bytes; 128 in 2 were found" in problem.what
    assert any("do not add up" in found.what for found in jemalloc.verify(directory.blocks))


@pytest.mark.parametrize("seed", range(12))
def test_any_damage_is_handled(seed: int) -> None:
    """Random words of jemalloc's metadata are changed: the walk ends without an exception, and no two blocks overlap."""
    chance = random.Random(seed)
    image = Image(*LAYOUTS[seed % len(LAYOUTS)])
    own = profiler(image, layout.PROFILES[seed % len(layout.PROFILES)])
    spots = [
        *(d + 8 * i for d in image.descriptors for i in range(9)),
        *range(BASE, BASE + 48, 8),
        *range(BASE + 192, BASE + 192 + 256, 8),
        *range(image.heads, image.heads + 16, 8),
        *range(TLS + 0x1000, TLS + 0x1100, 8),
        *range(TLS + 0x2000, TLS + 0x2800, 8),
        *range(image.bins, image.bins + 2000, 8),
        *range(INFOS, INFOS + 400, 8),
        *range(ARENAS, ARENAS + 80, 8),
        *range(DATA + 0x9000, DATA + 0x9030, 8),
        *(at + 8 * i for at in own.values() for i in range(16)),
        *range(LEAF + 8 * (HEAP >> 12 & (1 << 18) - 1), LEAF + 8 * (HEAP >> 12 & (1 << 18) - 1) + 400, 8),
    ]
    values = [0, 1, (1 << 64) - 1, HEAP, HEAP + 8, BASE, ARENA, LEAF, TLS + 0x1000, 0x4141414141414141, 1 << 47, *image.descriptors]
    for spot in chance.sample(spots, 12):
        image.put(spot, chance.choice([*values, chance.getrandbits(64)]))
    directory = build_directory(image.build(), engine.load(X86_64))
    for jemalloc in directory.allocators:
        blocks = directory.blocks
        assert list(jemalloc.verify(blocks)) is not None
        jemalloc.caches(blocks), jemalloc.arenas(blocks), jemalloc.thread_caches(blocks), jemalloc.read_counters(), jemalloc.summary()
        end = 0
        for index in range(len(blocks)):
            assert blocks.address(index) >= end
            end = blocks.address(index) + blocks.size(index)
        assert blocks.totals(State.IN_USE).bytes < HEAP_SIZE + BASE_SIZE
