"""Measure `roots` and `verdict`, compared with `find`, if one owner has millions of words, and if many blocks are lost.

Take each core once. `--runs` times each, run `find`, `roots` and `verdict` as users do. Print medians of CPU time, their multiples of the
time of `find`, and the additional memory per block. Fail if a multiple is above LIMIT or, on a large heap, the memory is above BYTES per
block.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence

import bench

LIMIT, BYTES = 3.0, 100.0
MANY = 1_000_000
"""Memory is checked if a heap has at least this number of blocks. On a smaller heap, most memory does not depend on the number of
blocks."""

SHAPES = {"array": 3_000_000, "register": 3_000_000, "lost": 106_000}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="runs of each measurement, of which the median is printed")
    parser.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=tuple(SHAPES))
    args = parser.parse_args(words)
    good = True
    print("  SHAPE        BLOCKS  FIND s  COMMAND     CPU s  TIMES FIND  BYTES/BLOCK MORE")
    with tempfile.TemporaryDirectory(prefix="findleaks-bench-") as scratch:
        bench.compile_all(scratch)
        for shape in args.shapes:
            core, truth = bench.make_core(scratch, SHAPES[shape], ("shapes", shape))
            try:
                rows = [{name: once(name, core) for name in ("find", "roots", "verdict")} for _ in range(args.runs)]
            finally:
                os.unlink(core)
            found = {name: bench.median([row[name] for row in rows]) for name in rows[0]}
            for name in ("roots", "verdict"):
                times = found[name]["cpu"] / found["find"]["cpu"]
                more = (found[name]["memory"] - found["find"]["memory"]) / truth["blocks"]
                good = good and times <= LIMIT and (more <= BYTES or truth["blocks"] < MANY)
                print(
                    f"  {shape:<8} {truth['blocks']:10,}  {found['find']['cpu']:6.2f}  {name:<8}"
                    f"  {found[name]['cpu']:7.2f}  {times:10.2f}  {more:16.1f}",
                    flush=True,
                )
    print(f"\n  at most {LIMIT} times `find`, and {BYTES:.0f} bytes a block more: {'yes' if good else 'NO'}")
    return 0 if good else 1


def once(name: str, core: str) -> bench.Figures:
    return bench.again([sys.executable, "-m", "findleaks", name, core], dict(os.environ))


if __name__ == "__main__":
    sys.exit(main())
