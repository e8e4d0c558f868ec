"""Measure time and memory of findleaks on heaps of 1 M and 10 M blocks, and compare with lower bounds on the same machine.

Build a program with such a heap (heap.c), and take its core. Then, `--runs` times each: stream the heap once and wait for one independent
cache miss per block (limits.c); run the phases one by one; and run `find`, `roots`, `verify`, `verdict` and `blocks --json` on the core as
users do. Each command runs twice, and the second run counts. All use one thread; `find` also runs on all processors. Print medians. Fail if
a command takes more than TIMES the CPU time of `find` (or of the command in BASES) in the same run. Memory is anonymous memory: the memory
of a process without the page cache.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SAMPLE = HERE.parents[1] / "cores" / "sample.core.gz"
MIB = 1 << 20
COMMANDS = {
    "find": ["find", "--no-debug-types"],
    "types": ["find", "--debug-types"],
    "roots": ["roots", "--no-debug-types"],
    "verify": ["verify"],
    "verdict": ["verdict"],
    "listing": ["blocks", "--json", "--no-debug-types"],
}
TIMES = {"types": 2.6, "verify": 1.5, "verdict": 1.6, "listing": 8.0}
"""The largest allowed multiple of the time of `find`, for 10 M blocks. `blocks --json` takes about 0.7 µs per block. `types` stands for
`find` with types from debug information, which are already in the cache."""
BASES = {"verdict": "types"}
"""The command with which another one is compared, if not with `find`: `verdict` also reads types from debug information."""

Figures = dict[str, float]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("blocks", nargs="*", type=int, default=[1_000_000, 10_000_000], help="numbers of blocks")
    parser.add_argument("--runs", type=int, default=3, help="runs of each measurement, of which the median is printed")
    parser.add_argument("--json", action="store_true", help="print JSON, an object for each heap")
    parser.add_argument("--measure", choices=("limits", "phases"), help=argparse.SUPPRESS)
    parser.add_argument("--core", help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.measure:
        measured = limits(args.core, args.blocks[0]) if args.measure == "limits" else phases(args.core)
        print(json.dumps(measured))
        return 0
    good = True
    with tempfile.TemporaryDirectory(prefix="findleaks-bench-") as scratch:
        compile_all(scratch)
        for number in args.blocks:
            figures = bench(scratch, number, args.runs)
            print(json.dumps(figures) if args.json else table(figures), flush=True)
            good = good and all(times(figures, name) <= most for name, most in TIMES.items())
    return 0 if good else 1


def compile_all(scratch: str) -> None:
    flags = ["-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, "-g", "-pthread", "-o", f"{scratch}/heap", str(HERE / "heap.c")], check=True)
    subprocess.run(["cc", *flags, "-o", f"{scratch}/shapes", str(HERE / "shapes.c")], check=True)
    subprocess.run(["cc", *flags, "-fPIC", "-shared", "-o", f"{scratch}/limits.so", str(HERE / "limits.c")], check=True)


def bench(scratch: str, number: int, runs: int) -> dict[str, Any]:
    """Measure everything for a heap of `number` blocks."""
    core, truth = make_core(scratch, number)
    try:
        with open(core, "rb") as file:
            while file.read(16 * MIB):
                pass
        here = [sys.executable, str(Path(__file__)), str(truth["blocks"]), "--core", core, "--measure"]
        env = {**os.environ, "FINDLEAKS_LIMITS": f"{scratch}/limits.so", "FINDLEAKS_THREADS": "1"}
        everywhere = {name: value for name, value in os.environ.items() if name != "FINDLEAKS_THREADS"}
        found: dict[str, Any] = {"blocks": truth["blocks"], "lost": truth, "core": os.stat(core).st_size}
        rows = {"limits": [], "phases": [], **{name: [] for name in (*COMMANDS, "together")}, "pure": []}  # type: dict[str, list[Any]]
        for _ in range(runs):
            rows["limits"].append(json.loads(subprocess.run([*here, "limits"], env=env, check=True, capture_output=True).stdout))
            for _ in range(2):  # see `again`
                phased = subprocess.run([*here, "phases"], env=env, check=True, capture_output=True).stdout
            rows["phases"].append(json.loads(phased))
            for name, line in COMMANDS.items():
                rows[name].append(again([sys.executable, "-m", "findleaks", *line, core], env))
            rows["together"].append(again([sys.executable, "-m", "findleaks", *COMMANDS["find"], core], everywhere))
        if number <= 1_000_000:
            rows["pure"].append(command([sys.executable, "-m", "findleaks", *COMMANDS["find"], core], {**env, "FINDLEAKS_PURE": "1"}))
        for name, measured in rows.items():
            found[name] = {key: median([row[key] for row in measured]) for key in measured[0]} if measured else None
        return found
    finally:
        os.unlink(core)


def times(found: dict[str, Any], name: str) -> float:
    """Return by how many times a command took more CPU time than `find`, or than the command in BASES."""
    return float(found[name]["cpu"] / found[BASES.get(name, "find")]["cpu"])


def median(values: Sequence[Any]) -> Any:
    """Return the median of numbers, or for mappings the median of each key."""
    if isinstance(values[0], dict):
        return {key: median([value[key] for value in values]) for key in values[0]}
    return statistics.median(values)


def make_core(scratch: str, number: int, program: Sequence[str] = ("heap",)) -> tuple[str, dict[str, int]]:
    """Return the core of the program with the heap, and what the program printed. `program`: from compile_all, with the arguments before
    the number."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if pattern.startswith(("|", "/")):  # the core would be written to another folder
        return gcore(scratch, number, program)
    command = [f"{scratch}/{program[0]}", *program[1:], str(number)]
    done = subprocess.run(command, cwd=scratch, capture_output=True, preexec_fn=unlimited, check=False)
    cores = list(Path(scratch).glob("core*"))
    if done.returncode != -signal.SIGABRT or len(cores) != 1:
        raise SystemExit(f"bench: no core of {number} blocks was written: status {done.returncode}, core_pattern {pattern!r}")
    return str(cores[0]), json.loads(done.stdout)


