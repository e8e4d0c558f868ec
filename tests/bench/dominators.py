"""Measure the time to compute dominators, compared with `findleaks find`, on the heap of bench.py and on difficult shapes (shapes.c).

Take each core once. `--runs` times each, run `find` and `roots` as users do. A separate process builds the graph, then the tree of
dominators (with the scan of root memory by mapping, sizes and retained bytes), and then the fields of the root that retains most. Print
medians of CPU time, and the time of `roots` as a multiple of the time of `find`: at most LIMIT on the heap of bench.py, at most HARD on the
others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import bench

LIMIT, HARD = 1.8, 8.0
BYTES = 30.0
"""Maximum memory in addition to that of `find`, in bytes per block. Blocks in use and free blocks both count."""

SHAPES = ("list", "parents", "owners", "digraph", "ends")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("blocks", nargs="?", type=int, default=10_000_000, help="blocks of each heap; a list has half as many")
    parser.add_argument("--runs", type=int, default=3, help="runs of each measurement, of which the median is printed")
    parser.add_argument("--shapes", nargs="+", choices=("heap", *SHAPES), default=("heap", *SHAPES))
    parser.add_argument("--measure", metavar="CORE", help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.measure:
        print(json.dumps(measure(args.measure)))
        return 0
    good = True
    print("  SHAPE        BLOCKS  FIND s  ROOTS s  GRAPH s  TREE s  FIELDS s  TIMES FIND  BYTES/BLOCK  SLICE ms")
    with tempfile.TemporaryDirectory(prefix="findleaks-bench-") as scratch:
        bench.compile_all(scratch)
        for shape in args.shapes:
            number = args.blocks // 2 if shape == "list" else args.blocks
            core, truth = bench.make_core(scratch, number, ("heap",) if shape == "heap" else ("shapes", shape))
            try:
                found = figures(core, args.runs)
            finally:
                os.unlink(core)
            find, roots = found["find"]["cpu"], found["roots"]["cpu"]
            times = roots / find
            good = good and times <= (LIMIT if shape == "heap" else HARD) and (shape != "heap" or found["bytes"] <= BYTES)
            print(
                f"  {shape:<8} {truth['blocks']:10,}  {find:6.2f}  {roots:7.2f}  {found['graph']:7.2f}"
                f"  {found['tree']:6.2f}  {found['fields']:8.2f}"
                f"  {times:10.2f}  {found['bytes']:11.1f}  {found['slice'] * 1e3:8.0f}",
                flush=True,
            )
    reported = "yes" if good else "NO"
    print(f"\n  at most {LIMIT} times `find` and {BYTES:.0f} bytes a block on the first heap, {HARD:.0f} times on the others: {reported}")
    return 0 if good else 1


def figures(core: str, runs: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for _ in range(runs):
        commands = {name: bench.again([sys.executable, "-m", "findleaks", name, core], dict(os.environ)) for name in ("find", "roots")}
        here = [sys.executable, str(Path(__file__)), "--measure", core]
        _, counted = (subprocess.run(here, check=True, capture_output=True).stdout for _ in range(2))  # see bench.again
        rows.append({**commands, **json.loads(counted)})
    return {key: bench.median([row[key] for row in rows]) for key in rows[0]}


def measure(core: str) -> dict[str, float]:
    """Return CPU seconds of each step, the longest slice, and bytes per block."""
    from findleaks.engine.dominators import root_node
    from findleaks.graph.roots import register_words
    from findleaks.session import SLICE, Session
    from findleaks.target.core import open_core

    session = Session(open_core(core))
    began = time.process_time()
    graph = session.graph()
    found = {"graph": time.process_time() - began, "slice": 0.0, "bytes": 0.0, "fields": 0.0}
    before, count = bench.anonymous(os.getpid()), len(session.directory.blocks)

    def sliced(step: Callable[[int], bool]) -> None:
        done = False
        while not done:
            began = time.process_time()
            done = step(SLICE)
            found["slice"] = max(found["slice"], time.process_time() - began)
            found["bytes"] = max(found["bytes"], (bench.anonymous(os.getpid()) - before) / count)

    began = time.process_time()
    memory = session.roots
    tree = graph.dominators(len(memory) + 1, array("Q", [r.start for r in memory]), array("I", range(len(memory))))
    for piece in session.pieces(memory, ""):
        tree.scan_roots(piece)
    tree.root_words(register_words(session.target), len(memory))
    sliced(tree.compute)
    found["tree"] = time.process_time() - began
    began = time.process_time()
    totals = tree.by_root()
    most = max(range(len(memory)), key=lambda root: totals[root].bytes)
    words = [value for piece in session.pieces(memory[most : most + 1], "") for value in piece.data.cast("Q")]
    below = tree.within(root_node(most), len(words))
    for number, value in enumerate(words):
        below.root_words([value], number)
    sliced(below.compute)
    found["fields"] = time.process_time() - began
    return found


if __name__ == "__main__":
    sys.exit(main())
