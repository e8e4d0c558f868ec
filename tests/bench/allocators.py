"""Measure the time to enumerate the blocks of each allocator: CPU time per block, also as a multiple of the time for glibc in the same run.

The same program (heap.c) runs with each malloc preloaded. Its core is opened and the directory of blocks is made `--runs` times for each
allocator, in turn. Libraries come from Debian packages, which are unpacked outside the checkout. For musl, the program is linked with
either of its mallocs. CPython's allocator has a separate program. Google's tcmalloc is included if its tests have built it (`pytest -m
matrix tests/integration/test_tcmalloc_google.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import bench

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))
import debian
import mallocs_google
import mallocs_musl
import mallocs_scudo

LIMIT = 2.0
"""The largest allowed multiple of the time per block for glibc."""

PRELOADED = {
    "jemalloc": ("libjemalloc2", "libjemalloc.so.2"),
    "tcmalloc": ("libtcmalloc-minimal4", "libtcmalloc_minimal.so.4"),
    "mimalloc": ("libmimalloc2.0", "libmimalloc.so.2.0"),
}
"""For each allocator: the package of Debian 12, and the library in it that is preloaded."""

MUSL = {"musl": "1.2.5", "musl, old": "1.2.5-old"}
"""For each of musl's mallocs, which are linked statically: its name in `mallocs_musl`."""

GOOGLE, BUILD = "google-tcmalloc", "8k"

OBJECTS = """
import os, random
random.seed(7)
kept = []
for number in range({}):
    kept.append((number, str(number) + "x" * random.randrange(80)) if number % 3 else [number, random.random()])
for at in range(0, len(kept), 7):
    kept[at] = None
os.abort()
"""
"""A program that fills CPython's heap: three blocks for each object."""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("blocks", nargs="?", type=int, default=1_000_000, help="about how many blocks each heap has")
    parser.add_argument("--runs", type=int, default=5, help="runs of each measurement, of which the median is printed")
    parser.add_argument("--measure", metavar="CORE", help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.measure:
        print(json.dumps(measure(args.measure)))
        return 0
    with tempfile.TemporaryDirectory(prefix="findleaks-bench-") as scratch:
        bench.compile_all(scratch)
        cores = {name: core_of(scratch, name, command, library) for name, command, library in programs(scratch, args.blocks)}
        found: dict[str, list[dict[str, float]]] = {name: [] for name in cores}
        here = [sys.executable, str(Path(__file__)), "--measure"]
        for _ in range(args.runs):
            for name, core in cores.items():
                done = subprocess.run([*here, core], check=True, stdout=subprocess.PIPE, text=True)
                found[name].append(json.loads(done.stdout))
    print(table(found))
    if GOOGLE not in cores:
        print(f"  {GOOGLE} is left out: its tests, which build it, have not been run here")
    return 0


def programs(scratch: str, blocks: int) -> list[tuple[str, list[str], str]]:
    """Return (allocator, command, library to preload)."""
    heap = [f"{scratch}/heap", str(blocks)]
    made = [("glibc", heap, "")]
    for name, (package, library) in PRELOADED.items():
        folder = debian.cache() / "mallocs" / f"bench-{package}"
        debian.unpack_packages("bookworm", [package], folder, {})
        found = next(path for path in (folder / "root").rglob(library + "*") if not path.is_symlink())
        made.append((name, heap, str(found)))
    made.append(("scudo", heap, str(mallocs_scudo.library(mallocs_scudo.INSTALLED))))
    for name, version in MUSL.items():
        program = Path(scratch, f"heap-{version}")
        mallocs_musl.choose(version, "static").compile(Path(bench.HERE, "heap.c"), program, "static", "-pthread")
        made.append((name, [str(program), str(blocks)], ""))
    if (debian.cache() / "google-tcmalloc" / BUILD / "libtcmalloc.a").exists():
        program = Path(scratch, "heap-google")
        mallocs_google.Google(BUILD, Path(scratch)).compile(Path(bench.HERE, "heap.c"), program, ["-O2"])
        made.append((GOOGLE, [str(program), str(blocks)], ""))
    interpreter = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    made.append(("pymalloc", [interpreter, "-c", OBJECTS.format(blocks // 3)], ""))
    return made


def core_of(scratch: str, name: str, command: Sequence[str], library: str) -> str:
    """Return the core that the program leaves when it aborts."""
    folder = Path(scratch, name)
    folder.mkdir()
    environment = {**os.environ, **({"LD_PRELOAD": library} if library else {})}
    if name == GOOGLE:
        environment["GLIBC_TUNABLES"] = mallocs_google.PER_CPU
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, preexec_fn=bench.unlimited, check=False)
    cores = list(folder.glob("core*"))
    if len(cores) != 1:
        raise SystemExit(f"bench: {name} left no core (status {done.returncode}; core_pattern must name a file): {done.stderr.decode()}")
    with open(cores[0], "rb") as file:
        while file.read(16 * bench.MIB):
            pass
    return str(cores[0])


def measure(core: str) -> dict[str, float]:
    """Open the core, find the allocators, and enumerate the blocks. Run twice and return the second time, because the first run also loads
    Python's modules."""
    from findleaks.engine.terms import State
    from findleaks.session import Session
    from findleaks.target.core import open_core

    Session(open_core(core)).directory  # noqa: B018 - made when asked for
    figures: dict[str, bench.Figures] = {}
    session = Session(open_core(core))
    with bench.timed(figures, "directory"):
        directory = session.directory
    held = {a.name: sum(directory.blocks.totals(State.IN_USE, *part).blocks for part in directory.of(a)) for a in directory.allocators}
    return {"cpu": figures["directory"]["cpu"], "wall": figures["directory"]["wall"], "blocks": len(directory.blocks), **held}


def table(found: dict[str, list[dict[str, float]]]) -> str:
    """Return the text of the report."""
    cost = {name: statistics.median(run["cpu"] / run["blocks"] * 1e9 for run in runs) for name, runs in found.items()}
    lines = ["  ALLOCATOR          BLOCKS   OF IT IN USE  CPU s  ns/BLOCK  TIMES glibc'S"]
    for name, runs in found.items():
        cpu, blocks = statistics.median(run["cpu"] for run in runs), int(runs[0]["blocks"])
        mark = "" if cost[name] <= LIMIT * cost["glibc"] else f"  more than {LIMIT:g}"
        held = int(runs[0].get(name.partition(",")[0], 0))
        lines.append(f"  {name:<15} {blocks:>10,} {held:>14,} {cpu:6.3f} {cost[name]:9.1f} {cost[name] / cost['glibc']:13.2f}{mark}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
