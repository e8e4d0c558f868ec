"""Live processes: copied, or stopped while they are read. They continue in any case."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agree import SOURCE, check_truth, content, parse_addresses
from counting import COUNTER, Counter, compile_sources, counters, is_suspended, suspend, wait_for
from stopwatch import Stopwatch

from cores import PATIENCE, Running
from findleaks.errors import TargetError, UnreadableMemory
from findleaks.target.copied import attach
from findleaks.target.live import SKIP, LiveTarget
from findleaks.target.process import LocalProcess
from findleaks.target.ptrace import has_ended, state
from findleaks.target.residency.pagemap import PageMap


def stop_process(pid: int) -> LiveTarget:
    """Return the process, which is stopped until the object is closed."""
    return LiveTarget(pid, stopped=False)


both = pytest.mark.parametrize("reach", [attach, stop_process])
Reach = Callable[[int], LocalProcess]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_sources(tmp_path_factory.mktemp("programs"), program=SOURCE, counter=COUNTER)


@pytest.fixture
def counter(programs: Path) -> Iterator[Callable[..., Counter]]:
    with counters(programs / "counter") as make:
        yield make


@both
def test_live_process_has_the_blocks_of_the_program(reach: Reach, programs: Path, tmp_path: Path) -> None:
    with Running([str(programs / "program"), "4"], tmp_path) as run:
        at = parse_addresses(run.output)
        with reach(run.pid) as live:
            assert (live.live, live.path, live.warnings, live.pid) == (True, "", [], run.pid)
            assert live.description.startswith(f"process {run.pid} (")
            check_truth(live, at, 4)
            assert live.unread == []
            names = {r.name for r in live.regions()}
            assert {"[stack]", "[vdso]"} <= names
            for region in live.regions():  # also [vvar] and [vsyscall], which cannot be read
                sum(len(p.data) for p in live.pieces(region.start, region.end))
            for wrong in (0, at["reserved"] - (1 << 40), 1 << 63, (1 << 64) - 8):
                with pytest.raises(UnreadableMemory):
                    live.read(wrong, 8)
            with pytest.raises(UnreadableMemory):
                live.read(at["big"], 1 << 60)


def test_process_is_stopped_while_it_is_read(counter: Callable[..., Counter]) -> None:
    one = counter()
    with stop_process(one.pid):
        assert one.stands()
        assert state(one.pid, one.pid) == "t"
    assert one.runs()
    target = stop_process(one.pid)
    target.close()
    target.close()
    assert one.runs()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_process_continues_after_an_error(counter: Callable[..., Counter], error: type[BaseException]) -> None:
    one = counter()
    with pytest.raises(error), stop_process(one.pid):
        raise error
    assert one.runs()


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Disable the garbage collector: Python drops a KeyboardInterrupt that is raised in a callback of the collector, and hypothesis has
    such a callback."""
    gc.disable()
    yield
    gc.enable()


