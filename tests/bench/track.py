"""Measure by how much `track` slows programs down, compared with heaptrack (attached) and jemalloc's profiler, in the same run.

usage: python tests/bench/track.py

Figures are processor time of the program for a command (redis), or for a pair of malloc and free (allocs.c): other work on the machine
affects it less than wall time. Two redis servers get the same commands in turn, and one of them is tracked.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from redis_pair import RedisPair

from findleaks.injection.stub.traced_process import TracedProcess
from findleaks.tracking.record_table import Sampling
from findleaks.tracking.tracker import Tracker

HERE = Path(__file__).resolve().parent
JEMALLOC = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"
ROUNDS, SECONDS, START_SECONDS = 5, 1.0, 4.0
SAMPLINGS = {
    "--size 100-128": Sampling(75, 128),
    "--sample 512k": Sampling(mean=512 << 10, by_bytes=True),
    "--size 5000-5100 (none)": Sampling(3750, 5100),
}
PIPELINED = (1, 16)


def main() -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore this signal, and so would the tools
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"{'':60} {'WITHOUT':>9} {'WITH':>9} {'SLOWDOWN':>9}")
        for pipelined in PIPELINED:
            redis(folder, pipelined)
        loops(folder)
    return 0


# -- redis


def redis(folder: Path, pipelined: int) -> None:
    """Measure before, while and after one of two servers is tracked, ROUNDS times, because the stubs have other addresses each time."""
    pair = RedisPair(folder, pipelined)
    try:
        pair.measure(SECONDS)
        for words, sampling in SAMPLINGS.items():
            ratios, plain = [], [pair.measure(SECONDS)]
            for _ in range(ROUNDS):
                with tracker(pair.servers[1].pid, sampling):
                    pair.measure(3 * SECONDS)  # the first blocks of each stack wait until the rules for the stack exist
                    during = pair.measure(SECONDS)
                plain.append(pair.measure(SECONDS))
                ratios.append(during.ratio / statistics.mean(one.ratio for one in plain[-2:]))
            alone = statistics.median(one.nanoseconds for one in plain)
            line(f"redis, {pipelined} commands at a time, track {words}", alone, alone * statistics.median(ratios))
    finally:
        pair.close()


# -- malloc and free in a loop


def loops(folder: Path) -> None:
    program = folder / "allocs"
    subprocess.run(["gcc", "-O1", "-o", str(program), str(HERE / "allocs.c")], check=True)
    for depth in ("4", "20"):
        plain = pairs(folder, [str(program), depth], "", {})
        what = f"malloc and free, stacks of {int(depth) + 5}"
        for words in ([], ["--size", "48"], ["--sample", "512k"], ["--size", "5000"]):
            line(f"{what}, track {' '.join(words)}", plain, pairs(folder, [str(program), depth], "track", {}, words))
        line(f"{what}, heaptrack", plain, pairs(folder, [str(program), depth], "heaptrack", {}))
        base = pairs(folder, [str(program), depth], "", {"LD_PRELOAD": JEMALLOC})
        for sample in ("19", "12", "0"):
            options = {"LD_PRELOAD": JEMALLOC, "MALLOC_CONF": f"prof:true,lg_prof_sample:{sample}"}
            line(f"{what}, jemalloc prof, lg_prof_sample:{sample}", base, pairs(folder, [str(program), depth], "", options))


def pairs(folder: Path, command: Sequence[str], tool: str, variables: dict[str, str], words: Sequence[str] = ()) -> float:
    """Return the nanoseconds of processor time for a pair while this tool is attached."""
    out = folder / "out"
    with open(out, "wb") as output, ended(subprocess.Popen(command, stdout=output, env={**os.environ, **variables})) as running:
        until(lambda: len(out.read_text().splitlines()) > 3)
        if tool == "track":
            with tracking(running.pid, words):
                return median_of_lines(out)
        if tool == "heaptrack":
            attached = ["heaptrack", "-o", str(folder / "heap"), "-p", str(running.pid)]
            with subprocess.Popen(attached, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as heaptrack:
                time.sleep(2 * START_SECONDS)
                found = median_of_lines(out)
                os.killpg(heaptrack.pid, signal.SIGINT)
                return found
        return median_of_lines(out)


def median_of_lines(out: Path) -> float:
    lines = len(out.read_text().splitlines())
    limit = time.monotonic() + 30 * SECONDS
    while time.monotonic() < limit and len(out.read_text().splitlines()) < lines + 8:
        time.sleep(0.1)
    found = [float(row) for row in out.read_text().splitlines()[lines + 1 : -1]]
    return statistics.median(found) if found else float("nan")


# -- used by both measurements


@contextmanager
def tracker(pid: int, sampling: Sampling) -> Iterator[None]:
    """Insert and remove stubs without the command, within a second."""
    made = Tracker(TracedProcess(pid), sampling)
    try:
        made.start(False)
        made.host.release()  # type: ignore[attr-defined]
        yield
    finally:
        made.close()


@contextmanager
def tracking(pid: int, words: Sequence[str]) -> Iterator[None]:
    command = [sys.executable, "-m", "findleaks", "track", *words, "--json", "--limit", "3", "--pid", str(pid)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        time.sleep(START_SECONDS)
        yield
        running.send_signal(signal.SIGINT)


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until(condition) -> None:  # type: ignore[no-untyped-def]
    while not condition():
        time.sleep(0.05)


def line(what: str, plain: float, tracked: float) -> None:
    print(f"{what:60} {plain:7.1f} ns {tracked:6.1f} ns {tracked / plain - 1:+9.1%}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
