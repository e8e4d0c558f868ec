"""Measure `runtime` on a large Java heap, compared with reading the core: CPU seconds, and anonymous memory of findleaks per object.

Run ManyObjects.java (20 M objects in 1 GiB by default) on JDK 17 with G1 and on JDK 8 with Parallel, and take a core of each. Then,
`--runs` times in turn: read the core with `cat`, stream it once through a mapping (limits.c), and run `runtime` as users do. Print the
least of each, and the ratio of `runtime` to the sum of both ways of reading. Memory is anonymous memory: the memory of a process without
the pages of the core. Fail if a ratio is above TIMES, or if memory is above BYTES per object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import Figures, command, compile_all

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "support"))

import jvms  # noqa: E402 (of the tests)

import cores  # noqa: E402

TIMES, BYTES = 14.0, 27.0
JVMS = {
    "JDK 17, G1": (jvms.SYSTEM, ("-XX:+UseG1GC", "-Xmx2g", "-Xms1500m")),
    "JDK 8, Parallel": ("8", ("-XX:+UseParallelGC", "-Xmx3g", "-Xmn1g")),
}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("objects", nargs="?", type=int, default=20_000_000, help="least number of objects")
    parser.add_argument("--runs", type=int, default=3, help="runs of each measurement, of which the least is printed")
    args = parser.parse_args(words)
    good = True
    for name, (version, options) in JVMS.items():
        with tempfile.TemporaryDirectory(prefix="findleaks-bench-") as scratch:
            compile_all(scratch)
            folder = Path(scratch)
            jvms.compile_java(HERE / "ManyObjects.java", folder, "--release", "8")
            line = jvms.command(version, folder, "ManyObjects", str(args.objects), options=options)
            with cores.Running(line, folder, stdin=subprocess.PIPE) as running:
                core = running.kernel_core()
            found = measure(str(core), f"{scratch}/limits.so", args.runs)
        reading = found["cat"]["cpu"] + found["stream"]["cpu"]
        times, held = found["runtime"]["cpu"] / reading, found["runtime"]["memory"] / args.objects
        print(
            f"{name}, {args.objects:,} objects: runtime {found['runtime']['cpu']:.2f} s CPU, {times:.1f} times reading "
            f"(cat {found['cat']['cpu']:.2f} s, streaming {found['stream']['cpu']:.2f} s); {held:.1f} B of memory an object",
            flush=True,
        )
        good = good and times <= TIMES and held <= BYTES
    return 0 if good else 1


def measure(core: str, library: str, runs: int) -> dict[str, Figures]:
    """Return the least of several runs of each, made in turn."""
    env = {**os.environ, "FINDLEAKS_THREADS": "1", "FINDLEAKS_LIMITS": library}
    lines = {
        "cat": ["sh", "-c", 'cat "$0" > /dev/null', core],
        "stream": [sys.executable, str(HERE / "bench.py"), "1", "--core", core, "--measure", "limits"],
        "runtime": [sys.executable, "-m", "findleaks", "runtime", core],
    }
    found: dict[str, list[Figures]] = {name: [] for name in lines}
    for _ in range(runs):
        for name, line in lines.items():
            if name == "stream":
                done = subprocess.run(line, env=env, check=True, capture_output=True)
                found[name].append(json.loads(done.stdout)["stream"])
            else:
                found[name].append(command(line, env))
    return {name: {key: min(one[key] for one in all_runs) for key in all_runs[0]} for name, all_runs in found.items()}


if __name__ == "__main__":
    sys.exit(main())
