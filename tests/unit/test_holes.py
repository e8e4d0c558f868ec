"""What holes in a core's file tell of pages."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from findleaks.target.base import Range, Region
from findleaks.target.holes import presence, told
from findleaks.target.layout import Load

PAGE = 4096


@given(seed=st.integers(0, 2**32 - 1))
def test_pages_of_segments(seed: int) -> None:
    rng = random.Random(seed)
    loads, regions, offset, address = [], [], PAGE, 0x10000000
    for _ in range(rng.randrange(6)):
        pages, address = rng.randrange(1, 9), address + PAGE * rng.choice((0, 0, 5))
        dumped = rng.choice((0, pages, pages))
        there = rng.randrange(dumped + 1) if rng.random() < 0.2 else dumped
        loads.append(Load(address, address + pages * PAGE, 6, offset, dumped * PAGE, there * PAGE))
        regions.append(Region(address, address + pages * PAGE, True, True, False, rng.choice(("", "", "/lib"))))
        offset, address = offset + dumped * PAGE, address + pages * PAGE
    points = sorted(rng.sample(range(offset // PAGE + 4), 2 * rng.randrange(3)))
    data = [Range(a * PAGE, b * PAGE) for a, b in zip(points[::2], points[1::2])]
    anonymous = rng.random() < 0.8
    found = presence(data, loads, regions, anonymous)
    assert found is not None and found.source == "holes of the core"
    for load, region in zip(loads, regions):
        for page in range(load.start, load.end, PAGE):
            there = load.offset + page - load.start
            dumped = page - load.start < load.there
            assert (page in found.resident) == (dumped and any(low <= there < high for low, high in data))
            assert (page in found.known) == (not region.name and (dumped if load.filesz else anonymous))


def test_segments_that_overlap_tell_nothing() -> None:
    region = Region(0x10000, 0x14000, True, True, False)
    data = [Range(0x1000, 0x9000)]
    one = Load(0x10000, 0x12000, 6, 0x1000, 0x2000, 0x2000)
    assert presence(data, [one, Load(0x12000, 0x14000, 6, 0x2000, 0x2000, 0x2000)], [region], True) is None  # in the file
    assert presence(data, [one, Load(0x11000, 0x13000, 6, 0x3000, 0x2000, 0x2000)], [region], True) is None  # in memory
    assert presence(data, [one, Load(0x12000, 0x14000, 6, 0x3000, 0x2000, 0x2000)], [region], True) is not None


def test_holes_for_all_that_is_zero_tell_nothing() -> None:
    load = Load(0x10000, 0x14000, 6, PAGE, 4 * PAGE, 4 * PAGE)
    core = bytearray(5 * PAGE)
    core[PAGE] = core[3 * PAGE] = 1
    data = [Range(PAGE, 2 * PAGE), Range(3 * PAGE, 4 * PAGE)]
    assert not told(memoryview(core), data, [load], PAGE)
    assert told(memoryview(core), [Range(PAGE, 4 * PAGE)], [load], PAGE)  # a page of zeros that was written
    shifted = Load(0x10000, 0x14000, 6, PAGE + 0x5B8, 3 * PAGE, 3 * PAGE)
    assert not told(memoryview(core), [Range(PAGE, 4 * PAGE)], [shifted], PAGE)  # gcore's
