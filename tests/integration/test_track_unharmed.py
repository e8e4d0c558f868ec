"""The stubs of `track` are inserted and removed under load, and findleaks is killed. The file also tests which programs and requests
`track` refuses."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from counts import until
from debuggers import PATIENCE, environment, lldb
from patched import get_tracer, guardians, has_ended, stubs
from tracking import JEMALLOC, build, by_line, read_result, recording, start_tracked, through

from findleaks.errors import TargetError
from findleaks.injection.clonable import mapping_flags
from findleaks.injection.remote_syscall import read_mappings
from findleaks.injection.stub import patcher
from findleaks.injection.stub.patcher import find_stubs
from findleaks.injection.stub.table import SHARED, SWITCHES
from findleaks.injection.stub.traced_process import TracedProcess
from findleaks.target.live import LiveTarget
from findleaks.tracking.record_table import TAKEN, RecordTable, Sampling
from findleaks.tracking.tracker import Tracker


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("busy"), "tracked_busy")


class Busy:
    """Threads that allocate, fork and receive signals at all times."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process, self.pid, self.output = process, process.pid, output

    def goes_on(self) -> None:
        """Check that the program continues, and that its threads and children found no error."""
        rounds, children = self.counts()
        until(
            lambda: self.process.poll() is not None or (self.counts()[0] > rounds and self.counts()[1] > children + 1),
            "threads and children to go on",
        )
        assert self.process.poll() is None

    def counts(self) -> tuple[int, int]:
        """Return the number of rounds of the threads, and the number of children that have ended."""
        rounds, children = self.output.read_text().rpartition("\n")[0].splitlines()[-1].split()
        return int(rounds), int(children)


@pytest.fixture(params=["", pytest.param(JEMALLOC, marks=pytest.mark.matrix)], ids=["glibc", "jemalloc"])
def busy(request: pytest.FixtureRequest, program: Path, tmp_path: Path) -> Iterator[Busy]:
    variables = {**os.environ, **({"LD_PRELOAD": request.param} if request.param else {})}
    output = tmp_path / "stdout"
    with open(output, "wb") as file, subprocess.Popen([str(program), "2"], stdout=file, env=variables) as process:
        try:
            until(lambda: len(output.read_text().splitlines()) > 2, "the program")
            yield Busy(process, output)
        finally:
            process.kill()


@pytest.mark.parametrize("times", [10, pytest.param(100, marks=pytest.mark.matrix)])
def test_stubs_are_inserted_and_removed_repeatedly(times: int, busy: Busy) -> None:
    """Under load, threads are in the stubs, throw exceptions and fork children at all times."""
    for number in range(times):
        sampling = Sampling(mean=4096, by_bytes=True) if number % 2 else Sampling()
        tracker = Tracker(TracedProcess(busy.pid), sampling)
        try:
            tracker.start(False)
            while tracker.running.counter(TAKEN) < 100:
                assert tracker.wait(0.02).outcome.why == "time"
            tracker.remove()
        finally:
            tracker.close()
        assert tracker.notes == []
        assert stubs(busy.pid) == []
    busy.goes_on()


@pytest.mark.parametrize("guardian", [False, True], ids=["findleaks", "guardian too"])
def test_findleaks_is_killed(guardian: bool, busy: Busy) -> None:
    """If findleaks is killed, its guardian removes the stubs. If the guardian is killed, too, the next `track` removes them."""
    working = recording(by_line(busy.pid), busy.pid)
    (beside,) = guardians(working.pid)
    if guardian:
        os.kill(beside, signal.SIGKILL)
    working.kill()
    working.communicate()
    until(lambda: not get_tracer(busy.pid), "the kernel to let go")
    until(lambda: has_ended(beside), "the guardian to have done its work")
    if guardian:
        (left,) = stubs(busy.pid)
        busy.goes_on()
        words = by_line(busy.pid, "--json", "--for", "1", "--sample", "64k", "--limit", "1")
        report = read_result(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()))
        assert f"an earlier count --inject or track was killed: its stub at 0x{left.split('-')[0]} was removed" in report["warnings"][-1]
        assert report["recorded"] > 0
        assert report["estimated"]
    assert stubs(busy.pid) == []
    busy.goes_on()


@pytest.mark.parametrize("preload", ["", pytest.param(JEMALLOC, marks=pytest.mark.matrix)], ids=["glibc", "jemalloc"])
def test_a_signals_handler_forks(preload: str, tmp_path: Path) -> None:
    """The handler mostly runs while its thread is in a stub, so the child executes the rest of the stub, too. Each block of the parent is
    recorded once.

    tests/unit/test_stub_forks.py forks at each instruction. It relies on what this test checks: which memory the kernel fills with zeros
    in a child.
    """
    with start_tracked([str(build(tmp_path, "tracked_forks"))], preload) as program:
        working = recording(by_line(program.pid, "--json", "--until-full"), program.pid)
        assert wiped_in_children(program.pid) == [(SWITCHES, SHARED), (RecordTable(0).shared_end, RecordTable(0).size)]
        notes = program.round()
        working.send_signal(signal.SIGINT)
        report = read_result(working)
        assert stubs(program.pid) == []
        assert program.round()
        assert program.end() == 0
    for site in ("by_malloc", "by_realloc"):
        (stack,) = through(report, site)
        counts = Counter(note.fate for note in notes if note.site == site)
        assert {fate: stack[fate]["blocks"] for fate in counts} == counts
        assert stack["allocated"]["blocks"] == sum(counts.values())


