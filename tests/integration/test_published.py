"""Leaks of released packages, from public trackers: findleaks counts them correctly in the bad release, and finds none in the fixed
release."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from debuggers import run_cli
from published import LEAKS, PROGRAMS, Published, install, interpreter, usable
from variants import mark_matrix_except

from cores import Running
from findleaks.target.core import open_core

# PROJ's objects contain std::strings whose short-string buffers are only partly written. The rest of a buffer keeps old contents, which
# look like pointers to lost blocks. Settings of glibc clear old contents, so that the count is exact (docs/real-programs.md).
CLEAN = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.perturb=165:glibc.malloc.tcache_count=0"}

HELD = 0.01
"""Maximum share of the blocks to which random words may refer: a number, or bytes of a freed block. Usually there are none."""


def _start(leak: Published, version: str, folder: Path, settings: dict[str, str]) -> Running:
    python, short = interpreter()
    path = [install(leak.project, version, short), *(install(*need, short) for need in leak.needs)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **settings}
    # With -S, only the tested release is on the path.
    return Running([python, "-S", str(PROGRAMS / leak.program), str(leak.times)], folder, environment)


def _ask(*words: str) -> str:
    done = run_cli(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _lost(leak: Published, target: str) -> dict[str, int]:
    """Return how many of the possibly leaked blocks are definitely lost, indirectly lost and so on."""
    sizes = usable(leak.request)
    rows = [json.loads(line) for line in _ask("blocks", "--json", "--size", f"{min(sizes)}-{max(sizes)}", target).splitlines()]
    blocks = [row for row in rows if row.get("size") in sizes and row["state"] == "in-use"]
    if leak.described_in:
        with open_core(target) as core:
            texts = [region for region in core.regions() if leak.described_in in region.name]
            words = {row["address"]: core.word(int(row["address"], 16) + 16) for row in blocks}  # PJ.descr, PROJ: src/proj_internal.h
        blocks = [row for row in blocks if any(text.start <= words[row["address"]] < text.end for text in texts)]
    return dict(Counter(row["kind"] for row in blocks))


@pytest.mark.parametrize("name", mark_matrix_except(["ujson-loads", "ujson-dump"], "ujson-loads"))
@pytest.mark.parametrize("how", mark_matrix_except(["kernel_core", "gcore"], "kernel_core"))
def test_unprepared_process_has_each_block_lost(name: str, how: str, tmp_path: Path) -> None:
    leak = LEAKS[name]
    with _start(leak, leak.bad, tmp_path, {}) as running:
        core = str(getattr(running, how)())
    kinds = _lost(leak, core)
    assert (1 - HELD) * leak.times <= kinds["definite"] <= leak.times, kinds
    assert "indirect" not in kinds
    found = json.loads(_ask("find", "--json", core))
    biggest = found["groups"][0]
    smallest, largest = biggest["sizes"]
    assert biggest["kind"] == "definite"
    assert smallest <= min(usable(leak.request)) <= largest
    # A group has all objects of a class.
    assert 0 <= biggest["blocks"] - kinds["definite"] <= leak.small
    # Nothing else is lost. (A random word may also refer to a block of another size.)
    assert 0 <= found["totals"]["definite"]["blocks"] - kinds["definite"] <= leak.small
    assert found["totals"]["indirect"]["blocks"] == 0


@pytest.mark.parametrize("name", mark_matrix_except(["ujson-loads", "ujson-dump"], "ujson-loads"))
def test_fixed_release_loses_nothing(name: str, tmp_path: Path) -> None:
    leak = LEAKS[name]
    with _start(leak, leak.fixed, tmp_path, {}) as running:
        core = str(running.kernel_core())
    found = json.loads(_ask("find", "--json", core))
    assert found["totals"]["definite"]["blocks"] == 0, found["groups"]
    assert found["totals"]["in_use"]["blocks"] > 100


def test_pyproj_leaks_one_object_per_call_with_its_blocks(tmp_path: Path) -> None:
    leak = LEAKS["pyproj"]
    with _start(leak, leak.bad, tmp_path, CLEAN) as running:
        core = str(running.kernel_core())
    kinds = _lost(leak, core)
    assert (1 - HELD) * leak.times <= kinds["definite"] + kinds.get("indirect", 0) <= leak.times, kinds
    found = json.loads(_ask("find", "--json", "--kind", "definite", core))
    # patchelf changed the wheel's libraries: the core lacks their build-ids, and some of their data was never written.
    assert found["trusted"], found["warnings"]
    objects = [g for g in found["groups"] if g["size"] in usable(leak.request)]
    assert sum(g["blocks"] for g in objects) >= kinds["definite"] >= 0.8 * leak.times
    # Hundreds of blocks are reachable from each leaked object. They use most of the memory, and are attributed to the leak head.
    assert sum(g["indirect_blocks"] for g in objects) > 500 * leak.times
    assert found["groups"][0] in objects


@pytest.mark.matrix
def test_fixed_pyproj_loses_none(tmp_path: Path) -> None:
    leak = LEAKS["pyproj"]
    with _start(leak, leak.fixed, tmp_path, CLEAN) as running:
        core = str(running.kernel_core())
    assert set(_lost(leak, core)) <= {"reachable"}
    assert json.loads(_ask("find", "--json", core))["totals"]["in_use"]["blocks"] > 1000


def _find_retaining_blocks(leak: Published, core: str) -> set[str]:
    """Return the blocks that retain possibly lost blocks: each is the first possibly lost block on a path to a leaked object."""
    sizes = usable(leak.request)
    first: set[str] = set()
    for line in _ask("blocks", "--json", "--kind", "possible", "--size", f"{min(sizes)}-{max(sizes)}", core).splitlines()[:-1]:
        block = json.loads(line)
        steps = json.loads(_ask("path", "--json", "--limit", "0", block["address"], core))["path"]
        # A reference of the path may be in a register, which is in no block.
        inside = [step["in"]["block"] for step in steps if "block" in step.get("in", {})]
        first.add(next((one["address"] for one in inside if one["kind"] == "possible"), block["address"]))
    return first


def test_unprepared_pyproj_is_reported_first(tmp_path: Path) -> None:
    """Without the settings, stale words refer to at most one in twenty of the objects. More objects are reachable from these."""
    leak = LEAKS["pyproj"]
    with _start(leak, leak.bad, tmp_path, {}) as running:
        core = str(running.kernel_core())
    kinds = _lost(leak, core)
    found = json.loads(_ask("find", "--json", "--kind", "definite", core))
    assert 0.95 * leak.times <= kinds["definite"] + kinds["indirect"] + kinds.get("possible", 0) <= leak.times, kinds
    assert len(_find_retaining_blocks(leak, core)) <= 0.05 * leak.times, kinds
    first = found["groups"][0]
    assert first["size"] in usable(leak.request)
    assert first["indirect_blocks"] > 100 * first["blocks"]


def test_core_outlives_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a library was deleted, the core lacks only the library's pages that were never written. These pages contain no references. The
    count is the same, and the result is trusted."""
    monkeypatch.setenv("FINDLEAKS_TEST_FRESH", "1")  # a session that the test process keeps would have the library open
    leak = replace(LEAKS["pyproj"], times=20)
    python, short = interpreter()
    here = tmp_path / "packages"
    shutil.copytree(install(leak.project, leak.bad, short), here)
    path = os.pathsep.join([str(here), str(install(*leak.needs[0], short))])
    environment = {**os.environ, "PYTHONPATH": path, **CLEAN}
    with Running([python, "-S", str(PROGRAMS / leak.program), str(leak.times)], tmp_path / "run", environment) as running:
        core = str(running.kernel_core())
    before = _lost(leak, core)
    shutil.rmtree(here)
    assert _lost(leak, core) == before
    assert (1 - HELD) * leak.times <= before["definite"] + before.get("indirect", 0) <= leak.times
    found = json.loads(_ask("find", "--json", core))
    assert found["trusted"], found["warnings"]
    assert any("not on this machine" in warning for warning in found["warnings"])
