"""Measure the remedies that `verdict` suggests for free memory: the anonymous resident size of a process with and without each setting, and
before and after each call. `python tests/bench/remedies.py [NAME…]`; docs/allocators.md has the figures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

import mallocs_jemalloc  # noqa: E402
import mallocs_mimalloc  # noqa: E402
import mallocs_tcmalloc  # noqa: E402

MIMALLOC = {"mimalloc 2.0.9": "2.0.9", "mimalloc 3": "3.0.1"}
REST = 3.0  # seconds after which memory is measured: decay and purging take 1 s


class Case(NamedTuple):
    allocator: str
    words: Sequence[str]  # arguments of remedies.c
    settings: Sequence[Mapping[str, str]]  # the first is for the process that `verdict` examines


def cases() -> list[Case]:
    tunables = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
    keeps, decays = {"MALLOC_CONF": "dirty_decay_ms:-1"}, "background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0"
    flush = {"FLUSH": "1"}
    return [
        Case("glibc", ("arenas", "30"), ({}, {"MALLOC_ARENA_MAX": "2"})),
        Case("glibc", ("freed", "0"), ({}, {"MALLOC_ARENA_MAX": "2"})),
        Case("glibc", ("top", "0"), ({}, {"MALLOC_TRIM_THRESHOLD_": "131072"})),
        Case("glibc", ("caches", "100"), ({}, tunables)),
        Case("glibc", ("unjoined", "200"), ({},)),
        Case("glibc", ("joined", "200"), ({},)),
        Case("jemalloc", ("freed", "0"), (keeps, {"MALLOC_CONF": decays}, {})),
        Case("jemalloc", ("caches", "100"), ({}, {"MALLOC_CONF": f"tcache_max:4096,{decays}"}, {"MALLOC_CONF": decays}, flush)),
        Case("tcmalloc", ("freed", "0"), ({}, {"TCMALLOC_RELEASE_RATE": "10"}, {"TCMALLOC_AGGRESSIVE_DECOMMIT": "1"})),
        Case("tcmalloc", ("caches", "100"), ({}, {"TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES": "1048576"}, flush)),
        Case("mimalloc 2.0.9", ("freed", "0"), ({}, {"MIMALLOC_RESET_DELAY": "0", "MIMALLOC_PAGE_RESET": "1"})),
        Case("mimalloc 3", ("freed", "0"), ({}, {"MIMALLOC_PURGE_DELAY": "0"})),
        Case("mimalloc 3", ("caches", "100"), ({}, flush)),
        Case("AddressSanitizer", ("freed", "0"), ({}, asan("16", "5000"), asan("0", "0"), asan("16", "0"))),
    ]


def asan(quarantine: str, interval: str) -> dict[str, str]:
    return {"ASAN_OPTIONS": f"quarantine_size_mb={quarantine}:allocator_release_to_os_interval_ms={interval}"}


def environment(allocator: str) -> dict[str, str]:
    if allocator == "jemalloc":
        return {"LD_PRELOAD": str(mallocs_jemalloc.get("5.3.0").library)}
    if allocator == "tcmalloc":
        return mallocs_tcmalloc.get("2.10").environment()
    if allocator.startswith("mimalloc"):
        return {"LD_PRELOAD": str(mallocs_mimalloc.library(MIMALLOC[allocator]))}
    return {}


def measure(program: Path, words: Sequence[str], settings: Mapping[str, str]) -> tuple[int, int]:
    """Return two sizes in kB that the process prints when it is idle: before and after the allocator's call."""
    with subprocess.Popen([str(program), *words], env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            time.sleep(REST)
            process.send_signal(signal.SIGUSR1)
            before, after = map(int, process.stdout.readline().split())
        finally:
            process.kill()
    return before, after


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        source = HERE / "remedies.c"
        plain, checked = Path(name, "plain"), Path(name, "checked")
        subprocess.run(["gcc", "-O1", "-o", str(plain), str(source), "-ldl", "-pthread"], check=True)
        subprocess.run(["clang-19", "-O1", "-fsanitize=address", "-o", str(checked), str(source), "-ldl", "-pthread"], check=True)
        for case in cases():
            if sys.argv[1:] and case.allocator not in sys.argv[1:]:
                continue
            program = checked if case.allocator == "AddressSanitizer" else plain
            for settings in case.settings:
                before, after = measure(program, case.words, {**environment(case.allocator), **settings})
                what = " ".join(f"{name}={value}" for name, value in settings.items()) or "as it is"
                print(
                    f"{case.allocator:17} {' '.join(case.words):13} {before / 1024:7.1f} MiB, after the call {after / 1024:7.1f}: {what}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
