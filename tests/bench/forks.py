"""Measure how long a process is stopped to be cloned (`snapshot --fork`), by its own clock, compared with a plain copy of its resident
memory.

As in stops.py, the best of several tries counts. "idle" is how long the process waited for a processor while findleaks did nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stops import SHAPES, Standing, plain_copy

from findleaks.injection.forked import fork

TRIES = 5
MOST, RATIO = 50.0, 0.15
"""The limits: milliseconds with 1 GiB resident or, on a slow machine, a multiple of the plain copy's time."""


def measure(program: Path, blocks: int, size: int) -> tuple[float, float, float, float, float, int]:
    """Return the least milliseconds of all tries: the longest gap by the process's clock, the first and the second stop by findleaks'
    clock, the longest gap while idle, and a plain copy; and the bytes of the copy."""
    one = Standing(program, blocks, size)
    try:
        rows, resident = [], 0
        for _ in range(TRIES):
            one.ask("clear")
            began = time.monotonic()
            with fork(one.process.pid) as target:
                first, second = target.stops
            took = time.monotonic() - began
            gap = int(one.ask("gap")) / 1000
            one.ask("clear")
            time.sleep(min(took, 2.0))
            idle = int(one.ask("gap")) / 1000
            copy, resident = plain_copy(one.process.pid)
            rows.append((gap, 1000 * first, 1000 * second, idle, copy))
        best = [min(column) for column in zip(*rows)]
        return best[0], best[1], best[2], best[3], best[4], resident
    finally:
        one.process.kill()
        one.process.wait()


def main() -> int:
    """Run the benchmark as a program."""
    failed = False
    with tempfile.TemporaryDirectory(prefix="findleaks-bench-") as folder:
        program = Path(folder, "standing")
        source = Path(__file__).parent / "standing.c"
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, source, "-pthread"], check=True)
        print("the longest stop to clone a process, ms      gap    first   second     idle   plain copy   gap/plain")
        for name, blocks, size, _, _ in SHAPES:
            gap, first, second, idle, copy, resident = measure(program, blocks, size)
            shown = f"{name} ({resident / 2**20:,.0f} MiB resident)"
            print(f"  {shown:40} {gap:8.1f} {first:8.1f} {second:8.1f} {idle:8.1f} {copy:12.1f} {gap / copy:11.2f}")
            if gap > max(MOST, RATIO * copy) + idle:
                failed = True
                print(f"  too long: at most {MOST:.0f} ms, or {RATIO} times a plain copy, is wanted")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
