"""Measure `diff` on two cores of 10 M blocks, compared with `find` on one of them, and on 500 snapshots, compared with reading one.

Build heap.c, take two cores of it, and run each command `--runs` times, in turn. Print the least CPU seconds. Fail if `diff` of the cores
takes more than TIMES as long as `find` on one, or if `diff` of 500 snapshots takes more than SECONDS.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import compile_all, make_core

from findleaks.history.snapshot import Clock, Snapshot
from findleaks.history.store import load, save

TIMES, SECONDS, SNAPSHOTS = 3.6, 2.0, 500


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("blocks", nargs="?", type=int, default=10_000_000, help="blocks of each core")
    parser.add_argument("--runs", type=int, default=5, help="runs of each command, of which the least counts")
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="findleaks-bench-") as scratch:
        compile_all(scratch)
        before, after = (_core(scratch, name, blocks) for name, blocks in (("before", args.blocks * 95 // 100), ("after", args.blocks)))
        many = _snapshots(scratch, before)
        lines = {"find": ["find", after], "diff": ["diff", before, after], "snapshots": ["diff", many]}
        spent: dict[str, float] = {name: min(_cpu(line) for _ in range(args.runs)) for name, line in lines.items()}
    ratio = spent["diff"] / spent["find"]
    print(json.dumps({**spent, "diff / find": round(ratio, 2)}))
    return 0 if ratio <= TIMES and spent["snapshots"] <= SECONDS else 1


def _core(scratch: str, name: str, blocks: int) -> str:
    made, _ = make_core(scratch, blocks)
    return os.fspath(Path(made).rename(Path(scratch) / f"{name}.image"))


def _snapshots(scratch: str, core: str) -> str:
    """Write snapshots at intervals of a minute; all figures grow a little."""
    folder = Path(scratch) / "snapshots"
    folder.mkdir()
    first = folder / "0000.snapshot"
    subprocess.run([sys.executable, "-m", "findleaks", "snapshot", "-o", str(first), core], check=True, capture_output=True)
    one = load(str(first))
    for number in range(SNAPSHOTS):
        figures = [figure._replace(bytes=figure.bytes and figure.bytes + 1000 * number) for figure in one.figures]
        save(Snapshot("", Clock(60.0 * number), one.identity, figures), folder / f"{number:04}.snapshot", "bench")
    return str(folder)


def _cpu(words: Sequence[str]) -> float:
    """Return the CPU seconds of a command line."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "findleaks", *words], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3)


if __name__ == "__main__":
    sys.exit(main())
