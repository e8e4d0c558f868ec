"""Measure `verdict`, compared with `find`, on the same core as users run them; print medians and the ratio.

In a second heap (`holes`), every second page was given back, so that each resident run has one page.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from bench import Figures, command, compile_all, make_core, median, unlimited  # noqa: E402

HOLES = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
/* Blocks of one page less a header, every second one freed; what is wholly free in them is given back by hand. */
int main(int argc, char **argv) {
    long count = atol(argv[1]);
    char **all = malloc((size_t)count * sizeof *all);
    for (long i = 0; i < count; i++) all[i] = memset(malloc(12272), 1, 12272);
    for (long i = 0; i < count; i += 2) {
        char *first = (char *)(((unsigned long)all[i] + 4095 + 32) & ~4095ul), *last = (char *)((unsigned long)(all[i] + 12272) & ~4095ul);
        free(all[i]);
        madvise(first, (size_t)(last - first), MADV_DONTNEED);
    }
    printf("{\"blocks\": %ld}\n", count / 2);
    fflush(stdout);
    abort();
    return argc;
}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("blocks", nargs="*", type=int, default=[1_000_000, 10_000_000], help="numbers of blocks")
    parser.add_argument("--holes", type=int, default=100_000, help="blocks of the heap with holes (0: without)")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    print("  HEAP                      FIND s   CPU  VERDICT s   CPU  RATIO   MEMORY B/BLOCK  MORE")
    with tempfile.TemporaryDirectory(prefix="findleaks-bench-") as scratch:
        compile_all(scratch)
        for number in args.blocks:
            core, truth = make_core(scratch, number)
            row(f"{truth['blocks']:,} blocks", core, truth["blocks"], args.runs)
        if args.holes:
            row(f"{args.holes:,} holes", holes(scratch, args.holes), args.holes, args.runs)
    return 0


def holes(scratch: str, number: int) -> str:
    source = Path(scratch) / "holes.c"
    source.write_text(HOLES)
    subprocess.run(["cc", "-O1", "-o", f"{scratch}/holes", str(source)], check=True)
    before = set(Path(scratch).glob("core*"))
    subprocess.run([f"{scratch}/holes", str(number)], cwd=scratch, capture_output=True, preexec_fn=unlimited, check=False)
    (core,) = set(Path(scratch).glob("core*")) - before
    return str(core)


def row(name: str, core: str, blocks: int, runs: int) -> None:
    try:
        with open(core, "rb") as file:
            while file.read(1 << 24):
                pass
        found: dict[str, Figures] = {}
        for word in ("find", "verdict"):
            found[word] = median(
                [command([sys.executable, "-m", "findleaks", word, "--json", core], dict(os.environ)) for _ in range(runs)]
            )
        find, verdict = found["find"], found["verdict"]
        more = (verdict["memory"] - find["memory"]) / blocks
        line = f"  {name:<24}  {find['wall']:6.2f} {find['cpu']:5.2f}     {verdict['wall']:6.2f} {verdict['cpu']:5.2f}"
        print(f"{line}  {verdict['cpu'] / find['cpu']:5.2f}  {find['memory'] / blocks:15.1f}  {more:4.1f}", flush=True)
        print(json.dumps({"heap": name, "find": find, "verdict": verdict}), file=sys.stderr)
    finally:
        os.unlink(core)


if __name__ == "__main__":
    sys.exit(main())
