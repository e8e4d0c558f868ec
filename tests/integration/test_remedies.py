"""A remedy that `verdict` suggests for free memory has the predicted effect."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import building
from verdicts import anonymous, finding, given_back, near, sorts, verdict

from cores import Running

MIB = 1 << 20


arenas = building.fixture("arenas.c", "-O1", "-pthread")


def run(program: Path, folder: Path, *words: int, **environment: str) -> tuple[dict[str, Any], int]:
    """Return the output of `verdict`, and the resident anonymous memory. The program has as many arenas as threads on any machine."""
    tunables = {"GLIBC_TUNABLES": "glibc.malloc.arena_test=64", **environment}
    with Running([str(program), *map(str, words)], folder, {**os.environ, **tunables}) as running:
        return verdict("--pid", str(running.pid)), anonymous(running.pid)


def test_arenas_are_blamed_if_free_memory_is_spread_over_them(arenas: Path, tmp_path: Path) -> None:
    found, _ = run(arenas, tmp_path / "many", 3, 3, 12)
    kept = finding(found, "kept")
    assert "arenas" in kept["evidence"]["causes"]
    assert "MALLOC_ARENA_MAX=2 in the environment" in kept["try"]
    assert near(kept["evidence"]["kept_in_largest_arena"], kept["bytes"] / 12, 0.2)


def test_arenas_are_not_blamed_if_one_has_nearly_all(arenas: Path, tmp_path: Path) -> None:
    """Nearly all memory is in one arena, so MALLOC_ARENA_MAX would change nothing, and is not suggested."""
    found, before = run(arenas, tmp_path / "one", 40, 1, 12)
    kept = finding(found, "kept")
    assert kept["evidence"]["arenas"] > 2
    assert kept["evidence"]["kept_in_thread_arenas"] > 0.9 * kept["bytes"]
    assert "arenas" not in kept["evidence"]["causes"]
    assert not any("MALLOC_ARENA_MAX" in words for words in kept["try"])
    assert kept["evidence"]["kept_in_largest_arena"] > 0.7 * kept["bytes"]
    again, after = run(arenas, tmp_path / "two", 40, 1, 12, MALLOC_ARENA_MAX="2")
    assert near(after, before, 0.05)
    assert finding(again, "kept")["evidence"]["arenas"] <= 2


PYTHON = """
import ctypes, signal
blocks = [bytes(2000) for _ in range(20000)]
pin = bytes(2001)
del blocks
def size():
    return [line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon")][0]
print("ready", flush=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
signal.sigwait([signal.SIGUSR1])
before = size()
ctypes.CDLL(None).malloc_trim(0)
print(before, size(), flush=True)
signal.pause()
"""


def test_python_calls_malloc_trim(tmp_path: Path) -> None:
    """The suggested statement calls malloc_trim, and returns the predicted amount of memory."""
    with Running([sys.executable, "-c", PYTHON], tmp_path / "run") as running:
        kept = finding(verdict("--pid", str(running.pid)), "kept")
        assert kept["evidence"]["allocator"] == "glibc"
        assert "ctypes.CDLL(None).malloc_trim(0) in Python, which calls malloc_trim(0)" in kept["try"]
        assert near(kept["evidence"]["returnable"], given_back(running), 0.05)
        assert "kept" not in sorts(verdict("--pid", str(running.pid)))
