"""What holes in the file of a core show about pages."""

from __future__ import annotations

import mmap
import random
from array import array

import elfcore
import pytest
from hypothesis import given
from hypothesis import strategies as st

from findleaks.target import elf
from findleaks.target.base import Range, Region
from findleaks.target.layout import Load
from findleaks.target.residency.holes import find_zero_page, has_page_holes, is_kernel_core, presence_of_holes
from findleaks.target.runs import Runs

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
    found = presence_of_holes(Runs.of(data), loads, regions, anonymous)
    assert found is not None and found.source == "holes of the core"
    for load, region in zip(loads, regions):
        for page in range(load.start, load.end, PAGE):
            there = load.offset + page - load.start
            dumped = page - load.start < load.there
            assert (page in found.resident) == (dumped and any(low <= there < high for low, high in data))
            assert (page in found.known) == (not region.name and (dumped if load.filesz else anonymous))


def test_overlapping_segments_are_not_used() -> None:
    region = Region(0x10000, 0x14000, True, True, False)
    data = Runs.of([Range(0x1000, 0x9000)])
    one = Load(0x10000, 0x12000, 6, 0x1000, 0x2000, 0x2000)
    assert presence_of_holes(data, [one, Load(0x12000, 0x14000, 6, 0x2000, 0x2000, 0x2000)], [region], True) is None  # in the file
    assert presence_of_holes(data, [one, Load(0x11000, 0x13000, 6, 0x3000, 0x2000, 0x2000)], [region], True) is None  # in memory
    assert presence_of_holes(data, [one, Load(0x12000, 0x14000, 6, 0x3000, 0x2000, 0x2000)], [region], True) is not None


class Interruption(Exception):
    """The exception that Ctrl-C raises."""


def zeros_in(core: bytes, data: list[Range]) -> int:
    return find_zero_page(memoryview(core), Runs.of(data), PAGE, lambda part: None)


def test_a_page_of_zeros_that_is_no_hole() -> None:
    core = bytearray(5 * PAGE + 7)
    core[PAGE + 8] = core[3 * PAGE] = 1  # the first word of these pages is zero
    assert zeros_in(core, [Range(PAGE, 2 * PAGE), Range(3 * PAGE, 4 * PAGE)]) == -1
    assert zeros_in(core, [Range(PAGE, 4 * PAGE)]) == 2 * PAGE
    assert zeros_in(core, [Range(PAGE + 16, 2 * PAGE + 16), Range(3 * PAGE + 1, 5 * PAGE)]) == 4 * PAGE  # only whole pages
    assert zeros_in(core, [Range(5 * PAGE, 5 * PAGE + 7)]) == -1
    assert zeros_in(core, []) == -1
    assert zeros_in(core[: 5 * PAGE], [Range(PAGE, 5 * PAGE)]) == 4 * PAGE, "the last page must be read first"


def test_all_data_are_examined_and_can_be_interrupted() -> None:
    """A page of zeros after more than 512 MiB of other data is as significant as one at the beginning."""
    pages = (513 << 20) // PAGE
    with mmap.mmap(-1, (pages + 2) * PAGE) as memory, memoryview(memory) as view:
        view.cast("Q")[:: PAGE // 8] = memoryview(array("Q", [1]) * (pages + 2))
        view.cast("Q")[pages * PAGE // 8] = 0
        reported: list[float] = []
        assert find_zero_page(view, Runs.of([Range(0, len(view))]), PAGE, reported.append) == pages * PAGE
        assert len(reported) == 514
        assert reported == sorted(reported)

        def stop(part: float) -> None:
            if part > 0.5:
                raise Interruption

        with pytest.raises(Interruption):
            find_zero_page(view, Runs.of([Range(0, len(view))]), PAGE, stop)


def test_cores_written_by_linux() -> None:
    head = elf.header(elfcore.core([]))
    load = Load(0x10000, 0x14000, 6, PAGE, 4 * PAGE, 4 * PAGE)
    assert is_kernel_core(head, [load], PAGE, PAGE)
    assert is_kernel_core(head, [load], 0, PAGE)  # without NT_FILE
    assert not is_kernel_core(head, [load], 1, PAGE)  # a core by gcore
    assert not is_kernel_core(head._replace(shoff=0x5000, shnum=9), [load], PAGE, PAGE)
    assert is_kernel_core(head._replace(shoff=0x5000, shnum=0, phnum=elf.PN_XNUM), [load], PAGE, PAGE)  # 70,000 segments
    # As fill_extnum_info of Linux writes it
    assert is_kernel_core(head._replace(shoff=0x5000, shnum=1, phnum=elf.PN_XNUM), [load], PAGE, PAGE)
    assert not is_kernel_core(head._replace(shoff=0x5000, shnum=9, phnum=elf.PN_XNUM), [load], PAGE, PAGE)
    assert not is_kernel_core(head, [load._replace(offset=PAGE + 0x5B8)], PAGE, PAGE)


def test_holes_that_were_not_made_page_by_page() -> None:
    size = 100 * PAGE
    assert has_page_holes([Range(0, 700), Range(3 * PAGE, 4 * PAGE), Range(8 * PAGE, size)], PAGE, size, PAGE)
    assert not has_page_holes([Range(0, size)], PAGE, size, PAGE)
    assert not has_page_holes([], PAGE, size, PAGE)
    assert not has_page_holes([Range(PAGE, 3 * PAGE + 1024), Range(8 * PAGE, size)], PAGE, size, PAGE)
    assert not has_page_holes([Range(0, 16 * PAGE), Range(32 * PAGE, size)], PAGE, size, PAGE)  # holes of 64 KiB
