"""Google's tcmalloc with per-CPU and per-thread caches, in builds with several page sizes: findleaks reports the expected state of each
block, and tcmalloc's own counts.

A build takes minutes, so all of these tests are in the matrix.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import mallocs_google
import pytest
from accuracy import FLAGS, SOURCE, check

import cores
from findleaks.allocators.tcmalloc_google.instance import GoogleTcmalloc
from findleaks.session import Session
from findleaks.target.core import open_core

pytestmark = pytest.mark.matrix

LINKS = ["", "stripped", "static", "static-pie"]
CACHES = {"cpus": mallocs_google.PER_CPU, "threads": ""}
EXPERIMENTS = ["TEST_ONLY_TCMALLOC_SHARDED_TRANSFER_CACHE", "TEST_ONLY_TCMALLOC_POW2_SIZECLASS"]
Build = Callable[[str, str], tuple[Path, mallocs_google.Google]]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Build the truth program once for each build and each way to link it."""
    made: dict[tuple[str, str], Path] = {}
    kinds: dict[str, mallocs_google.Google] = {}

    def build(kind: str, link: str) -> tuple[Path, mallocs_google.Google]:
        malloc = kinds.setdefault(kind, mallocs_google.Google(kind, tmp_path_factory.mktemp(f"google-{kind}")))
        if (kind, link) not in made:
            made[kind, link] = malloc.compile(SOURCE, malloc.folder / f"truth-{link or 'inside'}", (*FLAGS, "-O1"), link)
        return made[kind, link], malloc

    return build


def tunables(caches: str) -> dict[str, str]:
    return {"GLIBC_TUNABLES": CACHES[caches]} if CACHES[caches] else {}


@pytest.mark.parametrize("picture", ["kernel", "gcore", "live"])
@pytest.mark.parametrize("threads", [5, 33])
@pytest.mark.parametrize("caches", CACHES)
@pytest.mark.parametrize("kind", mallocs_google.BUILDS)
def test_inside(build: Build, tmp_path: Path, kind: str, caches: str, threads: int, picture: str) -> None:
    check(build(kind, "stripped")[0], tmp_path, threads, picture, "a", **tunables(caches))


@pytest.mark.parametrize("picture", ["kernel", "live"])
@pytest.mark.parametrize("caches", CACHES)
@pytest.mark.parametrize("link", LINKS)
def test_linked(build: Build, tmp_path: Path, link: str, caches: str, picture: str) -> None:
    check(build("8k", link)[0], tmp_path, 5, picture, "a", **tunables(caches))


@pytest.mark.platform("x86-64", "Google's tcmalloc")
@pytest.mark.parametrize("picture", ["kernel", "gcore", "live"])
@pytest.mark.parametrize("caches", CACHES)
def test_preloaded(build: Build, tmp_path: Path, caches: str, picture: str) -> None:
    program, malloc = build("8k", "preload")
    check(program, tmp_path, 5, picture, "a", LD_PRELOAD=str(malloc.library()), **tunables(caches))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiments(build: Build, tmp_path: Path, experiment: str) -> None:
    """Experiments: transfer caches of CPUs that share a cache, and other size classes."""
    check(build("8k", "")[0], tmp_path, 5, "kernel", "a", BORG_EXPERIMENTS=experiment, **tunables("cpus"))


@pytest.mark.parametrize("experiment", ["", EXPERIMENTS[0]])
@pytest.mark.parametrize("caches", CACHES)
@pytest.mark.parametrize("kind", mallocs_google.BUILDS)
def test_counts_are_those_it_prints(tmp_path: Path, kind: str, caches: str, experiment: str) -> None:
    """MallocExtension's properties and the table of size classes of GetStats are the same at the same stop."""
    program = mallocs_google.Google(kind, tmp_path).statistics((*FLAGS, "-O1"))
    environment = {**os.environ, "BORG_EXPERIMENTS": experiment, **tunables(caches)}
    with cores.Running([str(program)], tmp_path / "run", environment) as running:
        text = running.output
        session = Session(open_core(str(running.kernel_core())))
    try:
        (allocator,) = (one for one in session.directory.allocators if one.name == "google-tcmalloc")
        assert isinstance(allocator, GoogleTcmalloc)
        blocks = session.directory.blocks
        assert session.directory.problems == []
        counted = allocator.read_counters()
        properties = {name: int(value) for name, value in re.findall(r"^property (\S+) (\d+)$", text, re.M) if name in counted}
        assert len(properties) >= 5
        assert {name: counted[name] for name in properties} == properties
        assert (properties["tcmalloc.cpu_free"] > 0) == (caches == "cpus")
        assert (properties["tcmalloc.sharded_transfer_cache_free"] > 0) == (bool(experiment) and caches == "cpus" and kind != "small")
        table: dict[int, int] = {}
        for size, objects in re.findall(r"^class +\d+ \[ +(\d+) bytes \] : +(\d+) objs;.* live pages;", text, re.M):
            table[int(size)] = table.get(int(size), 0) + int(objects)
        rows = {cache.size: cache for cache in allocator.caches(blocks) if cache.size}
        assert len(rows) > 20
        for size, cache in rows.items():
            held = cache.cached + cache.free
            assert held == table[size], size
            assert cache.cached == sum(cache.own[kind] for kind in ("cpu", "transfer", "shard", "thread"))
            assert cache.free == cache.own["central"]
            assert cache.total * size <= cache.memory
        (size,) = re.findall(r"^MALLOC: +(\d+) +Tcmalloc page size", text, re.M)
        assert allocator.summary()["page_size"] == int(size)
        assert list(filter(None, allocator.verify(blocks))) == []
        assert allocator.checked["bitmaps"] > 20
    finally:
        session.close()
