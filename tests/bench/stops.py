"""Measure how long a live process is stopped while findleaks examines it, by the process's own clock, compared with a plain copy of its
resident memory.

The best of several tries counts, because a process also stops while it waits for a processor. "idle" is the longest such gap during the
time of one try, without findleaks. A result that exceeds the limit by at most this gap is not a failure.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TRIES = 5
SHAPES = (("1,000 blocks", 1_000, 80, 30.0, 0.0), ("1 M blocks, 85 MiB", 1_000_000, 72, 120.0, 0.0), ("1 GiB", 16_384, 64 << 10, 0.0, 1.3))
"""Name, blocks, bytes of each, and the limit: milliseconds, or a multiple of the plain copy's time (0: no limit)."""


class Standing:
    """The program that records gaps in its own clock."""

    def __init__(self, program: Path, blocks: int, size: int) -> None:
        words = [str(program), str(blocks), str(size)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._line()

    def ask(self, word: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


def resident_runs(pid: int) -> list[tuple[int, int]]:
    """Return the runs of resident pages in writable memory."""
    runs: list[tuple[int, int]] = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/pagemap", "rb") as pagemap:
        for line in maps:
            words = line.split()
            low, high = (int(word, 16) for word in words[0].split("-"))
            if words[1][:2] != "rw":
                continue
            entries = os.pread(pagemap.fileno(), (high - low) >> 9, low >> 9)
            for number, byte in enumerate(entries[7::8]):
                start = low + number * mmap.PAGESIZE
                if byte & 0x80 and runs and runs[-1][1] == start:
                    runs[-1] = runs[-1][0], start + mmap.PAGESIZE
                elif byte & 0x80:
                    runs.append((start, start + mmap.PAGESIZE))
    return runs


def plain_copy(pid: int) -> tuple[float, int]:
    """Return the milliseconds for process_vm_readv of all writable resident memory into resident memory, and its bytes."""
    runs = resident_runs(pid)
    size = sum(end - start for start, end in runs)
    room = mmap.mmap(-1, size)
    for at in range(0, size, mmap.PAGESIZE):
        room[at] = 1
    at = ctypes.addressof(ctypes.c_char.from_buffer(room))
    readv: Any = ctypes.CDLL(None, use_errno=True).process_vm_readv
    readv.restype = ctypes.c_ssize_t
    word = ctypes.c_uint64
    began = time.perf_counter()
    for start, end in runs:
        while start < end:
            ours, theirs = (word * 2)(at, min(end - start, 1 << 30)), (word * 2)(start, min(end - start, 1 << 30))
            got = readv(pid, ours, ctypes.c_ulong(1), theirs, ctypes.c_ulong(1), ctypes.c_ulong(0))
            if got <= 0:
                raise OSError(ctypes.get_errno(), "process_vm_readv")
            start, at = start + got, at + got
    return 1000 * (time.perf_counter() - began), size


def measure(program: Path, blocks: int, size: int, command: str, tries: int) -> tuple[list[float], list[float], list[float], int]:
    """Return milliseconds: the longest gaps while the command ran, while idle, and during the plain copies; and the bytes of the copies."""
    one = Standing(program, blocks, size)
    try:
        gaps, idle, plain, resident = [], [], [], 0
        for _ in range(tries):
            one.ask("clear")
            began = time.monotonic()
            words = [sys.executable, "-m", "findleaks", command, "--json", "--pid", str(one.process.pid)]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            took = time.monotonic() - began
            gaps.append(int(one.ask("gap")) / 1000)
            one.ask("clear")
            time.sleep(min(took, 2.0))
            idle.append(int(one.ask("gap")) / 1000)
            milliseconds, resident = plain_copy(one.process.pid)
            plain.append(milliseconds)
        return gaps, idle, plain, resident
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
        print("the longest stop of a live process, ms       find  verdict     idle   plain copy   find/plain")
        for name, blocks, size, most, ratio in SHAPES:
            stops, idle, plain, resident = measure(program, blocks, size, "find", TRIES)
            others, _, _, _ = measure(program, blocks, size, "verdict", 2)
            best, copy = min(stops), min(plain)
            shown = f"{name} ({resident / 2**20:,.0f} MiB resident)"
            print(f"  {shown:40} {best:8.1f} {min(others):8.1f} {min(idle):8.1f} {copy:12.1f} {best / copy:12.2f}")
            noise = min(idle)
            if (most and best > most + noise) or (ratio and best > ratio * copy + noise):
                failed = True
                print(f"  too long: at most {f'{most:.0f} ms' if most else f'{ratio} times a plain copy'} is wanted")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
