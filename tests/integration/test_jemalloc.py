"""jemalloc: findleaks reports the state that the truth program expects for every block, and the table of bins that jemalloc prints."""

from __future__ import annotations

import subprocess
from pathlib import Path

import libcs
import mallocs_jemalloc
import pytest
from accuracy import FLAGS, SOURCE, check

SETTINGS = {
    "one arena": "narenas:1",
    "no thread cache": "tcache:false",
    "an arena per CPU": "percpu_arena:percpu",
    "nothing retained": "retain:false",
    "all sampled": "prof:true,lg_prof_sample:0",
    "some sampled": "prof:true,lg_prof_sample:12",
    "background thread": "background_thread:true",
    "purged at once": "dirty_decay_ms:0,muzzy_decay_ms:0",
    "muzzy": "dirty_decay_ms:0,muzzy_decay_ms:-1",
    "kept for ever": "dirty_decay_ms:-1",
    "huge pages": "thp:always,metadata_thp:always",
    "filled with junk": "junk:true",
    "small cache": "lg_tcache_max:9",
    "large cache": "lg_tcache_max:20",
    "several bins a class": "bin_shards:1-160:4|161-14336:2",
    "hugepage allocator": "hpa:true,narenas:2",
    "heap by sbrk": "dss:primary",
}

ONLY_LATER = ("hugepage allocator",)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory):
    """Build the program for a release of jemalloc: once for each libc, to preload jemalloc, and once linked with it."""
    made: dict[str, Path] = {}
    folder = tmp_path_factory.mktemp("programs")

    def build(version: str, linked: bool = False) -> Path:
        libc, extra = mallocs_jemalloc.LIBCS.get(version, ""), mallocs_jemalloc.get(version).static if linked else ()
        key = version if linked else libc
        if key not in made:
            output = folder / f"truth-{len(made)}"
            if libc:
                libcs.get(libc).compile(SOURCE, output, (*FLAGS, "-O1", *extra))
            else:
                subprocess.run(["gcc", *FLAGS, "-O1", "-o", str(output), str(SOURCE), *extra, "-pthread"], check=True)
            made[key] = output
        return made[key]

    return build


def choose_picture(version: str, picture: str) -> str:
    """Return the kind of core to read. GDB 13's gcore drops stacks with guard pages (see test_accuracy.py), so "gcore" may be replaced."""
    return "live" if picture == "gcore" and mallocs_jemalloc.LIBCS.get(version) == "2.43" else picture


def preload(version: str) -> dict[str, str]:
    return {"LD_PRELOAD": str(mallocs_jemalloc.get(version).library)}


def without_cache(version: str) -> dict[str, str]:
    """Make ld.so find libraries without its cache file. ld.so unmaps the file but keeps a pointer to its middle. If jemalloc maps each
    extent separately, it may place a block there."""
    libc = mallocs_jemalloc.LIBCS.get(version)
    trees = [libcs.get(libc).root, Path("/")] if libc else [Path("/")]
    return {"LD_LIBRARY_PATH": ":".join(str(tree / part / "x86_64-linux-gnu") for tree in trees for part in ("lib", "usr/lib"))}


@pytest.mark.parametrize("picture", ["kernel", "gcore", "live"])
def test_five_threads(build, tmp_path: Path, picture: str) -> None:
    check(build("5.3.0"), tmp_path, 5, picture, "a", **preload("5.3.0"))


def test_linked_in(build, tmp_path: Path) -> None:
    check(build("5.3.0", linked=True), tmp_path, 5, "kernel", "a")


@pytest.mark.platform("x86-64", "jemalloc", of="5.2.1 to 5.3.1")
@pytest.mark.parametrize("version", ["5.2.1", "5.3.1"])
def test_other_releases(build, tmp_path: Path, version: str) -> None:
    check(build(version), tmp_path, 5, "kernel", "a", **preload(version))


@pytest.mark.parametrize("name", ["some sampled", "hugepage allocator"])
def test_settings(build, tmp_path: Path, name: str) -> None:
    check(build("5.3.0"), tmp_path, 5, "kernel", "a", MALLOC_CONF=SETTINGS[name], **preload("5.3.0"))


@pytest.mark.matrix
@pytest.mark.parametrize("threads", [5, 33])
@pytest.mark.parametrize("picture", ["kernel", "gcore", "live"])
@pytest.mark.parametrize("version", mallocs_jemalloc.SUITES)
def test_every_release_and_picture(build, tmp_path: Path, version: str, picture: str, threads: int) -> None:
    check(build(version), tmp_path, threads, choose_picture(version, picture), "a", **preload(version))


@pytest.mark.matrix
@pytest.mark.parametrize("picture", ["kernel", "gcore", "live"])
@pytest.mark.parametrize("version", mallocs_jemalloc.SUITES)
def test_every_release_linked_in(build, tmp_path: Path, version: str, picture: str) -> None:
    check(build(version, linked=True), tmp_path, 7, choose_picture(version, picture), "a")


@pytest.mark.matrix
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("version", mallocs_jemalloc.SUITES)
def test_every_release_and_setting(build, tmp_path: Path, version: str, name: str) -> None:
    if name in ONLY_LATER and version == "5.2.1":
        name = "one arena"
    extra = without_cache(version) if name == "nothing retained" else {}
    check(build(version), tmp_path, 7, "kernel", "a", 2, MALLOC_CONF=SETTINGS[name], **preload(version), **extra)