def wiped_in_children(pid: int) -> list[tuple[int, int]]:
    """Return the parts of the stub's table, as offsets, that the kernel fills with zeros in forked children."""
    (stub,) = find_stubs(read_mappings(pid), LiveTarget(pid).read)
    flags = dict(mapping_flags(pid))
    inside = [one for one in read_mappings(pid) if stub.table <= one.start < stub.address + stub.size]
    return [(one.start - stub.table, one.end - stub.table) for one in inside if "wf" in flags[one.start]]


def test_a_kernel_that_cannot_zero_memory_in_children(busy: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    """findleaks prints one line with the reason, and leaves no memory in the process."""
    monkeypatch.setattr(patcher, "_WIPE_ON_FORK", 9999)  # before Linux 4.14, MADV_WIPEONFORK fails like any unknown advice
    tracker = Tracker(TracedProcess(busy.pid), Sampling())
    try:
        with pytest.raises(
            TargetError, match=r"^the kernel cannot zero memory in forked children, as Linux 4\.14 and later do: madvise: EINVAL$"
        ):
            tracker.start(False)
    finally:
        tracker.close()
    assert [one for one in read_mappings(busy.pid) if "findleaks" in one.name or (one.executable and not one.name)] == []
    busy.goes_on()


def test_the_process_ends_meanwhile(tmp_path: Path) -> None:
    with start_tracked([str(build(tmp_path))]) as made:
        working = recording(by_line(made.pid), made.pid)
        assert made.end() == 0
        _, errors = working.communicate(timeout=PATIENCE)
        assert (working.returncode, errors.count("\n")) == (2, 1)
        assert "the process has ended" in errors


@pytest.mark.parametrize(("by", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP)])
def test_findleaks_is_ended(by: signal.Signals, status: int, busy: Busy) -> None:
    """After Ctrl-C or a signal from a terminal or an administrator, findleaks removes its stubs before it ends."""
    working = recording(by_line(busy.pid, "--json", "--limit", "1"), busy.pid)
    working.send_signal(by)
    working.communicate(timeout=PATIENCE)
    assert working.returncode == status
    assert stubs(busy.pid) == []
    busy.goes_on()


def test_ctrl_c_is_reported_once(busy: Busy) -> None:
    """Threads that are in the stubs at that time have time to leave them."""
    host = TracedProcess(busy.pid)
    host.begin()
    try:
        os.kill(os.getpid(), signal.SIGINT)
        assert [host.run(0.01).why for _ in range(3)] == ["interrupt", "time", "time"]
    finally:
        host.close()


def run_refused(*words: str) -> str:
    done = subprocess.run([*by_line(0)[:4], *words], capture_output=True, text=True, env=environment(), timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    return done.stderr


def test_refused(tmp_path: Path) -> None:
    """findleaks prints one line with the reason, and changes nothing."""
    with start_tracked([str(build(tmp_path))]) as running:
        pid = str(running.pid)
        assert "--json or --folded" in run_refused("--pid", pid, "--json", "--folded")
        assert "is not a size" in run_refused("--pid", pid, "--size", "many")
        assert "write 1 to 1G" in run_refused("--pid", pid, "--sample", "0")
        assert "already traced by" in _held_refusal(running.pid)
        assert f"`detach`, then run `findleaks track --pid {pid}` in a shell" in lldb(["leaks track --for 1", "detach"], "-p", pid)
        assert stubs(running.pid) == []


def _held_refusal(pid: int) -> str:
    with subprocess.Popen(["gdb", "-nx", "-q", "-p", str(pid)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as debugger:
        until(lambda: bool(get_tracer(pid)), "GDB")
        try:
            return run_refused("--pid", str(pid))
        finally:
            debugger.communicate(b"detach\nquit\n", timeout=PATIENCE)


def test_without_an_allocator(tmp_path: Path) -> None:
    """A static program without malloc is refused."""
    source = tmp_path / "still.c"
    source.write_text('void _start(void) { for (;;) __asm__ volatile("syscall" : : "a"(34) : "rcx", "r11", "memory"); }\n')
    subprocess.run(["gcc", "-nostdlib", "-static", "-o", str(tmp_path / "still"), str(source)], check=True)
    with subprocess.Popen([str(tmp_path / "still")]) as process:
        try:
            assert "no module of the process has malloc and free" in run_refused("--pid", str(process.pid))
            assert process.poll() is None
        finally:
            process.kill()
