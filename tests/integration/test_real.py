"""Real idle programs: `find` runs on the live process and on its cores. Valgrind memcheck on the same program confirms blocks that `find`
reports as definitely lost.

docs/real-programs.md lists what these programs leak, and why.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from debuggers import run_cli
from real import PROGRAMS, Idle, Record, ask_valgrind, count_unconfirmed
from variants import mark_matrix_except

pytestmark = pytest.mark.slow

GLIBC = sorted(set(PROGRAMS) - {"redis"})
"""Programs that allocate with glibc's malloc. CPython also uses its own allocator, and Debian's redis-server uses jemalloc."""
QUICK = [name for name in GLIBC if name not in ("java", "node", "ruby")]
COMPARED = mark_matrix_except(GLIBC, *QUICK)
CONFIRMED = mark_matrix_except(GLIBC, *(name for name in QUICK if name != "python"))
"""The programs that `make test` also checks with Valgrind. Each of the other programs needs ten seconds of CPU time or more."""


def _find(*target: str) -> dict[str, Any]:
    done = run_cli("find", "--json", *target)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


Pictures = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pictures]:
    """Return the output of `find` for one process in three forms: live, in gcore's core, and in the kernel's core."""

    @lru_cache(None)
    def take(name: str) -> Pictures:
        found = {}
        with Idle(PROGRAMS[name], tmp_path_factory.mktemp(name)) as idle:
            found["alive"] = _find("--pid", str(idle.pid))
            for how in ("gcore", "kernel_core"):
                core: Path = getattr(idle, how)()
                found[how] = _find(str(core))
                core.unlink()  # cores of the JVM are large
        return found

    return take


def _definite(found: dict[str, Any]) -> list[int]:
    """Return the usable size of each definitely lost block of `find`."""
    groups = [g for g in found["groups"] if g["kind"] == "definite"]
    assert all(g["size"] is not None for g in groups)
    sizes = [g["size"] for g in groups for _ in range(g["blocks"])]
    assert len(sizes) == found["totals"]["definite"]["blocks"]
    return sizes


@pytest.mark.parametrize("name", CONFIRMED)
def test_definite_is_confirmed_by_valgrind(name: str, pictures: Callable[[str], Pictures], tmp_path: Path) -> None:
    with Idle(PROGRAMS[name], tmp_path, judge=True) as idle:
        records = ask_valgrind(idle)
        if any(count_unconfirmed(_definite(found), records) for found in pictures(name).values()):
            records += ask_valgrind(idle, "possible")
    for how, found in pictures(name).items():
        assert not count_unconfirmed(_definite(found), records), (how, found["groups"], records)
        if any(record.kind == "definitely" for record in records):
            assert _definite(found), f"{how}: none of {records} records was found"


@pytest.mark.parametrize("name", COMPARED)
def test_pictures_of_one_process_agree(name: str, pictures: Callable[[str], Pictures]) -> None:
    """The live process and the kernel's core have the same leaks, except for what threads did in between."""
    for how, found in pictures(name).items():
        assert found["trusted"], (how, found["warnings"])
        assert found["totals"]["in_use"]["blocks"] > 1000, how
        assert sorted(a["name"] for a in found["allocators"]) == (["glibc", "pymalloc"] if name == "python" else ["glibc"])
        assert not [w for w in found["warnings"] if "corrupt" in w or "reconcile" in w], how
    alive, gcore, kernel = (sorted(_definite(found)) for found in pictures(name).values())
    assert alive == gcore == kernel
    blocks = [found["totals"]["in_use"]["blocks"] for found in pictures(name).values()]
    assert max(blocks) - min(blocks) <= 0.02 * max(blocks), blocks


def test_sizes_are_matched_one_to_one() -> None:
    records = [Record("definitely", (8, 32), ("f",)), Record("indirectly", (752,), ("g",))]
    assert not count_unconfirmed([24, 40, 776], records)
    assert count_unconfirmed([24, 24, 40, 40, 56], records) == {24: 1, 40: 1, 56: 1}


def test_redis_has_jemalloc(pictures: Callable[[str], Pictures]) -> None:
    """findleaks reads Redis's blocks, and none is lost. Blocks to which only a pointer after the header of an sds string refers are
    possibly lost."""
    for how, found in pictures("redis").items():
        assert found["trusted"], (how, found["warnings"])
        held = {a["name"]: a["blocks"] for a in found["allocators"]}
        assert held["jemalloc"] > 10_000, how
        assert held["glibc"] == 0, how
        assert found["totals"]["definite"]["blocks"] == found["totals"]["indirect"]["blocks"] == 0, how
