"""Unused parts of a Java heap. No part counts as unused if a bound is wrong or a collection is running."""

from __future__ import annotations

from collections.abc import Sequence

import jvmimage
import pytest
from fake import FakeTarget
from heaps import ListAllocator, Listed, session
from jvmimage import HEAP, HEAP_SIZE, OBJECTS, Image

from findleaks.audit.references import find_references
from findleaks.engine.contract import Engine
from findleaks.engine.terms import Kind
from findleaks.runtimes.base import Runtime
from findleaks.runtimes.jvm import spaces
from findleaks.runtimes.jvm.spaces import REGION
from findleaks.runtimes.jvm.tables import Tables

SPACES = [
    (HEAP, HEAP + 0x4000, HEAP + 0x8000),
    (HEAP + 0x8000, HEAP + 0x8100, HEAP + 0xA000),
    (HEAP + 0xA000, HEAP + 0xA000, HEAP + 0xC000),
    (HEAP + 0x10000, HEAP + 0x11000, HEAP + HEAP_SIZE),
]
REGIONS = [
    (at, at + used, at + jvmimage.REGION)
    for at, used in zip(range(HEAP, HEAP + HEAP_SIZE, jvmimage.REGION), [0x4000, 0, jvmimage.REGION, 8, 0] + [0] * 11)
]
BUFFERS = [(HEAP, HEAP + 0x800, HEAP + 0x1000 - 16), (HEAP + 0x1000, HEAP + 0x1000, HEAP + 0x1800 - 16), (0, 0, 0)]


def find_jvm(target: FakeTarget) -> Runtime:
    (found,) = session(target, []).runtimes
    return found


def find_unused(image: Image) -> list[tuple[int, int]]:
    return [(start - HEAP, end - HEAP) for start, end in find_jvm(image.target()).dead()]


@pytest.mark.parametrize("collector", ["Serial", "Parallel"])
def test_above_the_tops_of_generations(collector: str) -> None:
    joined = [(0x4000, 0x8000), (0x8100, 0xC000), (0x11000, HEAP_SIZE)]
    assert find_unused(Image(collector, SPACES)) == joined
    assert find_unused(Image(collector, SPACES, BUFFERS)) == [(0x800, 0x1800), *joined]


@pytest.mark.parametrize("flag", ["_is_gc_active", "_is_stw_gc_active"])
def test_above_the_tops_of_regions(flag: str) -> None:
    image = Image("G1", REGIONS, BUFFERS, flag)
    assert find_unused(image) == [(0x800, 0x1800), (0x4000, 0x20000), (0x30008, HEAP_SIZE)]
    (heap,) = (part for part in find_jvm(image.target()).parts() if part.name == "Java heap")
    assert (heap.used, heap.detail) == (0x14008, "3 regions of 0 MiB in use, 1 MiB reserved")


@pytest.mark.parametrize(
    "image",
    [
        Image("Z", ()),
        Image("Serial", SPACES, BUFFERS, active=True),
        Image("G1", REGIONS, BUFFERS, active=True),
        Image("Parallel", SPACES, BUFFERS, flag=""),
    ],
)
def test_nothing_during_a_collection_or_if_unknown(image: Image) -> None:
    assert find_unused(image) == []


@pytest.mark.parametrize("collector", ["Serial", "Parallel"])
@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("wrong", [(0, HEAP + 0x20, HEAP + 0x40), (HEAP, HEAP + 0x5000, HEAP + 0x4000), (HEAP, HEAP, HEAP + 2 * HEAP_SIZE)])
def test_nothing_if_a_bound_of_a_space_is_wrong(collector: str, which: int, wrong: tuple[int, int, int]) -> None:
    """Three cases: the space is outside of the heap, its top is above its end, or it overlaps with another space. Then
    the other spaces may be wrong, too."""
    assert find_unused(Image(collector, [wrong if number == which else space for number, space in enumerate(SPACES)], BUFFERS)) == []


@pytest.mark.parametrize("wrong", [(HEAP, HEAP, HEAP + jvmimage.REGION), (HEAP + 0x30000, HEAP + 0x30000 - 8, HEAP + 0x40000), (0, 0, 0)])
def test_a_region_at_a_wrong_address_is_left_out(wrong: tuple[int, int, int]) -> None:
    image = Image("G1", [wrong if number == 3 else region for number, region in enumerate(REGIONS)])
    assert find_unused(image) == [(0x4000, 0x20000), (0x40000, HEAP_SIZE)]


