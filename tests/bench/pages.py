"""Measure the time to examine every page of a heap, and to write the map: CPU time per block, also as a multiple of streaming the core
once.

The heap is that of bench.py. The kernel writes its core, so the resident pages are known. Each part runs `--runs` times, alternating with
the streaming; medians are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import bench

LIMIT = 20.0
"""Nanoseconds per block that examining pages may take."""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("blocks", nargs="?", type=int, default=10_000_000, help="number of blocks")
    parser.add_argument("--runs", type=int, default=3, help="runs of each measurement, of which the median is printed")
    parser.add_argument("--measure", metavar="CORE", help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.measure:
        print(json.dumps(measure(args.measure)))
        return 0
    with tempfile.TemporaryDirectory(prefix="findleaks-bench-") as scratch:
        bench.compile_all(scratch)
        core, _ = bench.make_core(scratch, args.blocks)
        env = {**os.environ, "FINDLEAKS_LIMITS": f"{scratch}/limits.so"}
        rows = []
        for _ in range(args.runs):
            here = [sys.executable, str(Path(bench.__file__)), str(args.blocks), "--core", core, "--measure", "limits"]
            limits = json.loads(subprocess.run(here, env=env, check=True, capture_output=True).stdout)
            own = [sys.executable, __file__, "--measure", core]
            rows.append({**json.loads(subprocess.run(own, env=env, check=True, capture_output=True).stdout), "stream": limits["stream"]})
        print(table({key: bench.median([row[key] for row in rows]) for key in rows[0]}))
    return 0


def measure(core: str) -> dict[str, Any]:
    """Run each part once, with the same calls as the command."""
    from findleaks.audit.pages import predict_released_bytes, read_areas
    from findleaks.audit.residency import read_residency
    from findleaks.report.heapmap.cells import Picture
    from findleaks.report.heapmap.html import render_html
    from findleaks.session import Session
    from findleaks.target.core import open_core

    session = Session(open_core(core))
    figures: dict[str, Any] = {}
    blocks = len(session.directory.blocks)

    def part(name: str, work: Callable[[], Any]) -> Any:
        began, cpu = time.perf_counter(), time.process_time()
        made = work()
        figures[name] = {"wall": time.perf_counter() - began, "cpu": time.process_time() - cpu}
        return made

    known = part("residency", lambda: read_residency(session))
    found = part("pages", lambda: read_areas(session, known))
    part("malloc_trim", lambda: [predict_released_bytes(session, one, known) for one in session.directory.allocators])
    text = part("page", lambda: render_html(session, Picture("bench", found, known, session.target.arch.page)))
    figures["html"] = len(text)
    figures["blocks"] = blocks
    figures["count"] = sum(len(area.states) for area in found)
    return figures


NAMES = {
    "residency": "which are resident",
    "pages": "looking at pages",
    "malloc_trim": "what malloc_trim returns",
    "page": "writing the page",
    "stream": "stream once",
}


def table(found: dict[str, Any]) -> str:
    """Return the text of the report."""
    blocks, stream = found["blocks"], found["stream"]["cpu"]
    lines = [f"{blocks:,.0f} blocks on {found['count']:,.0f} pages", "", f"  {'PART':<26} WALL s   CPU s  ns/BLOCK  STREAMING"]
    for key, name in NAMES.items():
        wall, cpu = found[key]["wall"], found[key]["cpu"]
        lines.append(f"  {name:<26} {wall:6.3f}  {cpu:6.3f}  {cpu / blocks * 1e9:8.1f}  {cpu / stream:8.2f}")
    each = found["pages"]["cpu"] / blocks * 1e9
    lines.append("")
    lines.append(f"  the page has {found['html'] / bench.MIB:.2f} MiB; looking at pages costs {each:.1f} ns a block (limit {LIMIT:.0f})\n")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
