"""gperftools' tcmalloc of four releases, preloaded and linked: findleaks reports the expected state of each block, and tcmalloc's own
counts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mallocs_tcmalloc
import pytest
import truth
from accuracy import FLAGS, SOURCE, check
from variants import mark_matrix_except

import cores
from findleaks.allocators.tcmalloc.instance import Tcmalloc
from findleaks.session import Session
from findleaks.target.core import open_core

MATRIX = pytest.mark.matrix
USUAL = "2.10"
VERSIONS = [pytest.param(version, marks=() if version == USUAL else MATRIX) for version in mallocs_tcmalloc.SUITES]
LINKS = ["shared", "inside", "static", "static-pie"]
ENVIRONMENTS = {
    "aggressive decommit": {"TCMALLOC_AGGRESSIVE_DECOMMIT": "1"},
    "mappings only": {"TCMALLOC_SKIP_SBRK": "1"},
    "every other allocation sampled": {"TCMALLOC_SAMPLE_PARAMETER": "512"},
    "small thread caches": {"TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES": "524288"},
    "short transfers": {"TCMALLOC_TRANSFER_NUM_OBJ": "4"},
    "fast release": {"TCMALLOC_RELEASE_RATE": "1000"},
    "larger system pages": {"TCMALLOC_OVERRIDE_PAGESIZE": "65536"},
}


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory):
    """Build the truth program once for each version and each way to link it ("": without tcmalloc, which is preloaded)."""
    made: dict[tuple[str, str], Path] = {}
    folder = tmp_path_factory.mktemp("tcmalloc")

    def build(version: str, link: str) -> Path:
        if (version, link) not in made:
            output = folder / f"truth-{version}-{link or 'preload'}"
            made[version, link] = mallocs_tcmalloc.get(version).compile(SOURCE, output, (*FLAGS, "-O1"), link)
        return made[version, link]

    return build


def compare(build, folder: Path, version: str, link: str, picture: str, threads: int, full: bool = False, **environment: str) -> None:
    """Run the program under this tcmalloc, and compare the state of each block."""
    if (version, picture) == ("2.18.1", "gcore"):
        picture = "live"  # GDB 13's gcore omits stacks with guard pages of glibc 2.43
    malloc = mallocs_tcmalloc.get(version)
    settings = {**malloc.environment(full, not link), **environment}
    check(build(version, link), folder, threads, picture, "a", **settings)


@pytest.mark.platform("x86-64", "gperftools' tcmalloc", of="2.8.1 to 2.18.1")
@pytest.mark.parametrize("picture", mark_matrix_except(["kernel", "gcore", "live"], "kernel"))
@pytest.mark.parametrize("version", VERSIONS)
def test_preloaded(build, tmp_path: Path, version: str, picture: str) -> None:
    compare(build, tmp_path, version, "", picture, 5)


@pytest.mark.parametrize("picture", [pytest.param("kernel", marks=MATRIX), pytest.param("gcore", marks=MATRIX), "live"])
@pytest.mark.parametrize("version", VERSIONS)
def test_thirty_three_threads(build, tmp_path: Path, version: str, picture: str) -> None:
    compare(build, tmp_path, version, "", picture, 33)


@pytest.mark.parametrize("picture", ["kernel", pytest.param("gcore", marks=MATRIX), pytest.param("live", marks=MATRIX)])
@pytest.mark.parametrize("link", [pytest.param(link, marks=() if link == "static" else MATRIX) for link in LINKS])
@pytest.mark.parametrize("version", VERSIONS)
def test_linked(build, tmp_path: Path, version: str, link: str, picture: str) -> None:
    compare(build, tmp_path, version, link, picture, 5)


@pytest.mark.matrix
@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
@pytest.mark.parametrize("full", [False, True], ids=["minimal", "full"])
@pytest.mark.parametrize("version", mallocs_tcmalloc.SUITES)
def test_settings(build, tmp_path: Path, version: str, full: bool, environment: dict[str, str]) -> None:
    compare(build, tmp_path, version, "", "kernel", 5, full, **environment)


def test_sampled_blocks(build, tmp_path: Path) -> None:
    """libtcmalloc gives each sampled block its own span, and keeps a list of these spans."""
    compare(build, tmp_path, USUAL, "", "kernel", 5, True, TCMALLOC_SAMPLE_PARAMETER="512")


@contextmanager
def statistics(folder: Path, version: str, link: str, full: bool, **environment: str) -> Iterator[tuple[str, Tcmalloc, Session]]:
    """Return what a program printed of its tcmalloc, and what findleaks reads in its core."""
    malloc = mallocs_tcmalloc.get(version)
    program = malloc.compile(truth.PROGRAMS / "tcmalloc_stats.c", folder / "stats", (*FLAGS, "-O1"), link, full)
    with cores.Running([str(program)], folder / "run", {**os.environ, **malloc.environment(full, False), **environment}) as running:
        session = Session(open_core(str(running.kernel_core())))
    try:
        (allocator,) = (one for one in session.directory.allocators if one.name == "tcmalloc")
        assert isinstance(allocator, Tcmalloc)
        yield running.output, allocator, session
    finally:
        session.close()


def find_numbers(pattern: str, text: str) -> list[tuple[int, ...]]:
    """Return the numbers of every match."""
    return [tuple(map(int, match.groups())) for match in re.finditer(pattern, text, re.M)]


SETTINGS = [{}, {"TCMALLOC_AGGRESSIVE_DECOMMIT": "1"}, {"TCMALLOC_SAMPLE_PARAMETER": "4096"}, {"TCMALLOC_OVERRIDE_PAGESIZE": "65536"}]


@pytest.mark.parametrize("environment", [{}, *(pytest.param(setting, marks=MATRIX) for setting in SETTINGS[1:])], ids=str)
@pytest.mark.parametrize(
    ("link", "full"),
    [
        pytest.param("shared", False, id="shared"),
        pytest.param("shared", True, marks=MATRIX, id="full"),
        pytest.param("inside", False, marks=MATRIX, id="inside"),
        pytest.param("static", False, marks=MATRIX, id="static"),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_counts_are_those_it_prints(tmp_path: Path, version: str, link: str, full: bool, environment: dict[str, str]) -> None:
    """MallocExtension's properties, the table of size classes and the totals of GetStats are the same at the same stop."""
    with statistics(tmp_path, version, link, full, **environment) as (text, allocator, session):
        blocks = session.directory.blocks
        assert session.directory.problems == []
        assert allocator.version == version
        counted = allocator.read_counters()
        properties = dict(re.findall(r"^property (\S+) (\d+)$", text, re.M))
        assert len(properties) >= 10
        assert {name: counted[name] for name in properties} == {name: int(value) for name, value in properties.items()}
        rows = {cache.own["class"]: cache for cache in allocator.caches(blocks) if cache.name != "large"}
        table = find_numbers(r"^class +(\d+) \[ +(\d+) bytes \] : +(\d+) objs", text)
        assert len(table) > 20
        for number, size, objects in table:
            cache = rows[number]
            assert (cache.size, cache.cached + cache.free) == (size, objects)
            assert cache.cached == cache.own["thread"] + cache.own["transfer"]
            assert cache.free == cache.own["central"]
        assert sum(cache.cached + cache.free for cache in rows.values()) == sum(objects for _, _, objects in table)
        own = len(allocator.replaced)  # gperftools 2.7 to 2.15 leak this block; it counts as metadata
        assert own == (version in ("2.8.1", "2.10"))
        for number, cache in rows.items():
            assert (cache.total + own * (number == 1)) * cache.size + cache.own["overhead"] == cache.memory, number
        (used,), (pages,) = (
            find_numbers(r"^MALLOC: +(\d+) .* in use by application", text),
            find_numbers(r"^MALLOC: \+ +(\d+) .* page heap", text),
        )
        caches = allocator.caches(blocks)
        # A sampled block with its own span may be smaller than the span. The whole span counts as allocated.
        apart = sum(cache.memory - cache.in_use_bytes for cache in caches if cache.name == "large")
        assert apart == 0 or "TCMALLOC_SAMPLE_PARAMETER" in environment
        assert sum(cache.in_use_bytes for cache in caches) + apart + 8 * own == used[0] == counted["generic.current_allocated_bytes"]
        assert counted["tcmalloc.pageheap_free_bytes"] == pages[0]
        ((heaps,),) = find_numbers(r"^MALLOC: +(\d+) +Thread heaps in use", text)
        assert len(allocator.threads) == heaps
        ((size,),) = find_numbers(r"^MALLOC: +(\d+) +Tcmalloc page size", text)
        assert allocator.summary()["page_size"] == size
        (arena,) = allocator.arenas(blocks)
        overhead = sum(cache.own.get("overhead", 0) for cache in caches)
        assert arena.in_use + arena.cached + arena.free + arena.spare + overhead + apart + 8 * own == counted["generic.heap_size"]
        kept = sum(cache.bytes for cache in allocator.thread_caches(blocks))
        assert kept == counted["tcmalloc.thread_cache_free_bytes"]
        assert {cache.thread for cache in allocator.thread_caches(blocks)} - {0} <= {thread.tid for thread in session.target.threads()}
        assert list(filter(None, allocator.verify(blocks))) == []


def test_the_debug_variant_is_named(tmp_path: Path) -> None:
    """Blocks of the debug variant have headers, which findleaks does not remove. A message explains the consequence."""
    malloc = mallocs_tcmalloc.get(USUAL)
    program = malloc.compile(truth.PROGRAMS / "tcmalloc_stats.c", tmp_path / "stats", (*FLAGS, "-O1"), "shared")
    library = malloc.library().with_name("libtcmalloc_minimal_debug.so.4")
    environment = {**os.environ, **malloc.environment(preload=False), "LD_PRELOAD": str(library)}
    with cores.Running([str(program)], tmp_path / "run", environment) as running:
        session = Session(open_core(str(running.kernel_core())))
    reported = [problem.what for problem in session.directory.problems]
    session.close()
    assert len(reported) == 1
    assert "is tcmalloc's debug variant" in reported[0]


def test_thread_caches_belong_to_threads(tmp_path: Path) -> None:
    with statistics(tmp_path, USUAL, "shared", False) as (_, allocator, session):
        tids = {thread.tid for thread in session.target.threads()}
        assert tids <= {heap.tid for heap in allocator.threads}
