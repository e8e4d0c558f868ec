"""mimalloc: findleaks reports the state that the truth program expects for every block, and lists the same areas and blocks as mimalloc
itself."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import mallocs_mimalloc
import pytest
import truth
from accuracy import FLAGS, SOURCE, check
from mallocs_mimalloc import settle

import cores
from findleaks.allocators.mimalloc.instance import Mimalloc
from findleaks.engine.terms import State
from findleaks.session import Session
from findleaks.target.live import LiveTarget

VERSIONS = [*mallocs_mimalloc.SUITES, *mallocs_mimalloc.WHEELS, *(v for v in mallocs_mimalloc.CRATES if "source" not in v)]
SOURCES = list(mallocs_mimalloc.CRATES)
SETTINGS = {
    "committed on demand": {"MIMALLOC_EAGER_COMMIT": "0", "MIMALLOC_ARENA_EAGER_COMMIT": "0"},
    "purged at once": {"MIMALLOC_PURGE_DELAY": "0", "MIMALLOC_DECOMMIT_DELAY": "0"},
    "never purged": {"MIMALLOC_PURGE_DELAY": "-1"},
    "no arenas": {"MIMALLOC_DISALLOW_ARENA_ALLOC": "1", "MIMALLOC_ARENA_RESERVE": "0"},
    "small arenas": {"MIMALLOC_ARENA_RESERVE": "65536"},
    "large pages": {"MIMALLOC_ALLOW_LARGE_OS_PAGES": "1"},
    "pages map committed": {"MIMALLOC_PAGEMAP_COMMIT": "1"},
    "purged by reset": {"MIMALLOC_PURGE_DECOMMITS": "0"},
}


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory):
    """Build the program once without mimalloc, and once linked with each mimalloc."""
    made: dict[str, Path] = {}
    folder = tmp_path_factory.mktemp("programs")

    def build(version: str = "", *more: str) -> Path:
        key = " ".join((version, *more))
        if key not in made:
            output = folder / f"truth-{len(made)}{'-static' if '-static' in more else ''}"
            objects = [str(mallocs_mimalloc.get_object(version))] if version else []
            if "-static" in more or "-static-pie" in more:  # libc.a contains another malloc; the linker uses the first
                objects.append("-Wl,-z,muldefs")
            subprocess.run(["gcc", *FLAGS, "-O1", *more, "-o", str(output), str(SOURCE), *objects, "-pthread"], check=True)
            made[key] = output
        return made[key]

    return build


def preload(version: str, build: str = "release") -> dict[str, str]:
    return {"LD_PRELOAD": str(mallocs_mimalloc.library(version, build))}


@pytest.mark.parametrize(("version", "picture"), [("2.0.9", "kernel"), ("2.0.9", "live"), ("3.2.8", "gcore"), ("3.2.8", "live")])
def test_five_threads(build, tmp_path: Path, version: str, picture: str) -> None:
    check(build(), tmp_path, 5, picture, "a", settle=settle, **preload(version))


def test_linked_statically(build, tmp_path: Path) -> None:
    check(build("3.2.8", "-static"), tmp_path, 3, "kernel", "a", settle=settle)


@pytest.mark.platform("x86-64", "mimalloc", of="2.0.9 to 3.6")
@pytest.mark.matrix
@pytest.mark.parametrize("threads", [1, 5, 33])
@pytest.mark.parametrize("picture", ["kernel", "gcore", "live"])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_and_picture(build, tmp_path: Path, version: str, picture: str, threads: int) -> None:
    check(build(), tmp_path, threads, picture, "a", settle=settle, **preload(version))


@pytest.mark.matrix
@pytest.mark.parametrize("flavour", ["secure", "debug"])
@pytest.mark.parametrize("version", SOURCES)
def test_secure_and_debug_builds(build, tmp_path: Path, version: str, flavour: str) -> None:
    check(build(), tmp_path, 5, "kernel", "a", settle=settle, **preload(version, flavour))


@pytest.mark.matrix
@pytest.mark.parametrize("link", ["-static", "-static-pie", "-pie"])
@pytest.mark.parametrize("version", ["2.0.9-source", "2.2.5", "3.1.5", "3.2.8", "3.4.3"])
def test_every_way_to_link_it(build, tmp_path: Path, version: str, link: str) -> None:
    check(build(version, link), tmp_path, 5, "kernel", "a", settle=settle)


@pytest.mark.matrix
@pytest.mark.parametrize("environment", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("version", ["2.0.9", "2.2.5", "3.0.1", "3.4.3"])
def test_settings(build, tmp_path: Path, version: str, environment: dict[str, str]) -> None:
    check(build(), tmp_path, 5, "kernel", "a", settle=settle, **preload(version), **environment)


def compare_with_its_own_list(program: Path, folder: Path, environment: dict[str, str]) -> None:
    """Check areas and blocks against the list of mi_heap_visit_blocks, which the program printed last."""
    with cores.Running([str(program)], folder, environment) as running:
        lines = [line.split() for line in running.output.splitlines()]
        areas = {int(line[1], 16): [int(number) for number in line[2:]] for line in lines if line[0] == "area"}
        listed = {int(line[1], 16): int(line[2]) for line in lines if line[0] == "block"}
        session = Session(LiveTarget(running.pid, stopped=False))
        try:
            (allocator,) = (a for a in session.directory.allocators if isinstance(a, Mimalloc))
            blocks = session.directory.blocks
            assert session.directory.problems == []
            rows = allocator.caches(blocks)
            pages = {page.start: page for page in allocator.pages}
            found = {page.start: blocks.totals(State.IN_USE, page.start, page.end) for page in allocator.pages}
            assert [problem for problem in allocator.verify(blocks) if problem] == []
            for first, (size, used, committed, reserved) in areas.items():
                page = pages[first]
                assert (page.size, page.capacity * page.size, page.reserved * page.size) == (size, committed, reserved)
                assert found[first].blocks == used
            mine = Counter(page.size for page in allocator.pages if page.start in areas for _ in range(found[page.start].blocks))
            assert mine == Counter(areas[first][0] for first in areas for _ in range(areas[first][1]))
            ours = set()
            for first in areas:
                page = pages[first]
                for index in range(blocks.at_or_after(page.start), blocks.at_or_after(page.end)):
                    if blocks.state(index) == State.IN_USE:
                        ours.add(blocks.address(index))
            assert ours == set(listed)
            # The sums over size classes are all blocks. Blocks freed by another thread count as used until their owner collects them.
            assert sum(row.in_use + row.cached for row in rows) == allocator.read_counters()["used"]
            assert sum(row.total for row in rows) == allocator.read_counters()["capacity"]
            for row in rows:
                assert row.in_use + row.cached + row.free == row.total == row.own["capacity"]
            heaps = [(heap.start, heap.end) for heap in allocator.heaps()]
            for state, column in ((State.IN_USE, "in_use"), (State.CACHED, "cached"), (State.FREE, "free")):
                assert sum(blocks.totals(state, *heap).blocks for heap in heaps) == sum(getattr(row, column) for row in rows)
                assert sum(blocks.totals(state, *heap).bytes for heap in heaps) == sum(getattr(row, column + "_bytes") for row in rows)
            assert sum(cache.blocks for cache in allocator.thread_caches(blocks)) == sum(row.cached for row in rows)
        finally:
            session.close()


@pytest.mark.parametrize("version", ["2.2.5", *(pytest.param(v, marks=pytest.mark.matrix) for v in SOURCES if v not in ("2.2.5", "3.3.2"))])
def test_areas_and_blocks_equal_those_that_mimalloc_lists(tmp_path: Path, version: str) -> None:
    """The process also uses glibc's malloc. Each block belongs to exactly one of the two allocators."""
    program = tmp_path / "visit"
    source, library = truth.PROGRAMS / "mimalloc_visit.c", mallocs_mimalloc.get_object(version, override=False)
    subprocess.run(
        ["gcc", *FLAGS, f"-I{mallocs_mimalloc.headers(version)}", "-o", str(program), str(source), str(library), "-pthread"], check=True
    )
    compare_with_its_own_list(program, tmp_path / "run", {})
