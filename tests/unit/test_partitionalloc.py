"""PartitionAlloc: every layout, damage and hostile memory. Both engines agree."""

from __future__ import annotations

import random
import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_partition import DATA, FILE, KINDS, POOL, ROOT, SEPARATE, SIZES, TID, Image, Kind, full, read

from findleaks.allocators import directory
from findleaks.allocators.directory import Directory
from findleaks.allocators.partitionalloc import find
from findleaks.allocators.partitionalloc import layout as at
from findleaks.allocators.partitionalloc.engine import Links, read_slots
from findleaks.allocators.partitionalloc.instance import Unread
from findleaks.allocators.partitionalloc.layout import PAGE, PARTITION_PAGE, SUPER_PAGE
from findleaks.engine import load
from findleaks.engine.reference.engine import PureEngine
from findleaks.target.arch import AARCH64, X86_64
from findleaks.target.base import Piece, Range

EVERY = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the finders of other allocators."""
    monkeypatch.setattr(directory, "FINDERS", ("findleaks.allocators.partitionalloc",))


def find_states(made: Directory, slots: list[int]) -> set[str]:
    found = [made.blocks.lookup(slot) for slot in slots]
    return {("IN_USE", "CACHED", "FREE", "METADATA")[one[3]] if one and one[1] == slot else "absent" for slot, one in zip(slots, found)}


@EVERY
def test_layouts(kind: Kind) -> None:
    """Each slot has its state and its size, and the counters agree."""
    image = full(kind)
    made, one = read(image.build())
    assert made.problems == [] and one.version == kind.name and one.where == "chromium"
    assert find_states(made, image.used) == {"IN_USE"} and find_states(made, image.cached) == {"CACHED"}
    assert find_states(made, image.free) == find_states(made, image.quarantined) == {"FREE"}
    assert {slot: made.blocks.lookup(slot)[2] for slot in image.used} == image.usable  # type: ignore[index]
    assert len(made.blocks) == len(image.used + image.cached + image.free + image.quarantined) + 1  # the last one is the thread cache
    assert [problem for problem in one.verify(made.blocks) if problem] == []
    (cache,) = one.thread_caches(made.blocks)
    assert (cache.thread, cache.name, cache.size, cache.blocks) == (TID, "64", 60, len(image.cached))


@EVERY
def test_statistics(kind: Kind) -> None:
    image = full(kind)
    made, one = read(image.build())
    rows = {row.name: row for row in one.caches(made.blocks)}
    row = rows["64"]
    assert (row.in_use, row.cached, row.free, row.own["brp_quarantined"]) == (31, 1, 122, 2)
    assert (row.own["active_slot_spans"], row.own["allocated_objects_count"], row.memory) == (1, 34, PARTITION_PAGE)
    assert rows["96"].own["empty_slot_spans"] == 1 and rows["24576"].own["full_slot_spans"] == 1
    assert (rows["24576"].in_use_bytes, rows["direct"].in_use_bytes) == (20000 - at.COUNTER, 1_500_000 - at.COUNTER)
    (arena,) = one.arenas(made.blocks)
    assert arena.in_use == sum(row.in_use_bytes for row in rows.values()) and arena.own["total_size_of_super_pages"] == SUPER_PAGE
    assert sum(row.total for row in rows.values()) == len(image.used + image.cached + image.free + image.quarantined)
    assert one.read_counters()["total_count_of_brp_quarantined_slots"] == 2
    assert one.summary() == {"partitions": 1, "super_pages": 1, "direct_maps": 1, "quarantined": 2}


def test_negative_counter() -> None:
    """If the counter of committed pages is negative, the partition has no spare memory."""
    image = full()
    target = image.build()
    image.put(image.counters, (1 << 64) - PAGE)
    for start, data in image.memory.items():
        target.write(start, bytes(data))
    made, one = read(target)
    (arena,) = one.arenas(made.blocks)
    assert arena.own["total_size_of_committed_pages"] == -PAGE
    assert (arena.spare, arena.mapped) == (0, at.METADATA * 2)


def test_locations() -> None:
    image = full()
    _, one = read(image.build())
    (slot,) = (slot for slot in image.used if image.usable[slot] == 64 - at.COUNTER and slot % PARTITION_PAGE == 0)
    assert one.locate(slot + 62) == f"reference counter or padding of the 64-byte block {slot:#x}"
    assert one.locate(POOL + 100) == "guard pages and metadata" and one.locate(SEPARATE + 40) == "metadata"
    assert one.locate(POOL + SUPER_PAGE - 2 * PARTITION_PAGE) == "unused pages" and one.locate(FILE) == ""
    assert one.class_of(slot) == "64" and one.class_of(POOL + 4 * SUPER_PAGE + PARTITION_PAGE) == "direct"
    assert Range(SEPARATE, SEPARATE + PAGE) in one.metadata() and any(start <= POOL < end for start, end in one.list_reserved())


@EVERY
def test_damaged_link(kind: Kind) -> None:
    """The free slots before the damaged link are free, and the others count as in use."""
    image = full(kind)
    free = [slot for slot in image.free if image.page + 3 * PARTITION_PAGE <= slot < image.page + 4 * PARTITION_PAGE]
    image.chain(free)
    image.put(image.entries[96], free[0])
    image.put(free[3], 0x4141414141414141, 0)
    made, _ = read(image.build())
    (problem,) = made.problems
    assert problem.corrupt and problem.damaged == Range(free[3], free[3] + 16)
    assert f"is damaged at {free[3]:#x}, after 4 of 10 slots: the others count as in use" in problem.what
    assert find_states(made, free[:4]) == {"FREE"} and find_states(made, free[4:]) == {"IN_USE"}


def test_double_free() -> None:
    """A list that returns to itself ends. A slot that is in a list and in a thread cache is reported."""
    image = full()
    free = [slot for slot in image.free if image.page + 3 * PARTITION_PAGE <= slot < image.page + 4 * PARTITION_PAGE]
    image.chain(free)
    image.put(image.entries[96], free[0])
    image.link(free[-1], free[0])
    image.span(32, "f")
    image.cache(32, [image.free[-1]])
    made, _ = read(image.build())
    assert any(f"is damaged at {free[-1]:#x}, after 10 of 10 slots" in problem.what for problem in made.problems)
    assert find_states(made, free) == {"FREE"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda image: image.put(image.entries[96] + 16, 0x1234), "the slots of a partition page are not read"),
        (lambda image: image.write(image.entries[96] + 24, b"\xff\xff\xff\xff"), "the slots of a partition page are not read"),
        (lambda image: image.put(image.page + image.distance, ROOT, ROOT, 1), "list of super pages is damaged"),
        (lambda image: image.put(image.counters + 32 + 8 * 4 + 8, 7), "total_count_of_brp_quarantined_slots"),
    ],
)
def test_damaged_metadata(change: object, expected: str) -> None:
    image = full()
    target = image.build()
    change(image)  # type: ignore[operator]
    for start, data in image.memory.items():
        target.write(start, bytes(data))
    made, one = read(target)
    found = [*made.problems, *(problem for problem in one.verify(made.blocks) if problem)]
    assert any(expected in problem.what for problem in found), found


def test_counters_disagree() -> None:
    image = full()
    target = image.build()
    target.write_word(image.counters + 32, image.allocated + 16)
    made, one = read(target)
    (problem,) = (problem for problem in one.verify(made.blocks) if problem)
    assert problem.address == image.counters and "total_size_of_allocated_bytes" in problem.what


def test_other_machines_and_layouts() -> None:
    """Memory that cannot be read is reported."""
    image = full()
    (unread,) = find(image.build(AARCH64), load.load(AARCH64), [])
    assert isinstance(unread, Unread) and "only on x86-64" in unread.problems[0].what
    image.write(image.bucket(16) + at.SLOT_SIZE, struct.pack("<I", 24))
    (unread,) = find(image.build(), load.load(X86_64), [])
    assert isinstance(unread, Unread) and "an unknown layout" in unread.problems[0].what and unread.heaps() == []


def test_absent() -> None:
    """Without slots at the start of a super page, no memory is read."""
    image = Image()
    image.memory = {start: data for start, data in image.memory.items() if start % SUPER_PAGE != PARTITION_PAGE}
    assert find(image.build(), load.load(X86_64), []) == []


@pytest.mark.parametrize(
    ("next_page", "count"), [(SUPER_PAGE, 2), ((1 << 64) - SUPER_PAGE, 1), ((1 << 64) - SUPER_PAGE, 0xFFFF), (POOL + SUPER_PAGE, 0x2000)]
)
def test_impossible_addresses(next_page: int, count: int) -> None:
    """Super pages below address 0, or above the end of user memory, are not read, and neither are direct maps there."""
    image = full()
    image.put(image.page + image.distance, ROOT, 0, count)
    image.put(image.extent - 24, next_page)
    made, _ = read(image.build())
    assert made.problems and all(0 <= start < end <= X86_64.top for start, end in made.ranges())


def test_shared_super_pages() -> None:
    """A super page is read only once, even if two extents contain it."""
    image = full()
    second = image.page + SUPER_PAGE + image.distance
    image.memory[second] = bytearray(PAGE)
    image.put(image.page + image.distance, ROOT, second, 2)
    image.put(second, ROOT, 0, 1)
    image.put(image.extent - 24, image.page + 2 * SUPER_PAGE)
    made, one = read(image.build())
    assert f"list of super pages is damaged at {second:#x}" in made.problems[0].what and find_states(made, image.used) == {"IN_USE"}
    assert one.summary()["super_pages"] == 2


@EVERY
def test_early_extent(kind: Kind) -> None:
    """A bucket is not mistaken for the member current_extent_, even if the lists of the bucket refer to the metadata of the partition."""
    image = full(kind)
    image.put(image.bucket(32), image.page + image.distance, image.page + image.distance)
    made, _ = read(image.build())
    assert made.problems == [] and find_states(made, image.used) == {"IN_USE"}


def test_many_roots() -> None:
    """The number of partitions that are read is limited."""
    image = full()
    data = DATA + 0x6000
    image.put(data, *(~(data + 8 * number & -64) & (1 << 64) - 1 for number in range(1, 0x400)))
    made, one = read(image.build())
    assert "has more than 64 partitions" in made.problems[0].what
    assert find_states(made, image.used) == {"IN_USE"} and len(one.anchors) <= 2 * at.MOST_ROOTS


def test_slots_in_two_lists() -> None:
    """A slot counts in only one list of thread caches, even if several lists contain it."""
    image = Image()
    image.span(64, "cc")
    cache = image.cache(64, image.cached)
    place = cache + image.kind.buckets + at.CACHE_BUCKET * SIZES.index(80)
    image.write(place, struct.pack("<QBBH", image.cached[0], 2, 64, 80))
    made, one = read(image.build())
    (problem,) = made.problems
    assert "2 free slots of 80 bytes, but its list has 0: the others count as in use" in problem.what
    assert [(row.name, row.blocks) for row in one.thread_caches(made.blocks)] == [("64", 2)]


@given(seed=st.integers(0, 1 << 32), kind=st.sampled_from(KINDS))
def test_hostile_words(seed: int, kind: Kind) -> None:
    """Random words in the metadata, in the root and in the links: the reader ends, in bounded time."""
    image, chance = full(kind), random.Random(seed)
    target = image.build()
    places = [start for start, data in image.memory.items() if len(data) <= 0x8000]
    known = [ROOT, POOL, image.page + image.distance, image.entries[64], *image.used[:3], *image.free[:3], 0, 1, (1 << 64) - 1]
    for _ in range(chance.randrange(1, 12)):
        start = chance.choice(places)
        target.write_word(start + 8 * chance.randrange(0x1000 // 8), chance.choice([*known, chance.getrandbits(64)]))
    engine = load.load(X86_64)
    made = directory.build_directory(target, engine)
    for one in made.allocators:
        assert all(problem.what for problem in one.problems)
        list(one.verify(made.blocks))
        one.caches(made.blocks), one.arenas(made.blocks), one.thread_caches(made.blocks)


@given(
    size=st.sampled_from([16, 48, 4096]),
    links=st.tuples(st.sampled_from([0, POOL]), st.booleans()),
    counted=st.booleans(),
    changes=st.lists(st.tuples(st.integers(0, 2047), st.integers(0, 1 << 64 - 1)), max_size=4),
    seed=st.integers(0, 1 << 32),
)
def test_engines_agree(size: int, links: tuple[int, bool], counted: bool, changes: list[tuple[int, int]], seed: int) -> None:
    chance, start, count = random.Random(seed), POOL + PARTITION_PAGE, 16384 // size
    data, page = bytearray(16384), bytearray(PAGE)
    for place in range(0, len(data), 16):
        struct.pack_into("<QII", data, place, 0, 0, chance.choice([0, 1, 6, 7]))
    free = chance.sample(range(count), chance.randrange(count))
    for one, following in zip(free, [*free[1:], None]):
        value = start + following * size - links[0] if following is not None else 0
        word = int.from_bytes(value.to_bytes(8, "big"), "little")
        struct.pack_into("<2Q" if links[1] else "<Q", data, one * size, *(word, word ^ (1 << 64) - 1)[: 1 + links[1]])
    for place, value in changes:
        struct.pack_into("<Q", data, 8 * place, value)
    cached = array("Q", sorted(start + one * size for one in set(range(count)).difference(free) if chance.random() < 0.1))
    head = start + free[0] * size if free else 0
    spans = array("Q", [start, size, count, head, 0, start, size, count // 2, head, count])
    pieces = [Piece(POOL + at.TABLE, memoryview(bytes(page))), Piece(start, memoryview(bytes(data)))]
    first = read_slots(PureEngine(X86_64), pieces, spans, Links(*links), counted, cached, count + count // 2)
    second = read_slots(load.load(X86_64), pieces, spans, Links(*links), counted, cached, count + count // 2)
    assert first == second
    if not changes:
        assert first.outcomes[0] == len(free) and first.outcomes[2] == 0
        assert {number for number in range(count) if first.bits[number // 8] >> number % 8 & 1} >= set(free)
