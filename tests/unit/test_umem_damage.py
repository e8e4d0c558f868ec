"""Damage in libumem's structures: verify names it, and what is not damaged is still read."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest
from umemimage import DATA, DEBUG, HEAP, UmemImage, read

from findleaks.allocators import umem
from findleaks.allocators.umem.layout import MALLOC_MAGIC, OVERSIZE_MAGIC
from findleaks.engine import load as engine
from findleaks.engine.terms import State


class Made:
    """An image with blocks in use and freed ones of umem_alloc_128, and a large one; `target` is written already."""

    def __init__(self, debug: int = DEBUG) -> None:
        self.image = UmemImage(debug=debug)
        self.blocks = [self.image.malloc(100) for _ in range(20)]
        ways = ("slab", "loaded", "slab", "loaded", "depot", "depot", "depot", "depot")
        self.freed = [self.image.malloc(100) for _ in ways]
        for block, way in zip(self.freed, ways):
            self.image.release(block - 16, 8, way)
        self.large = [self.image.malloc(50000), self.image.malloc(60000)]
        self.cache = self.image.named("umem_alloc_128")
        self.target = self.image.target()
        self.nullslab = self.cache.address + 232 + 40 + 96

    def word(self, address: int) -> int:
        return self.target.word(address)

    def said(self) -> list[str]:
        """What reading and verifying say, with addresses."""
        found, blocks = read(self.target)
        problems = [*found.problems, *found.verify(blocks)]
        return [f"{problem.address:#x} {problem.what}" for problem in problems]


def _after_free(made: Made, which: int) -> int:
    made.target.write_word(made.freed[which] + 16, 0x6161)
    return made.freed[which] + 16


def _past_end(made: Made) -> int:
    made.target.write(made.blocks[0] + 100, b"A")
    return made.blocks[0] + 100


def _redzone(made: Made) -> int:
    made.target.write(made.blocks[0] - 16 + 128, b"AAAA")
    return made.blocks[0] - 16 + 128


def _size(made: Made) -> int:
    made.target.write(made.blocks[0] - 16 + 132, b"AAAA")
    return made.blocks[0] - 16 + 132


def _tag(made: Made) -> int:
    made.target.write_word(made.blocks[0] - 16 + 144, 0x41414141)
    return made.blocks[0] - 16 + 144


def _twice(made: Made) -> int:
    """A tag that says a buffer in use is free: it was freed twice, or handed out twice."""
    place = made.blocks[0] - 16 + 144
    made.target.write_word(place, made.word(place - 8) ^ 0xF4EEF4EE)
    return place


def _bufctl(made: Made) -> int:
    bufctl = made.word(made.blocks[0] - 16 + 136)
    made.target.write_word(bufctl + 16, 0x4242)
    return made.blocks[0] - 16 + 136


def _malloc_tag(made: Made) -> int:
    made.target.write(made.blocks[3] - 4, b"\1\2\3\4")
    return made.blocks[3] - 8


def _refcnt(made: Made) -> int:
    slab = made.cache.slabs[0].address
    made.target.write_word(slab + 40, 77)
    return slab


def _slab_link(made: Made) -> int:
    slab = made.cache.slabs[1].address
    made.target.write_word(slab + 24, 0x7777)
    return slab


def _cache_link(made: Made) -> int:
    made.target.write_word(made.cache.address + 200, 0x7777)
    return made.cache.address


def _depot(made: Made) -> int:
    depot = made.nullslab + 72 + 40
    made.target.write_word(depot + 16, 9)
    return made.cache.address


def _inuse(made: Made) -> int:
    arena = made.image.named_arena("umem_oversize").address
    made.target.write_word(arena + 32 + 48 + 40 + 16 + 96 + 464 + 256 + 65 * 32, 12345)
    return arena


DAMAGE: dict[str, tuple[Callable[[Made], int], str]] = {
    "written after free": (lambda made: _after_free(made, 0), "was written to after it was freed: it has 0x6161 at +0x20"),
    "written in a magazine": (lambda made: _after_free(made, 1), "was written to after it was freed"),
    "a byte past the end": (_past_end, "which has 116 bytes: the byte behind it is 0x41, not 0xbb"),
    "redzone": (_redzone, "its redzone is 0x41414141, not 0xfeedface"),
    "size in the redzone": (_size, "the size in its redzone is 0x41414141"),
    "buftag": (_tag, "the tag behind buffer"),
    "buftag says free": (_twice, "is in use, and its tag says free"),
    "bufctl": (_bufctl, "which is not its bufctl"),
    "malloc's tag": (_malloc_tag, "malloc's tag before"),
    "slab's count": (_refcnt, "counts 77 of"),
    "slab's link": (_slab_link, "says 0x7777 comes before it"),
    "cache's link": (_cache_link, "says 0x7777 comes before it"),
    "depot's count": (_depot, "counts 9 full magazines; it has 1"),
    "bytes in use": (_inuse, "counts 12,345 bytes in use"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_verify_names_what_is_wrong(kind: str) -> None:
    made = Made()
    assert made.said() == []
    damage, text = DAMAGE[kind]
    address = damage(made)
    assert [said for said in made.said() if said.startswith(f"{address:#x} ") and text in said], made.said()


def test_a_lost_entry_of_the_hash_table() -> None:
    made = Made()
    table = made.word(made.nullslab + 64)
    bucket = next(table + 8 * i for i in range(64) if made.word(table + 8 * i))
    buffer = made.word(made.word(bucket) + 8)
    made.target.write_word(bucket, made.word(made.word(bucket)))
    assert any(said.startswith(f"{buffer:#x}") and "is handed out and is not in the cache's hash table" in said for said in made.said())


def test_freed_twice_into_magazines() -> None:
    made = Made(debug=0)
    magazine = made.word(made.nullslab + 72 + 40 + 8)
    made.target.write_word(magazine + 16, made.word(magazine + 8))
    assert any("is in a magazine and is in another magazine, too: freed twice" in said for said in made.said())


def survivors(made: Made) -> dict[int, State]:
    found, blocks = read(made.target)
    assert found.problems
    return {blocks.address(i): blocks.state(i) for i in range(len(blocks))}


@pytest.mark.parametrize("debug", [0, DEBUG])
def test_a_broken_ring_of_caches_is_read_from_both_ends(debug: int) -> None:
    made = Made(debug)
    made.target.write_word(made.image.named("umem_alloc_32").address + 192, 0x4444)
    assert set(made.blocks) < set(survivors(made))


def test_a_broken_list_of_slabs_loses_the_slabs_behind_alone() -> None:
    made = Made()
    first, second = made.cache.slabs[:2]
    made.target.write_word(first.address + 16, 0x4444)
    left = survivors(made)
    held = {block for block in made.blocks if first.base <= block < first.base + made.cache.slabsize}
    assert held and held < set(left)
    assert not any(second.base <= block < second.base + made.cache.slabsize for block in left)
    assert set(made.large) < set(left)


def test_a_free_list_that_runs_into_itself() -> None:
    made = Made(debug=0)
    slab = made.cache.slabs[0]
    head = made.word(slab.address + 32)
    made.target.write_word(head, head)
    left = survivors(made)
    assert {left[block] for block in made.blocks} == {State.IN_USE}


def test_a_magazine_with_an_address_of_no_buffer() -> None:
    made = Made(debug=0)
    magazine = made.word(made.nullslab + 72 + 40 + 8)
    made.target.write_word(magazine + 8, made.blocks[0] + 1)
    assert any("which is no buffer of it" in said for said in made.said())
    assert survivors(made)[made.blocks[0]] == State.IN_USE


def test_arenas_that_are_none() -> None:
    made = Made(debug=0)
    made.target.write_word(made.cache.address + 120 + 48, 0x4444)
    left = survivors(made)
    assert set(made.large) == set(left)


@pytest.mark.parametrize("debug", [0, DEBUG])
@pytest.mark.parametrize("pure", [False, True], ids=("kernel", "pure"))
def test_random_damage_never_ends_the_reading(debug: int, pure: bool) -> None:
    """Whatever word is overwritten, by whatever: the reader returns. (A damaged null cache is no libumem.)"""
    random_ = random.Random(20260101 + debug)
    made = Made(debug)
    structures = [cache.address for cache in made.image.caches] + [arena.address for arena in made.image.arenas]
    structures += [slab.address for cache in made.image.caches for slab in cache.slabs]
    for _ in range(100):
        place = random_.choice((made.image.null, DATA + 0xA000, HEAP + 0x1000, *structures)) + 8 * random_.randrange(90)
        old = made.target.read(place, 8)
        value = random_.choice((0, 1, 8, 0xFFFFFFFFFFFFFFFF, HEAP, HEAP + 8, place, 1 << 63, 0x4141414141414141, random_.getrandbits(64)))
        made.target.write_word(place, value)
        found = umem.find(made.target, engine.load(made.target.arch, pure), [])
        if found:
            umem_, blocks = read(made.target, pure)
            list(umem_.verify(blocks))
            umem_.caches(blocks)
            umem_.arenas(blocks)
            umem_.metadata()
            for block in made.blocks[:2]:
                umem_.stack(block)
        made.target.write(place, old)
    assert made.said() == []


def _segments_of(made: Made, start: int) -> list[int]:
    """The addresses of arenas' records {start, end, …} of the segment that begins at `start`."""
    found = []
    for base, data in made.target._memory.items():
        at = bytes(data).find(start.to_bytes(8, "little"))
        while at >= 0:
            if start < made.word(base + at + 8) < start + (1 << 20):
                found.append(base + at)
            at = bytes(data).find(start.to_bytes(8, "little"), at + 1)
    return found


@pytest.mark.parametrize("pure", [False, True])
def test_a_large_block_smaller_than_its_tags(pure: bool) -> None:
    """Its segment has 8 bytes, as the tag of 16 bytes says, which is in them only in part."""
    made = Made()
    start = made.large[0] - 16
    for record in _segments_of(made, start):
        made.target.write_word(record + 8, start + 8)
    made.target.write(start, struct.pack("<4I", 0, MALLOC_MAGIC, 8, (OVERSIZE_MAGIC - 8) % (1 << 32)))
    _, blocks = read(made.target, pure)
    assert blocks.size(blocks.find(start)) == 8


@pytest.mark.parametrize("pure", [False, True])
def test_a_segment_that_begins_between_two_words(pure: bool) -> None:
    made = Made()
    records = _segments_of(made, made.large[0] - 16)
    for record in records:
        made.target.write_word(record, made.word(record) + 3)
    found, blocks = read(made.target, pure)
    named = [problem.address for problem in found.problems if "is corrupt" in problem.what]
    assert records and set(named) == set(records)
    assert blocks.find(made.large[1]) >= 0
