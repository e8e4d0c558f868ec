"""Measure a core that findleaks writes of a live process of 1 GiB: how long the process is stopped, and how long everything takes, compared
with a plain copy of the same memory into a file.

The plain copy reads 4 MiB at a time from /proc/PID/mem, and writes it to a file, which is then forced to disk, as the core is. The best of
several tries counts, because waiting for a processor or the disk slows both.
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
MOST = 2.0  # the largest allowed multiple of the plain copy's time
STEP = 4 << 20


def plain_file(pid: int, path: Path) -> float:
    """Return the seconds for writing all writable resident memory of the process to a file on disk."""
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
    """Return the seconds from the first look at the process until the core is on disk, the seconds that the process was stopped, and the
    core."""
    began = time.perf_counter()
    with CopiedProcess(pid) as copy:
        written = write_core(copy, str(path), compress)
        took = time.perf_counter() - began
        stopped = copy.stopped
    path.unlink()
    return took, stopped, written


def main() -> int:
    """Run the benchmark as a program. The files are made in the folder that the argument names, or in a temporary one."""
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
