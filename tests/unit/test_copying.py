"""The layout of a copy of a process's pages, and how much memory is available for the copy."""

from __future__ import annotations

import resource
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from findleaks.target import available_memory
from findleaks.target.base import Range, Region
from findleaks.target.copied import without_overlaps
from findleaks.target.copying import CopiedRuns, CopyBuffer, CopyPlacement, pages_to_copy, windows
from findleaks.target.residency.presence import Presence
from findleaks.target.runs import Runs
from findleaks.target.stopped_pages import StoppedPages

PAGE = 4096
MANY = 1 << 45


def make_snapshot(own: Runs, shared: Runs) -> StoppedPages:
    return StoppedPages(Presence("pagemap", Runs.of(()), own, Runs.of(()), 0), own, shared)


def make_pages(pages: set[int]) -> Runs:
    return Runs.of((page * PAGE, (page + 1) * PAGE) for page in sorted(pages))


pages = st.sets(st.integers(0, 300), max_size=120)


@given(pages, pages, st.lists(st.integers(1, 300), max_size=6), st.booleans())
def test_every_page_has_one_offset(before: set[int], after: set[int], cuts: list[int], of_file: bool) -> None:
    """Pages of two snapshots: pages of the second snapshot that are in a window get an offset, all other pages are the
    rest, and no two pages get the same offset."""
    bounds = sorted({0, 301, *cuts})
    regions = [
        Region(low * PAGE, high * PAGE, True, True, False, "/data" if of_file and number % 2 else "", 0, number % 3 != 2)
        for number, (low, high) in enumerate(zip(bounds, bounds[1:]))
    ]
    made, count = windows(regions, make_snapshot(make_pages(before), make_pages(before)))
    assert count == len(before) * PAGE
    assert all(one.end <= two.start and two.offset == one.offset + one.end - one.start for one, two in zip(made, made[1:]))
    covered = {page for one in made for page in range(one.start // PAGE, one.end // PAGE)}
    assert before <= covered
    layout, placed, rest = CopyPlacement(made, MANY), CopiedRuns.none(), list[Range]()
    words = array("Q", make_pages(after).words)
    for low, high in zip(words[::2], words[1::2]):
        layout.place(array("Q", [low, high]), placed, rest)
    layout.place(array("Q"), placed, rest)
    again, same = CopiedRuns.none(), list[Range]()
    layout.place(words, again, same)
    assert (again, same) == (placed, rest)
    found = {}
    for source, at, size in zip(*placed):
        for step in range(0, size, PAGE):
            found[(source + step) // PAGE] = at + step
    assert set(found) == after & covered
    assert len(set(found.values())) == len(found)
    assert {page for start, end in rest for page in range(start // PAGE, end // PAGE)} == after - covered
    for one in made:
        for page in range(one.start // PAGE, one.end // PAGE):
            assert page not in found or found[page] == MANY + one.offset + page * PAGE - one.start


def test_few_pages_in_terabytes() -> None:
    """One page in each 64 GiB, and one in each 2 MiB: the address space that the windows need is proportional to the number of pages."""
    for step, size in ((64 << 30, 16 << 40), (2 << 20, 64 << 30)):
        own = Runs.of((at, at + PAGE) for at in range(0, size, step))
        made, count = windows([Region(0, size, True, True, False)], make_snapshot(own, Runs.of(())))
        assert count == own.total
        assert made[-1].offset + made[-1].end - made[-1].start <= max(16 * count, 64 << 20)


def test_shared_memory_that_is_mapped_again() -> None:
    """Pages that the process has used through one of the mappings are copied for all of them. Pages that it used of
    another file do not count."""
    name = "/memfd:heap (deleted)"
    regions = [
        Region(0x10000, 0x20000, True, True, False, name, 0x4000, private=False),
        Region(0x50000, 0x54000, True, True, False, name, 0x8000, private=False),
        Region(0x60000, 0x70000, True, True, False, "/memfd:other (deleted)", 0, private=False),
        Region(0x90000, 0xA0000, True, True, False, name, 0x4000, private=False),
    ]
    used = Runs.of([(0x11000, 0x12000), (0x51000, 0x52000), (0x61000, 0x62000), (0x91000, 0x93000)])
    at = make_snapshot(Runs.of(()), used)
    found = {region.start: words.tolist() for region, words in pages_to_copy(regions, at)}
    whole = [0x1000, 0x3000, 0x5000, 0x6000]
    assert found[0x10000] == [0x10000 + one for one in whole] and found[0x90000] == [0x90000 + one for one in whole]
    assert found[0x50000] == [0x51000, 0x52000] and found[0x60000] == [0x61000, 0x62000]


def test_regions_that_changed_while_they_were_listed() -> None:
    """A region that overlaps with the region before it is left out."""
    regions = [Region(low, high, True, True, False) for low, high in ((0, 0x5000), (0x4000, 0x6000), (0x5000, 0x7000), (0x1000, 0x2000))]
    assert [region.start for region in without_overlaps(regions)] == [0, 0x5000]


def test_disk_space_is_reserved_before_writing() -> None:
    made, reported = CopyBuffer(300 << 20), list[int]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    made.ready(8 << 20, 100 << 20, reported.append)
    assert sum(reported) == 100 << 20
    ready = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    with made.view() as view:
        for at in range(8 << 20, 108 << 20, PAGE):
            view[at] = 1
        assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - ready < 100
        assert bytes(view[200 << 20 : (200 << 20) + 64]) == bytes(64)
    assert ready >= before


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_available_memory(tmp_path: Path) -> None:
    """The least of what the system has and of what each control group of findleaks still permits, for versions 1 and 2
    of control groups."""
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    group(proc, meminfo="MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    group(proc / "self", status="VmSize:\t 100 kB\nVmData:\t 50 kB\n")
    assert available_memory.available_memory(str(proc), str(groups)) == 8000 << 10
    group(proc / "self", cgroup="0::/outer/inner\n")
    group(groups / "outer", memory__max="5000000\n", memory__current="1000000\n", memory__stat="anon 1\ninactive_file 250000\n")
    group(groups / "outer" / "inner", memory__max="max\n", memory__high="max\n", memory__current="900000\n")
    assert available_memory.available_memory(str(proc), str(groups)) == 4250000
    group(groups / "outer" / "inner", memory__high="1000000\n")
    assert available_memory.available_memory(str(proc), str(groups)) == 100000
    group(groups / "outer" / "inner", memory__high="800000\n")
    assert available_memory.available_memory(str(proc), str(groups)) == 0
    group(proc / "self", cgroup="5:cpu:/x\n4:cpuset,memory:/box\n")
    unlimited = str((1 << 63) - PAGE)
    group(groups / "memory", memory__limit_in_bytes=unlimited, memory__usage_in_bytes="1")
    group(
        groups / "memory" / "box",
        memory__limit_in_bytes="3000000",
        memory__usage_in_bytes="1000000",
        memory__stat="total_inactive_file 7\n",
    )
    assert available_memory.available_memory(str(proc), str(groups)) == 2000007


def test_limits_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group(tmp_path / "self", status="VmSize:\t 100 kB\nVmData:\t 50 kB\n")
    infinite = resource.RLIM_INFINITY
    limits = {resource.RLIMIT_AS: (1 << 20, infinite), resource.RLIMIT_DATA: (infinite, infinite)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    assert available_memory.available_memory(str(tmp_path), str(tmp_path)) == (1 << 20) - (100 << 10)
    limits[resource.RLIMIT_DATA] = 1 << 19, infinite
    assert available_memory.available_memory(str(tmp_path), str(tmp_path)) == (1 << 19) - (50 << 10)
