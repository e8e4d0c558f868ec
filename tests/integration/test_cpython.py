"""`runtime` on CPython reports what the interpreter counts itself: objects by type, the collector, tracemalloc, and interned strings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import debuggers
import mallocs_python
import pytest
import truth
from mallocs_python import SUITES
from variants import mark_matrix_except

import cores

REDUCED = "3.11"
PROGRAM = truth.PROGRAMS / "cpython_objects.py"
VERSIONS = [pytest.param(v, marks=() if v == REDUCED else pytest.mark.matrix) for v in SUITES]


@contextmanager
def running(version: str, folder: Path, *arguments: str, **environment: str) -> Iterator[cores.Running]:
    python = mallocs_python.get(version)
    with cores.Running(python.command(str(PROGRAM), *arguments), folder, python.environment(**environment)) as one:
        yield one


def page(one: cores.Running, picture: str, *options: str) -> dict[str, Any]:
    where = ["--pid", str(one.pid)] if picture == "live" else [str(one.kernel_core() if picture == "kernel" else one.gcore())]
    done = debuggers.findleaks("runtime", "--only", "cpython", "--json", *options, *where)
    (found,) = json.loads(done)["runtimes"]
    return dict(found)


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an extension whose objects own native memory."""
    folder = tmp_path_factory.mktemp("modules")
    (headers,) = Path("/usr/include").glob("python3.*/Python.h")
    mallocs_python.extension(truth.PROGRAMS / "cpython_native.c", folder, (f"-I{headers.parent}",))
    return folder


HOLDS = """
import gc, os, signal, sys, cpython_native
holders = cpython_native.hold(1200)
watchers = [cpython_native.watch(one) for one in holders[:30]]
gc.collect()
cpython_native.arm()
objects = gc.get_objects()
count = {}
for one in objects:
    count[type(one)] = count.get(type(one), 0) + 1
tracked = count[cpython_native.Watcher], count[type(gc.collect)]
del objects, one, count
os.write(1, ("%d %d %d %d\\n" % (*cpython_native.held(), *tracked)).encode())
if sys.argv[1:] == ["collect"]:
    gc.collect()
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


@pytest.mark.parametrize("stop", ["idle", "collect"])
@pytest.mark.parametrize("picture", mark_matrix_except(["live", "kernel"], "kernel"))
@pytest.mark.parametrize("version", VERSIONS)
def test_native_memory_of_an_extension(modules: Path, tmp_path: Path, version: str, picture: str, stop: str) -> None:
    """Native memory of a type includes every block that only its objects refer to. This also holds during a collection, when all objects
    are in lists of the collector's stack. glibc fills allocated blocks, so that no stale word refers to a block."""
    python = mallocs_python.get(version)
    with cores.Running(python.command("-c", HOLDS, stop), tmp_path, python.environment(modules, MALLOC_PERTURB_="165")) as one:
        blocks, size, watchers, functions = map(int, one.output.splitlines()[0].split())
        found = page(one, picture)
    assert found["counters"]["collecting"] == (stop == "collect")
    types = {row["name"]: row for row in found["types"]}
    holders = types["cpython_native.Holder"]
    assert (holders["objects"], holders["native_blocks"], holders["native_bytes"]) == (1200, blocks, size)
    assert (types["cpython_native.Watcher"]["objects"], types["cpython_native.Watcher"]["native_blocks"]) == (30, 0)
    assert types["cpython_native.Watcher"]["own"]["tracked"] == watchers == 30
    assert types["builtin_function_or_method"]["own"]["tracked"] == functions


def run_json(one: cores.Running) -> dict[str, Any]:
    return dict(json.loads(one.output.splitlines()[0]))


@pytest.mark.platform("x86-64", "CPython", of="3.9 to 3.14")
@pytest.mark.parametrize("picture", mark_matrix_except(["live", "kernel", "gcore"], "kernel"))
@pytest.mark.parametrize("version", VERSIONS)
def test_objects_are_those_the_collector_knows_of(tmp_path: Path, version: str, picture: str) -> None:
    """The counts of types equal those of gc.get_objects(). Types that the collector does not track are counted, too."""
    with running(version, tmp_path) as one:
        said, found = run_json(one), page(one, picture, "--no-native")
    types = {row["name"]: row for row in found["types"]}
    assert {name: row["own"]["tracked"] for name, row in types.items() if row["own"]["tracked"]} == said["tracked"]
    assert {name: types[name]["objects"] for name in said["untracked"]} == said["untracked"]
    assert len(said["tracked"]) > 40
    assert found["version"].startswith(version)
    counters = found["counters"]
    assert [counters[f"generation {n} threshold"] for n in range(3)] == said["thresholds"]
    for number, stats in enumerate(said["stats"]):
        assert {name: counters[f"generation {number} {name}"] for name in stats} == stats


@pytest.mark.parametrize("picture", mark_matrix_except(["live", "kernel"], "live"))
@pytest.mark.parametrize("version", VERSIONS)
def test_sites_are_those_of_tracemalloc(tmp_path: Path, version: str, picture: str) -> None:
    with running(version, tmp_path, "trace") as one:
        said, found = run_json(one), page(one, picture, "--no-native")
    sites = [[site["frames"], site["blocks"], site["bytes"]] for site in found["sites"] if site["frames"][0].startswith(str(PROGRAM))]
    assert len(said["sites"]) == 10
    for site in said["sites"]:
        assert site in sites
    assert found["counters"]["traced memory"] == sum(site["bytes"] for site in found["sites"])


@pytest.mark.parametrize("version", VERSIONS)
def test_interned_strings_are_counted(tmp_path: Path, version: str) -> None:
    """Compare two runs, because strings in static data of the interpreter are not counted."""
    said, found = [], []
    for number in (1, 5433):
        with running(version, tmp_path / str(number), INTERNED=f"{number:04}", PYTHONHASHSEED="1") as one:
            said.append(run_json(one)["interned"])
            found.append(page(one, "live", "--no-native")["counters"]["interned strings"])
    assert found[1] - found[0] == said[1] - said[0] > 5400


COMPRESSES = """
import gc, os, signal, zlib
held = [zlib.compressobj() for _ in range(200)]
for name in "abcdef":
    globals()[name] = held[:]  # these are more variables than are named together
gc.collect()
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


@pytest.mark.parametrize("picture", mark_matrix_except(["live", "kernel"], "kernel"))
def test_verdict_names_the_objects_that_hold_native_memory(tmp_path: Path, picture: str) -> None:
    """The program has 200 zlib objects of about 264 KiB each, according to zlib's documentation, and 200 small objects. glibc fills
    allocated blocks, because zlib leaves most of them uninitialized, and stale pointers in them would refer to blocks."""
    python = mallocs_python.get(REDUCED)
    with cores.Running(python.command("-c", COMPRESSES), tmp_path, python.environment(MALLOC_PERTURB_="165")) as one:
        where = ["--pid", str(one.pid)] if picture == "live" else [str(one.kernel_core())]
        said = json.loads(debuggers.findleaks("verdict", "--json", *where))
    (held,) = said["managed"]
    assert (held["types"][0]["name"], held["types"][0]["objects"]) == ("zlib.Compress", 200)
    assert 260 << 10 <= held["types"][0]["native_bytes"] / 200 <= 280 << 10
    assert held["reported_bytes"] is held["unreported_bytes"] is None  # CPython does not count these bytes
    assert said["findings"][0]["finding"] == "held-by-managed-objects"
    assert said["findings"][0]["bytes"] == held["native_bytes"] + held["object_bytes"]
