"""Measure what the search for pools costs in processes that have no pool.

`find` runs on the sample core, and on a process with many blocks (heap.c, live and as a core), in turn with and without the modules that
find pools. The process loads libstdc++, without which some modules do not search. Each run is a process, and counts with the time that
Python needs to start. Print the least CPU time of each, and fail if `find` takes more than MOST times the time that it takes without pools.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
SAMPLE = HERE.parents[1] / "cores" / "sample.core.gz"
MOST = 1.02
POOLS = {
    "allocators": ("gslice", "zend", "perl", "luajit", "pmr", "sqlite", "aprbuckets", "boostpool"),
    "runtimes": ("php", "postgresql", "talloc", "apr", "perl", "lua", "glib", "nginx", "libuv", "obstack"),
}
PROGRAM = """
import contextlib, io, sys
from findleaks.allocators import directory as allocators
from findleaks.runtimes import directory as runtimes
left_out = set(sys.argv[1].split(","))
for module, name in ((allocators, "FINDERS"), (allocators, "NESTED_FINDERS"), (runtimes, "FINDERS")):
    setattr(module, name, tuple(one for one in getattr(module, name) if one not in left_out))
from findleaks.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    main(["find", "--no-debug-types", *sys.argv[2:]])
"""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("blocks", nargs="?", type=int, default=1_000_000, help="number of blocks of the process")
    parser.add_argument("--runs", type=int, default=15, help="runs of each measurement, of which the least time is printed")
    args = parser.parse_args(words)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        program, core = Path(folder, "heap"), Path(folder, "core")
        subprocess.run(["gcc", "-O2", "-pthread", HERE / "heap.c", "-o", program, "-Wl,--no-as-needed", "-lstdc++"], check=True)
        with subprocess.Popen([program, str(args.blocks), "wait"], stdout=subprocess.PIPE, text=True) as heap:
            assert heap.stdout is not None
            heap.stdout.readline()
            subprocess.run(["gcore", "-o", str(core), str(heap.pid)], check=True, capture_output=True)
            targets = {"sample core": [str(SAMPLE)], "core": [f"{core}.{heap.pid}"], "live process": ["--pid", str(heap.pid)]}
            for name, target in targets.items():
                failed |= not report(name, target, args.runs)
            heap.send_signal(signal.SIGKILL)
    return int(failed)


def report(name: str, target: Sequence[str], runs: int) -> bool:
    """Print the times for one target. Return whether the ratio is at most MOST."""
    every = ",".join(f"findleaks.{area}.{one}" for area, names in POOLS.items() for one in names)
    times: dict[str, list[float]] = {"": [], every: []}
    for _ in range(runs):
        for left_out, measured in times.items():
            measured.append(_cpu_seconds([left_out, *target]))
    with_pools, without = (min(measured) for measured in times.values())
    print(f"{name}: {1000 * with_pools:.1f} ms of CPU, without pools {1000 * without:.1f} ms: {with_pools / without:.3f} times", flush=True)
    return with_pools <= MOST * without


def _cpu_seconds(words: Sequence[str]) -> float:
    """Return the CPU seconds of `find` with these arguments of PROGRAM, in one thread."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", PROGRAM, *words], check=True, capture_output=True, env={**os.environ, "FINDLEAKS_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
