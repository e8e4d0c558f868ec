"""A core that findleaks writes of a live process of 1 GiB: how long the process is stopped, and how long all of it takes, beside a plain
copy of the same memory into a file.

The plain copy reads /proc/PID/mem by 4 MiB, writes each to a file, and has that forced to disk, as the core is. The best of several tries
counts: whoever waits for a processor or for the disk is slower, in both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stops import Standing, resident_runs

from findleaks.target.copied import CopiedProcess
from findleaks.target.core_writer import Written, write_core

TRIES = 3
BLOCKS, SIZE = 16_384, 64 << 10
MOST = 2.0  # times the plain copy that a core may take
STEP = 4 << 20


def plain_file(pid: int, path: Path) -> float:
    """Seconds for all writable resident memory from the process into a file on disk."""
    runs = resident_runs(pid)
    buffer = memoryview(bytearray(STEP))
    began = time.perf_counter()
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for start, end in runs:
        while start < end:
            got = os.preadv(memory, [buffer[: min(STEP, end - start)]], start)
            os.write(file, buffer[:got])
            start += got
    os.fsync(file)
    took = time.perf_counter() - began
    os.close(file)
    os.close(memory)
    path.unlink()
    return took


def core(pid: int, path: Path, compress: bool) -> tuple[float, float, Written]:
    """Seconds for a core from the first look at the process until it is on disk, those that the process was stopped, and the core."""
    began = time.perf_counter()
    with CopiedProcess(pid) as copy:
        written = write_core(copy, str(path), compress)
        took = time.perf_counter() - began
        stopped = copy.stopped
    path.unlink()
    return took, stopped, written


def main() -> int:
    """For the command line. The files are made in the folder that it names, or in a temporary one."""
    with tempfile.TemporaryDirectory(prefix="findleaks-bench-", dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        program = Path(folder, "standing")
        source = Path(__file__).parent / "standing.c"
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, source, "-pthread"], check=True)
        one = Standing(program, BLOCKS, SIZE)
        try:
            rows = []
            for _ in range(TRIES):
                plain = plain_file(one.process.pid, Path(folder, "plain"))
                rows.append((plain, core(one.process.pid, Path(folder, "core"), False), core(one.process.pid, Path(folder, "zst"), True)))
        finally:
            one.process.kill()
            one.process.wait()
    plain = min(row[0] for row in rows)
    (took, _, written), (packed, _, small) = min(row[1] for row in rows), min(row[2] for row in rows)
    stopped = min(row[1][1] for row in rows)
    print(f"a core of a live process, {written.memory / 2**20:,.0f} MiB of memory, s   plain copy   stopped    core  core/plain    .zst")
    print(f"{'':62}{plain:10.2f}{stopped:10.3f}{took:8.2f}{took / plain:12.2f}{packed:8.2f}")
    print(f"  on disk: {written.on_disk / 2**20:,.0f} MiB of {written.size / 2**20:,.0f}; packed {small.on_disk / 2**20:,.1f} MiB")
    if took > MOST * plain:
        print(f"  too long: at most {MOST} times a plain copy is wanted")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
