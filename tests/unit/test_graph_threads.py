"""The C engine with several threads: the result is the same for any number of threads, and ThreadSanitizer reports no race."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from array import array
from pathlib import Path

import chunks
import debian
import graphs
import pytest
from counting import wait_for
from variants import mark_matrix_except

from findleaks.engine import load
from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.sources import checksum
from findleaks.engine.terms import Heuristic, Kind, State
from findleaks.target.arch import X86_64
from findleaks.target.base import Piece

ROOT = Path(__file__).parents[2]
ALL = Heuristic.LENGTH64 | Heuristic.NEWARRAY | Heuristic.MULTIPLE_INHERITANCE | Heuristic.STDSTRING | Heuristic.OBJECTS


def engine(threads: int) -> NativeEngine:
    return NativeEngine(graphs.loaded(graphs.SANITIZED), X86_64, threads)


@pytest.fixture(scope="module")
def heap() -> chunks.ChunkHeap:
    """Return a heap that is large enough for several threads (LEAST_SHARED in native/visit.c)."""
    return chunks.chunk_heap(1, 11 << 20)


@pytest.mark.parametrize("heuristics", mark_matrix_except([Heuristic.NONE, Heuristic.AUTO, ALL], ALL))
def test_same_results(heuristics: Heuristic, heap: chunks.ChunkHeap) -> None:
    alone = chunks.everything(engine(1), heap, heuristics)
    assert len(alone["blocks"]) > 1 << 16
    assert sum(map(bool, alone["references"])) > 20_000
    for threads in (2, 7) if heuristics == Heuristic.NONE else (7,):
        together = chunks.everything(engine(threads), heap, heuristics)
        assert [name for name in alone if together[name] != alone[name]] == []


@pytest.mark.parametrize("seed", mark_matrix_except(range(4), 3))
def test_same_results_for_damaged_heaps(seed: int) -> None:
    heap = chunks.chunk_heap(100 + seed, 8 << 20, damage=2 * seed + 1)
    alone = chunks.everything(engine(1), heap)
    assert any(walk.problem for walk in alone["walks"])
    together = chunks.everything(engine(3), heap)
    assert [name for name in alone if together[name] != alone[name]] == []


def test_same_results_as_the_pure_engine() -> None:
    heap = chunks.chunk_heap(7, 3 << 20)
    pure, native = chunks.everything(graphs.pure(), heap), chunks.everything(engine(2), heap)
    assert [name for name in pure if native[name] != pure[name]] == []


def test_large_block_uses_up_the_budget() -> None:
    """A block with more references than a step may visit ends the step. Threads that wait for work are woken up."""
    base, number = 0x100000, 70_000  # more than LEAST_SHARED in native/visit.c
    starts = [base, *range(base + 8 * number, base + 40 * number, 32)]
    table = array("Q", starts[1:]).tobytes() + bytes(32 * number)

    def mark() -> None:
        blocks = native.blocks(X86_64, 16)
        blocks.append(starts, [8 * number, *[32] * number], [State.IN_USE] * (number + 1))
        blocks.seal()
        graph = native.graph(blocks)
        graph.scan_blocks(Piece(base, memoryview(table)))
        graph.root_words([base])
        while not graph.mark_starts(1000):
            pass
        reached.append(graph.mark(1 << 30) and graph.totals(Kind.REACHABLE).blocks)

    native, reached = engine(3), list[int]()
    for _ in range(20):
        step = threading.Thread(target=mark, daemon=True)
        step.start()
        step.join(120)
        assert not step.is_alive()
    assert reached == [number + 1] * 20


def test_threads_block_signals_and_end() -> None:
    """Python's main thread handles the signals that arrive while the C engine runs. Afterwards, all other threads have ended."""
    seen: list[int] = []
    tasks = Path("/proc/self/task")
    before = set(tasks.iterdir())
    old = signal.signal(signal.SIGALRM, lambda *_: seen.append(threading.get_ident()))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        heap = chunks.chunk_heap(5, 4 << 20)
        for _ in range(3):
            chunks.everything(engine(4), heap)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert set(seen) == {threading.get_ident()}
    # Linux removes a thread from /proc a moment after pthread_join returns. Threads of earlier tests may end during this test.
    assert wait_for(lambda: set(tasks.iterdir()) <= before)


@pytest.mark.parametrize(("asked", "given"), [("3", 3), ("1", 1), ("1000", 64), ("0", 0), ("many", 0), ("", 0)])
def test_number_of_threads(asked: str, given: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(load.THREADS, asked)
    assert load.threads() == (given or min(len(os.sched_getaffinity(0)), 8))


SCRIPT = """
import sys
import chunks, graphs, test_graph_threads
for seed in map(int, sys.argv[1:]):
    heap = chunks.chunk_heap(seed, 3 << 20, seed)
    chunks.everything(test_graph_threads.engine(4), heap, test_graph_threads.Heuristic.AUTO, 1 << 12)
print("done")
"""


def test_thread_sanitizer_reports_no_race(tmp_path: Path) -> None:
    sound = build_engine(tmp_path / "sound.so", ROOT / "common/native")
    done = under_sanitizer(sound, "0", "1")
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout == "done\n"


@pytest.mark.matrix
def test_thread_sanitizer_reports_a_race(tmp_path: Path) -> None:
    """Proof that the test above can fail: a C engine whose marking has no atomic operations."""
    broken = debian.cache() / "racing"  # not in a folder of this run: compiled files of such sources are not kept
    with debian.hold_lock(broken):
        for source in (ROOT / "common/native").glob("*.[ch]"):
            text = source.read_text()
            (broken / source.name).write_text(text.replace("_Atomic ", "").replace("stdatomic.h", "stdbool.h").replace(*RACE))
        for gone in {path.name for path in broken.glob("*.[ch]")} - {path.name for path in (ROOT / "common/native").iterdir()}:
            (broken / gone).unlink()
        library = build_engine(tmp_path / "broken.so", broken)
    done = under_sanitizer(library, "0")
    assert "data race" in done.stderr


RACE = ("atomic_fetch_add(&g->seed, SOME)", "((g->seed += SOME) - SOME)")


def build_engine(library: Path, folder: Path) -> Path:
    sources = sorted(str(path) for path in folder.glob("*.c"))
    flags = ["-std=c11", "-O0", "-g1", "-pthread", "-fsanitize=thread", f"-DFL_SOURCES={checksum()}", "-fPIC", "-shared"]
    subprocess.run(["gcc", *flags, "-o", str(library), *sources], check=True)
    return library


def under_sanitizer(library: Path, *seeds: str) -> subprocess.CompletedProcess[str]:
    runtime = subprocess.run(["gcc", "-print-file-name=libtsan.so"], check=True, capture_output=True, text=True).stdout.strip()
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime,
        "TSAN_OPTIONS": "exitcode=66:halt_on_error=1:report_signal_unsafe=0",
        "FINDLEAKS_TEST_KERNEL": str(library),
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests/support", ROOT / "tests/unit"))),
    }
    # ASLR is off, because ThreadSanitizer has no shadow for some addresses.
    command = ["setarch", "-R", sys.executable, "-c", SCRIPT, *seeds]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
