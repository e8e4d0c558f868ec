"""Google's tcmalloc in handmade images: every layout, every cache, and every kind of damage."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from fake import FakeTarget
from googleimage import CPUS, FREE, HEAP, IMAGE, LISTED, MAPPED, ROOT, SMALL, STACK, USUAL, Image, make_image
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.allocators import tcmalloc_google
from findleaks.allocators.tcmalloc_google.instance import GoogleTcmalloc
from findleaks.allocators.tcmalloc_google.layout import LAYOUTS, LISTS, SLOT_INFO, Layout
from findleaks.engine import load as engine
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.target.arch import X86_64
from findleaks.target.base import Module

ENGINES = [engine.load(X86_64), engine.load(X86_64, pure=True)]


def read(target: FakeTarget, which: int = 0) -> tuple[GoogleTcmalloc, Blocks]:
    """Return the only allocator, and its blocks."""
    (one,) = tcmalloc_google.find(target, ENGINES[which])
    assert isinstance(one, GoogleTcmalloc)
    blocks = ENGINES[which].blocks(X86_64, one.granule)
    for heap in one.heaps():
        heap.walk(blocks)
    blocks.seal()
    one.mark_blocks(blocks)
    return one, blocks


def list_states(image: Image, name: str, size: int, blocks: Blocks, count: int) -> list[State]:
    at = [blocks.find(image.starts[name] + size * number) for number in range(count)]
    assert all(blocks.address(index) == image.starts[name] + size * number for number, index in enumerate(at))
    assert {blocks.size(index) for index in at} == {size}
    return [blocks.state(index) for index in at]


@pytest.mark.parametrize("which", [0, 1], ids=["native", "pure"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_layout(layout: Layout, which: int) -> None:
    image = make_image(layout)
    one, blocks = read(image.target(), which)
    assert one.place.layout == layout
    assert one.problems == []
    assert list(filter(None, one.verify(blocks))) == []
    assert min(one.checked.values()) > 0
    cached = {0, 1, 2, 3, 4} | ({5, 6} if layout.transfer else set())
    for number, state in enumerate(list_states(image, "listed", 16, blocks, 80)):
        want = State.FREE if number in FREE else State.CACHED if number in cached else State.METADATA if number == 9 else State.IN_USE
        assert state == want, number
    count = layout.page // 2048
    assert list_states(image, "mapped", 2048, blocks, 2) == [State.CACHED, State.FREE]
    assert set(list_states(image, "full", 2048, blocks, count)) == {State.IN_USE}
    assert blocks.size(blocks.find(image.starts["large"])) == 70 * layout.page
    assert blocks.size(blocks.find(image.starts["sampled"])) == 512


@pytest.mark.parametrize("layout", [USUAL, SMALL], ids=str)
def test_caches_add_up(layout: Layout) -> None:
    image = make_image(layout)
    one, blocks = read(image.target())
    rows = {cache.name: cache for cache in one.caches(blocks)}
    small = rows["16"]
    kept = {"cpu": 3, "thread": 2, "transfer": int(layout.transfer), "shard": int(layout.transfer)}
    assert {kind: small.own[kind] for kind in kept} == kept
    assert (small.cached, small.free, small.own["central"]) == (sum(kept.values()), len(FREE), len(FREE))
    assert small.total + 1 == layout.page // 16  # the block in place of the sampled one is allocator metadata
    assert (rows["large"].in_use, rows["large"].in_use_bytes) == (2, 70 * layout.page + 512)
    assert sum(row.total for row in rows.values()) + 1 == len(blocks)
    counted = one.read_counters()
    assert counted["tcmalloc.cpu_free"] == 48
    assert counted["tcmalloc.current_total_thread_cache_bytes"] == 32 + 2048
    assert counted["tcmalloc.central_cache_free"] == 16 * len(FREE) + 2048
    (arena,) = one.arenas(blocks)
    assert arena.in_use == sum(row.in_use_bytes for row in rows.values())
    found = {(cache.thread, cache.name): cache.blocks for cache in one.thread_caches(blocks)}
    assert found == {(0, "16 of CPU 0"): 2, (0, "16 of CPU 2"): 1, (42, "16"): 2, (42, "2048"): 1}


def test_allocator_metadata() -> None:
    image = make_image()
    one, _ = read(image.target())
    assert [(heap.start, heap.end) for heap in one.heaps()] == [(HEAP, (image.page << USUAL.shift) + 4096)]
    own = one.metadata()
    for address in (image.spans["large"], image.cache, image.slab, image.sample, CPUS, ROOT, image.size_map, image.central(3)):
        assert any(start <= address < end for start, end in own), hex(address)
        assert one.locate(address) or address in (ROOT, image.size_map, CPUS)
    assert not any(start < STACK + 0x4000 and end > STACK for start, end in own)
    assert one.locate(image.starts["listed"] + 20).startswith("span of 16-byte blocks")
    assert one.locate(image.page << USUAL.shift) == "free pages of the page heap"
    assert one.locate(STACK) == ""


def test_a_freed_region_belongs_to_the_allocator() -> None:
    """A region whose blocks were all freed has no entry in the page map."""
    image = make_image()
    target = image.target()
    regions = target.regions()
    assert HEAP % (2 << 20) == 0
    free = HEAP + (64 << 20)
    more = FakeTarget(
        {region.start: target.read(region.start, region.end - region.start) for region in regions}
        | {free: bytes(2 << 20), free + (6 << 20): bytes(4096)},
        names={IMAGE: "/bin/any"},
        modules=target.modules(),
    )
    one, _ = read(more)
    assert [heap.start for heap in one.heaps()] == [HEAP, free]


def test_process_without_tcmalloc() -> None:
    """If no image has enough data, no memory is read."""
    small = FakeTarget({IMAGE: bytes(1 << 19)}, modules=[Module("/lib/any.so", IMAGE, IMAGE, IMAGE + (1 << 19))])
    small.pieces = lambda start, end: pytest.fail("memory was read")  # type: ignore[method-assign]
    assert tcmalloc_google.find(small, ENGINES[0]) == []
    large = FakeTarget({IMAGE: bytes(2 << 20)}, modules=[Module("/lib/any.so", IMAGE, IMAGE, IMAGE + (2 << 20))])
    large.write_word(IMAGE + 0x100, 8 << 32)
    assert tcmalloc_google.find(large, ENGINES[0]) == []


Damage = Callable[[Image], None]


def pages(image: Image) -> None:
    image.words[image.spans["full"] + 32] = 5


def no_pages(image: Image) -> None:
    image.words[image.spans["large"] + 32] = 0


def beyond_its_mapping(image: Image) -> None:
    image.words[image.spans["large"] + 32] = 1 << 30


def odd_size(image: Image) -> None:
    image.words[image.sample + 56] = 333


def size_class(image: Image) -> None:
    page = image.starts["full"] >> USUAL.shift
    image.enter(page, image.spans["full"] | 77 << 48, 77)


def index(image: Image) -> None:
    image.parts[image.spans["listed"] + 40] = struct.pack("<H", 3)


def chain(image: Image) -> None:
    image.parts[image.starts["listed"] + 16 * 48] = struct.pack("<2H", 0xFFF0, 5)
    image.words[image.spans["listed"] + 16] = 0 | 96 << 16 | (USUAL.page // 16 - len(FREE)) << 32


def allocated(image: Image) -> None:
    image.words[image.spans["listed"] + 16] += 3 << 32


def slab(image: Image) -> None:
    image.parts[image.slab + 4 * 5] = struct.pack("<2H", 9999, 1)


def in_slab(image: Image) -> None:
    image.words[image.slab + 8 * (USUAL.first_begin + 5 * (LISTED - 1))] += 4


def slots(image: Image) -> None:
    image.words[image.transfers + LISTED * USUAL.stride + SLOT_INFO] = 70 | 64 << 32


def link(image: Image) -> None:
    image.words[image.starts["listed"] + 48] = STACK


def loop(image: Image) -> None:
    image.words[image.starts["listed"] + 64] = image.starts["listed"] + 48


def sample(image: Image) -> None:
    image.words[image.sample + 56] = 1 << 60


@pytest.mark.parametrize(
    ("damage", "reported"),
    [
        (pages, "spans of its size class"),
        (no_pages, "has 0 pages"),
        (beyond_its_mapping, "which are not all mapped"),
        (size_class, "has size class 77, which does not exist"),
        (index, "it has the index of a block that does not exist, or one index twice"),
        (chain, "it continues at index"),
        (allocated, "30 on its free list"),
        (slab, "has an invalid header"),
        (in_slab, "a cache has 0x"),
        (slots, "which is impossible"),
        (link, "1 on the list, 2 by its count; node 0x7fff00000000"),
        (loop, "has a cycle at"),
        (sample, "the record of the sampled block at"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_damage_is_reported(damage: Damage, reported: str) -> None:
    """Damage is reported, and the rest is read."""
    image = make_image()
    damage(image)
    one, blocks = read(image.target())
    assert any(reported in problem.what for problem in one.problems), one.problems
    assert blocks.size(blocks.find(image.starts["sampled"])) in (512, USUAL.page)
    list(one.verify(blocks))


def test_a_sampled_block_of_an_odd_size() -> None:
    """The requested size is a word of the target, which can be overwritten."""
    image = make_image()
    odd_size(image)
    one, blocks = read(image.target())
    assert one.problems == []
    assert blocks.size(blocks.find(image.starts["sampled"])) == 333


def wrong_page(image: Image) -> None:
    image.words[image.leaf(image.starts["full"] >> USUAL.shift) + USUAL.spans_at + 8 * (image.starts["full"] >> USUAL.shift & 0x7FFF)] |= (
        1 << 63
    )


def bitmap(image: Image) -> None:
    image.words[image.spans["full"] + 40] = 1


def ring(image: Image) -> None:
    image.words[image.spans["mapped"] + 8] = STACK


def off_ring(image: Image) -> None:
    head = image.central(MAPPED) + LISTS
    image.words[head] = image.words[head + 8] = head


def twice(image: Image) -> None:
    image.words[image.slab + 8 * (USUAL.first_begin + 5 * (LISTED - 1))] += 32


def other_class(image: Image) -> None:
    image.words[image.slab + 8 * (USUAL.first_begin + 5 * (LISTED - 1))] = image.starts["full"]


@pytest.mark.parametrize(
    ("damage", "reported"),
    [
        (wrong_page, "the page map has page"),
        (bitmap, "1 free by its bitmap"),
        (ring, "before it"),
        (off_ring, "are on no central list"),
        (twice, "it was freed twice"),
        (other_class, "which is a block of 2048 bytes"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_verify(damage: Damage, reported: str) -> None:
    image = make_image()
    damage(image)
    one, blocks = read(image.target())
    assert any(problem is not None and reported in problem.what for problem in one.verify(blocks))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 30), st.integers(0, (1 << 64) - 1) | st.integers(HEAP, HEAP + 1000) | st.integers(0, 9)), max_size=6
    )
)
def test_any_damage(changes: list[tuple[int, int]]) -> None:
    """No exception and no endless loop, whatever the words are."""
    image = make_image(SMALL)
    target = image.target()
    known = sorted(image.words)
    for where, value in changes:
        target.write_word(known[where % len(known)], value)
    for one in tcmalloc_google.find(target, ENGINES[0]):
        assert isinstance(one, GoogleTcmalloc)
        blocks = ENGINES[0].blocks(X86_64, one.granule)
        for heap in one.heaps():
            heap.walk(blocks)
        blocks.seal()
        one.mark_blocks(blocks)
        list(one.verify(blocks))
        one.caches(blocks)
        one.arenas(blocks)
        one.thread_caches(blocks)
        one.metadata()


WILD = 0x4141414141414140
WRONG_SAMPLES = [(56, 1 << 40), (56, 0), (40, 1 << 30), (72, 1 << 60), (96, HEAP), (104, 65), (104, 0), (-1, WILD)]


@pytest.mark.parametrize(("offset", "value"), WRONG_SAMPLES)
def test_a_damaged_sample_has_no_stack(offset: int, value: int) -> None:
    """The other sample has its stack. -1: the span's pointer to the record is damaged."""
    image = make_image()
    more = image.allocate(624)
    image.span("another", pages=1, sample=more)
    first = image.words[image.spans["sampled"] + 40]
    starts = [image.starts[name] for name in ("sampled", "another")]
    for start, sample in zip(starts, (first, more)):
        fields = {40: 500, 56: 512, 72: 100_000, 96: start, 104: 2, 112: 0x1000, 120: start}
        image.words.update({sample + at: word for at, word in fields.items()})
    for damaged in (False, True):
        target = image.target()
        if damaged:
            target.write_word(image.spans["another"] + 40 if offset < 0 else more + offset, value)
        one, blocks = read(target)
        (found,) = one.recordings(blocks)
        assert list(found.addresses) == starts[: 2 - damaged]
        assert found.sites[found.site_of[0]].frames == (0x1000, starts[0])
        where = hex(WILD if offset < 0 else more)
        assert [where in warning and hex(starts[1]) in warning for warning in found.warnings] == [True] * damaged