def test_structures_of_regions() -> None:
    """Two words with the bounds of one region are a structure of G1, also for the first region. Other pairs of words may be references."""
    image = Image("G1", REGIONS)
    rows = [
        (HEAP, HEAP + jvmimage.REGION),
        (HEAP + jvmimage.REGION, HEAP + 2 * jvmimage.REGION),
        (HEAP, HEAP + 2 * jvmimage.REGION),
        (HEAP + 8, HEAP + 8 + jvmimage.REGION),
        (HEAP + HEAP_SIZE, HEAP + HEAP_SIZE + jvmimage.REGION),
        (0, jvmimage.REGION),
    ]
    places = [OBJECTS + 0xC000 + 16 * number for number in range(len(rows))]
    for place, row in zip(places, rows):
        image.words(place, *row)
    target = image.target()
    tables = Tables(target, target.modules()[0])
    assert [spaces.has_region_bounds(tables, place) for place in places] == [True, True, False, False, False, False]
    assert not spaces.has_region_bounds(tables, 8)


@pytest.mark.parametrize(
    "wrong",
    [
        (HEAP, HEAP + 0x1800, HEAP + 0x1000),
        (HEAP + 0x800, HEAP, HEAP + 0x1000),
        (HEAP, HEAP + 0x10, HEAP + 0x4008),  # beyond the top of eden
        (HEAP + 0x8000, HEAP + 0x8010, HEAP + 0x8080),  # outside of eden
        (HEAP - 0x100, HEAP - 0x80, HEAP),
        (0, 0, HEAP + 0x1000),
    ],
)
def test_a_buffer_that_is_not_in_eden_is_left_out(wrong: tuple[int, int, int]) -> None:
    assert find_unused(Image("Serial", SPACES, [wrong])) == [(0x4000, 0x8000), (0x8100, 0xC000), (0x11000, HEAP_SIZE)]


def test_buffers_that_overlap() -> None:
    image = Image("Serial", SPACES, [(HEAP, HEAP + 0x100, HEAP + 0x200), (HEAP, HEAP + 0x180, HEAP + 0x300)])
    found = find_unused(image)
    assert found[1:] == [(0x4000, 0x8000), (0x8100, 0xC000), (0x11000, HEAP_SIZE)]
    assert 0x100 <= found[0][0] < found[0][1] <= 0x310


def test_references_from_unused_parts() -> None:
    """A block to which only words above the top refer is leaked. `refs` lists these words and says that they are not live references."""
    block = OBJECTS + 0x8000
    image = Image("Serial", SPACES)
    target = image.target()
    target.write(HEAP, bytes(HEAP_SIZE))
    for at in (HEAP + 0x4000, HEAP + 0x20000):
        target.write(at, block.to_bytes(8, "little"))
    made = session(target, [ListAllocator(OBJECTS + 0x8000, OBJECTS + 0x8100, [Listed(block, 0x40)])])
    assert made.graph().kind(0) == Kind.DEFINITE
    assert [(one.address, one.live) for one in find_references(made, block, block + 1)] == [(HEAP + 0x4000, False), (HEAP + 0x20000, False)]
    (found,) = made.runtimes
    assert found.describe(HEAP + 0x4000) == "Java heap of the JVM, in eden above its top: dead"
    assert found.describe(HEAP + 0xA000) == "Java heap of the JVM, in to space, which is empty: dead"
    assert found.describe(HEAP + 0x3FF8) == "Java heap of the JVM"
    held = Image("Serial", [(HEAP, HEAP + 0x4008, HEAP + 0x8000), *SPACES[1:]]).target()
    held.write(HEAP, bytes(HEAP_SIZE))
    held.write(HEAP + 0x4000, block.to_bytes(8, "little"))
    assert session(held, [ListAllocator(OBJECTS + 0x8000, OBJECTS + 0x8100, [Listed(block, 0x40)])]).graph().kind(0) == Kind.REACHABLE


def test_the_name_of_a_free_region() -> None:
    found = find_jvm(Image("G1", REGIONS, BUFFERS).target())
    assert found.describe(HEAP + 0x10000) == f"Java heap of the JVM, in {REGION} that is free: dead"
    assert found.describe(HEAP + 0x900).endswith("in a region of G1's, what a thread has not used of its buffer: dead")


def test_fields_far_inside_structures_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields at large offsets are not read, because each region would need a long read, and a core of some megabytes
    may list a million regions."""
    image = Image("G1", REGIONS)
    image.fields["HeapRegion", "_top"] = 0xFFF8
    asked: list[int] = []
    records = spaces.read_records

    def count_reads(target: FakeTarget, engine: Engine, addresses: Sequence[int], size: int) -> tuple[bytearray, set[int]]:
        asked.append(size)
        return records(target, engine, addresses, size)

    monkeypatch.setattr(spaces, "read_records", count_reads)
    find_unused(image)
    assert max(asked, default=0) <= 256