@both
@pytest.mark.usefixtures("no_collection")
def test_process_continues_after_ctrl_c(reach: Reach, counter: Callable[..., Counter]) -> None:
    """The process continues after Ctrl-C at any time while findleaks stops its 200 threads."""
    one = counter("crowd")
    assert wait_for(lambda: len(os.listdir(f"/proc/{one.pid}/task")) == 202)
    interrupted = 0
    for delay in range(24):
        timer = threading.Timer(0.001 + 0.0015 * delay, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            with reach(one.pid):
                time.sleep(PATIENCE)
        except KeyboardInterrupt:
            interrupted += 1
        timer.join()
        assert one.runs()
        assert not [t for t in os.listdir(f"/proc/{one.pid}/task") if state(one.pid, int(t)) == "t"]
    assert interrupted == 24


def test_process_continues_if_findleaks_is_killed(counter: Callable[..., Counter]) -> None:
    one = counter()
    script = f"import time\nfrom findleaks.target.live import LiveTarget\none = LiveTarget({one.pid}, stopped=False)\n"
    script += "print('held', flush=True)\ntime.sleep(3600)"
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    assert one.stands()
    child.kill()
    child.wait()
    assert one.runs()


def test_signals_are_delivered_after_reading(counter: Callable[..., Counter]) -> None:
    one = counter()
    with stop_process(one.pid):
        os.kill(one.pid, signal.SIGUSR1)
        assert one.stands()
        assert one.read("signals") == 0
    assert wait_for(lambda: one.read("signals") == 1)
    assert one.runs()


@both
def test_signals_just_before_are_not_lost(reach: Reach, counter: Callable[..., Counter]) -> None:
    one = counter("crowd")
    for n in range(1, 30):
        os.kill(one.pid, signal.SIGUSR1)
        with reach(one.pid):
            pass
        assert wait_for(lambda n=n: one.read("signals") == n)  # type: ignore[misc]


@both
def test_a_stopped_process_stays_stopped(reach: Reach, counter: Callable[..., Counter]) -> None:
    one = counter()
    suspend(one.pid)
    with reach(one.pid) as live:
        assert len(live.threads()) == 2
        assert live.word(one.at["ticks"]) == one.read("ticks")
    assert wait_for(lambda: is_suspended(one.pid))
    assert one.stands()
    os.kill(one.pid, signal.SIGCONT)
    assert one.runs()


def test_two_hundred_threads(counter: Callable[..., Counter]) -> None:
    one = counter("crowd")
    assert wait_for(lambda: len(os.listdir(f"/proc/{one.pid}/task")) == 202)
    start = Stopwatch(one.pid)
    with stop_process(one.pid) as live:
        assert len(live.threads()) == 202
        assert len({t.thread_pointer for t in live.threads()}) == 202
        assert all(live.word(t.thread_pointer) == t.thread_pointer for t in live.threads())
        assert {state(one.pid, t.tid) for t in live.threads()} == {"t"}
    assert start.seconds() < 5
    assert one.runs()


def test_threads_that_start_and_end_during_attach(counter: Callable[..., Counter]) -> None:
    one = counter("births")
    for _ in range(40):
        with stop_process(one.pid) as live:
            there = sorted(int(t) for t in os.listdir(f"/proc/{one.pid}/task"))
            known = {t.tid for t in live.threads()}
            assert known == {t for t in there if state(one.pid, t) not in "ZX"}
            assert {state(one.pid, t) for t in known} == {"t"}
    assert one.runs()


@both
def test_a_main_thread_that_has_ended(reach: Reach, counter: Callable[..., Counter]) -> None:
    one = counter("orphan")
    assert wait_for(lambda: state(one.pid, one.pid) == "Z")
    with reach(one.pid) as live:
        assert [t.tid for t in live.threads()] == [t for t in map(int, os.listdir(f"/proc/{one.pid}/task")) if t != one.pid]
        assert live.word(one.at["ticks"]) > 0
        assert reach is attach or one.stands()
    assert one.runs()


@both
def test_a_thread_that_cannot_be_stopped(reach: Reach, counter: Callable[..., Counter]) -> None:
    """The parent of vfork sleeps uninterruptibly until the child ends. The other threads are stopped and read."""
    one = counter("vfork")
    assert wait_for(lambda: one.children() != [] and state(one.pid, one.pid) == "D")
    with reach(one.pid) as live:
        assert len(live.threads()) == 2
        assert live.threads()[0].sp
        assert any("sleep uninterruptibly" in warning for warning in live.warnings)
        assert reach is attach or one.stands()
    assert one.runs()
    (child,) = one.children()
    os.kill(child, signal.SIGKILL)
    assert wait_for(lambda: state(one.pid, one.pid) == "S"), "it is not held any more once it wakes up, while we live on"


@both
def test_untouched_terabytes_are_not_read(reach: Reach, counter: Callable[..., Counter]) -> None:
    one = counter("shadow")
    with reach(one.pid) as live:
        at = one.at["shadow"]
        before = page_tables(one.pid)
        start = time.process_time()
        read = 0
        marks = {}
        for piece in live.pieces(at, at + (4 << 40)):
            read += len(piece.data)
            for letter in (b"x", b"y"):
                where = bytes(piece.data).find(letter)
                if where >= 0:
                    marks[letter] = piece.address + where
        assert marks == {b"x": at + (2 << 40), b"y": at + (2 << 40) + (40 << 20)}
        assert read < 2 * SKIP
        assert time.process_time() - start < 20
        assert page_tables(one.pid) - before < 64, "reading has not grown the process"
    assert one.runs()


def page_tables(pid: int) -> int:
    """Return the size of the page tables in KiB."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmPTE"))


def test_pagemap_and_pagemap_scan_agree(programs: Path, tmp_path: Path) -> None:
    with Running([str(programs / "program"), "4"], tmp_path) as run, stop_process(run.pid) as live:
        scan, read = PageMap(f"/proc/{run.pid}", 4096), PageMap(f"/proc/{run.pid}", 4096)
        read._scan = False
        some = 0
        for region in live.regions():
            if region.private and not region.name:
                runs = read.list_touched(region.start, region.end)
                assert scan.list_touched(region.start, region.end) == runs
                some += len(runs)
                assert scan.next_touched(region.start, region.end) == read.next_touched(region.start, region.end)
                touched = {page for low, high in runs for page in range(low, high, 4096)}
                for page in range(region.start, min(region.end, region.start + (1 << 18)), 4096):
                    if page not in touched and region.readable:
                        assert live.read(page, 4096) == bytes(4096)
        assert some > 5
        scan.close()
        read.close()


@both
def test_symbols_of_a_program_that_was_deleted_or_replaced(reach: Reach, programs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "program"
    copy.write_bytes((programs / "program").read_bytes())
    copy.chmod(0o755)
    with Running([str(copy), "1"], tmp_path / "run") as run:
        at = parse_addresses(run.output)
        copy.unlink()
        copy.write_bytes((programs / "counter").read_bytes())
        with reach(run.pid) as live:
            found = live.symbol("in_data")
            assert live.symbol("ticks") is None
            if os.geteuid() == 0:  # only root may open the mapped file itself through /proc/PID/map_files
                assert found is not None
                assert found.address == at["in_data"]


def test_traced_target(counter: Callable[..., Counter]) -> None:
    """Another process traces the target, as in a debugger. findleaks does nothing to the target."""
    one = counter()
    suspend(one.pid)
    with LiveTarget(one.pid, stopped=True) as live:
        assert live.word(one.at["ticks"]) == one.read("ticks")
        assert state(one.pid, one.pid) == "T"
        assert len(content(live, one.at["ticks"], one.at["ticks"] + 8)) == 8
    assert state(one.pid, one.pid) == "T"


def test_a_process_killed_while_it_is_read(counter: Callable[..., Counter]) -> None:
    one = counter()
    with stop_process(one.pid) as live:
        os.kill(one.pid, signal.SIGKILL)
        assert wait_for(lambda: has_ended(one.pid))
        with pytest.raises(TargetError, match=r"has ended|cannot read"):
            live.read(one.at["ticks"], 8)
        for region in live.regions():
            if region.writable:
                with pytest.raises(TargetError, match=r"has ended"):
                    list(live.pieces(region.start, region.end))


@both
def test_reading_is_quick(reach: Reach, programs: Path, tmp_path: Path) -> None:
    """Attaching, reading 64 MiB and detaching take less CPU time than reading the same bytes one by one."""
    script = "import time\nb = bytearray(b'x') * (64 << 20)\nprint('ready', flush=True)\ntime.sleep(3600)"
    start = time.process_time()
    sum(1 for byte in bytes(8 << 20) if byte)
    looked = (time.process_time() - start) * 8
    with Running([sys.executable, "-c", script], tmp_path) as run:
        start = time.process_time()
        with reach(run.pid) as live:
            total = sum(len(p.data) for r in live.regions() if r.writable for p in live.pieces(r.start, r.end))
        assert total > 64 << 20
        assert time.process_time() - start < looked