def unlimited() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def gcore(scratch: str, number: int, program: Sequence[str]) -> tuple[str, dict[str, int]]:
    if not shutil.which("gcore"):
        raise SystemExit("bench: core_pattern hands cores to a program, and there is no gcore (of GDB) to take them instead")
    with subprocess.Popen([f"{scratch}/{program[0]}", *program[1:], str(number), "wait"], cwd=scratch, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            truth = json.loads(process.stdout.readline())
            subprocess.run(["gcore", "-o", f"{scratch}/core", str(process.pid)], check=True, capture_output=True)
        finally:
            process.kill()
    return f"{scratch}/core.{process.pid}", truth


def anonymous(pid: int) -> int:
    """Return the bytes of anonymous memory that a process has now; 0 if it has ended."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


class Watch:
    """Records the largest anonymous memory of a process, by sampling it every two milliseconds."""

    def __init__(self, pid: int) -> None:
        self.peak = anonymous(pid)
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(0.002):
            self.peak = max(self.peak, anonymous(self._pid))

    def stop(self) -> int:
        self._stop.set()
        self._thread.join()
        return max(self.peak, anonymous(self._pid))


def command(words: Sequence[str], env: dict[str, str]) -> Figures:
    """Run a command as users do, and measure it from its start to its last line."""
    # With this variable, each run would compile all modules of findleaks again.
    env = {name: value for name, value in env.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        watch = Watch(process.pid)
        assert process.stdout is not None
        output = b""
        while more := process.stdout.read(1 << 20):
            output = (output + more)[-4096:]
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        wall = time.perf_counter() - began
        peak = watch.stop()
    if status:
        raise SystemExit(f"bench: {' '.join(words)} failed:\n{output.decode()}")
    return {"wall": wall, "user": usage.ru_utime, "cpu": usage.ru_utime + usage.ru_stime, "memory": peak}


def again(words: Sequence[str], env: dict[str, str]) -> Figures:
    """Run a command twice in succession, and return the result of the second run. In a virtual machine, the first run waits for memory that
    the host has taken back."""
    command(words, env)
    return command(words, env)


def limits(core: str, blocks: int) -> dict[str, Figures]:
    """Measure three ways of reading the core: as a stream, for the first time in this process; as a stream again; and with one cache miss
    per block, where several misses overlap."""
    library = ctypes.CDLL(os.environ["FINDLEAKS_LIMITS"])
    library.stream.restype = library.misses.restype = ctypes.c_uint64
    with open(core, "rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
        held = ctypes.c_char.from_buffer(mapped)
        words = ctypes.c_void_p(ctypes.addressof(held))
        count = len(mapped) // 8
        figures: dict[str, Figures] = {}
        for name, function, arguments in (
            ("stream", library.stream, (count,)),
            ("again", library.stream, (count,)),
            ("misses", library.misses, (count, blocks)),
        ):
            with timed(figures, name):
                function(words, *map(ctypes.c_size_t, arguments))
        del held
    return figures


@contextmanager
def timed(figures: dict[str, Figures], name: str) -> Iterator[None]:
    began, cpu = time.perf_counter(), time.process_time()
    yield
    figures[name] = {"wall": time.perf_counter() - began, "cpu": time.process_time() - cpu}


def phases(core: str) -> dict[str, Any]:
    """Run each phase in turn, with the same calls as a session."""
    from findleaks.graph.roots import register_words
    from findleaks.session import SLICE, Session
    from findleaks.target.core import open_core

    with open_core(str(SAMPLE)) as small:  # load Python's modules before the phases are measured
        Session(small).graph()
    watch = Watch(os.getpid())
    before = watch.peak
    memory: Figures = {}
    figures: dict[str, Any] = {}
    slowest = 0.0

    def phase(name: str, work: Callable[[], object]) -> None:
        with timed(figures, name):
            work()
        memory[name] = anonymous(os.getpid()) - before

    def sliced(step: Callable[[int], bool]) -> None:
        nonlocal slowest
        done = False
        while not done:
            began = time.perf_counter()
            done = step(SLICE)
            slowest = max(slowest, time.perf_counter() - began)

    made: list[Session] = []
    phase("open", lambda: made.append(Session(open_core(core))))
    session = made[0]
    phase("walk", lambda: session.directory)
    blocks = session.directory.blocks
    graph = session.engine.graph(blocks)
    heap = session.heap_ranges()

    def scan() -> None:
        for piece in session.pieces(heap, ""):
            graph.scan_blocks(piece)

    def roots() -> None:
        for piece in session.pieces(session.roots, ""):
            graph.scan_roots(piece)
        graph.root_words(register_words(session.target))

    phase("scan", scan)
    phase("roots", roots)
    phase("mark", lambda: sliced(graph.mark))
    phase("classify", lambda: sliced(graph.classify))
    phase("group", lambda: graph.groups(session.pieces(heap, ""), ()))
    return {**figures, "memory": memory, "peak": watch.stop() - before, "slice": slowest, "all": len(blocks)}


KERNEL = ("walk", "scan", "mark", "classify")


def table(found: dict[str, Any]) -> str:
    """Return the text of the report."""
    blocks, measured, limit = found["blocks"], found["phases"], found["limits"]
    lines = [
        f"{blocks:,} blocks in use, core of {found['core'] / MIB:,.0f} MiB",
        "",
        "  PHASE            WALL s   CPU s  ns/BLOCK  MEMORY MiB",
    ]

    def row(name: str, wall: float, cpu: float, memory: float | None = None) -> None:
        held = "" if memory is None else f"{memory / MIB:12,.0f}"
        lines.append(f"  {name:<16} {wall:6.3f}  {cpu:6.3f}  {cpu / blocks * 1e9:8.1f}{held}")

    for name in ("open", "walk", "scan", "roots", "mark", "classify", "group"):
        row(name, measured[name]["wall"], measured[name]["cpu"], measured["memory"][name])
    wall, cpu = (sum(measured[name][key] for name in KERNEL) for key in ("wall", "cpu"))
    row("C engine phases", wall, cpu, measured["peak"])
    row("stream once", limit["stream"]["wall"], limit["stream"]["cpu"])
    row("stream again", limit["again"]["wall"], limit["again"]["cpu"])
    row("a miss a block", limit["misses"]["wall"], limit["misses"]["cpu"])
    row("findleaks find", found["find"]["wall"], found["find"]["cpu"], found["find"]["memory"])
    row("… on all CPUs", found["together"]["wall"], found["together"]["cpu"], found["together"]["memory"])
    for name, line in list(COMMANDS.items())[1:]:
        row(f"… {' '.join(line)}", found[name]["wall"], found[name]["cpu"], found[name]["memory"])
    if found["pure"]:
        row("find, Python", found["pure"]["wall"], found["pure"]["cpu"], found["pure"]["memory"])
    both = limit["stream"]["cpu"] + limit["misses"]["cpu"]
    ratio, least = cpu / both, cpu / limit["stream"]["cpu"]
    lines.append("")
    lines.append(f"  C engine phases (walk … classify): {ratio:.2f} times streaming once and a miss a block, {least:.1f} times streaming")
    held, whole = measured["peak"] / measured["all"], found["find"]["memory"] / measured["all"]
    reported = [f"{name} {times(found, name):.2f}" + (f" (at most {TIMES[name]})" if name in TIMES else "") for name in list(COMMANDS)[1:]]
    lines.append(f"  times findleaks find, CPU (verdict: times types): {', '.join(reported)}")
    wall, cpu = (found["together"][key] / found["find"][key] for key in ("wall", "cpu"))
    processors = len(os.sched_getaffinity(0))
    lines.append(f"  find on all {processors} CPUs: {wall:.2f} times the wall time of one thread, {cpu:.2f} times its CPU")
    lines.append(f"  memory beyond the page cache, bytes a block of any state: {held:.1f} in the phases, {whole:.1f} in the whole command")
    lines.append(f"  longest slice between two looks at Ctrl-C in mark and classify: {measured['slice'] * 1e3:.0f} ms\n")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
