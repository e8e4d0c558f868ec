"""Measure how long `snapshot` and `watch` stop a process of 1 M blocks, how long they take, and how large the file is.

The stop is the longest gap by the process's own clock (standing.c). "idle" is the longest gap in an equally long time without findleaks: on
a busy machine, waiting for a processor also causes gaps. `itself` is the duration that findleaks reports.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stops import Standing

TRIES = 5
BLOCKS, SIZE = 1_000_000, 72
MOST_STOPPED = 0.7
"""Seconds for which a snapshot of BLOCKS may stop the process."""
MOST_BYTES = 1 << 20
"""Maximum bytes of the file, which do not depend on the number of blocks."""
INTERVALS = 4


def snapshot(pid: int, path: Path) -> tuple[float, float]:
    """Return the seconds for which findleaks says that it stopped the process, and findleaks' CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, "-m", "findleaks", "snapshot", "--json", "-o", str(path), "--pid", str(pid)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return json.loads(done.stdout)["stopped_seconds"], after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_watch(pid: int) -> int:
    """Return the maximum KiB of memory of `watch` during INTERVALS intervals."""
    words = [sys.executable, "-m", "findleaks", "watch", "--every", "0.05", "--json", "--pid", str(pid)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(INTERVALS):
            process.stdout.readline()
        status = Path(f"/proc/{process.pid}/status").read_text()
        process.kill()
    return int(status.partition("VmHWM:")[2].split()[0])


def main() -> int:
    """Run the benchmark as a program."""
    with tempfile.TemporaryDirectory(prefix="findleaks-bench-") as folder:
        program, path = Path(folder, "standing"), Path(folder, "one.snapshot")
        source = Path(__file__).parent / "standing.c"
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, source, "-pthread"], check=True)
        one = Standing(program, BLOCKS, SIZE)
        try:
            gaps, idle, said, cpu = [], [], [], []
            for _ in range(TRIES):
                one.ask("clear")
                began = time.monotonic()
                stopped, seconds = snapshot(one.process.pid, path)
                took = time.monotonic() - began
                gaps.append(int(one.ask("gap")) / 1e6)
                said.append(stopped)
                cpu.append(seconds)
                one.ask("clear")
                time.sleep(min(took, 2.0))
                idle.append(int(one.ask("gap")) / 1e6)
            peak = measure_watch(one.process.pid)
        finally:
            one.process.kill()
            one.process.wait()
        size = path.stat().st_size
    print(f"a snapshot of {BLOCKS:,} blocks")
    print(f"  stopped {min(gaps):.3f} s (itself: {min(said):.3f} s; idle: {min(idle):.3f} s), at most {MOST_STOPPED} s is wanted")
    print(f"  CPU {min(cpu):.2f} s, file {size:,} bytes; watch: {peak / 1024:,.0f} MiB at most")
    return int(min(gaps) > MOST_STOPPED + min(idle) or size > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
