"""The copy of a live process contains the memory that the process had when it was stopped. The process continues at once."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import truth
from counting import COUNTER, Counter, compile_sources, counters, suspend, wait_for
from descriptors import open_descriptors

from cores import Running
from findleaks.errors import TargetError, UnreadableMemory
from findleaks.target import copied, copying
from findleaks.target.base import Target
from findleaks.target.copied import CopiedProcess, attach
from findleaks.target.copying import Transfer
from findleaks.target.live import LiveTarget
from findleaks.target.ptrace import has_ended, state
from findleaks.target.residency import presence

PAGE = 4096
MAPPINGS = truth.PROGRAMS / "mappings.c"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_sources(tmp_path_factory.mktemp("programs"), counter=COUNTER, mappings=MAPPINGS.read_text())


@pytest.fixture
def counter(programs: Path) -> Iterator[Callable[..., Counter]]:
    with counters(programs / "counter") as make:
        yield make


@pytest.fixture
def running(programs: Path, tmp_path: Path) -> Iterator[Running]:
    with Running([str(programs / "mappings")], tmp_path / "run") as run:
        yield run


def parse_mappings(output: str) -> dict[str, tuple[int, int]]:
    """Return address and size of each mapping, by name."""
    rows = [line.split() for line in output.splitlines() if " 0x" in line]
    return {name: (int(address, 16), int(size)) for name, address, size in rows}


def pages(target: Target, start: int, size: int) -> dict[int, bytes]:
    """Return the output of `pieces` for a range, without pages of zeros."""
    found = {}
    for piece in target.pieces(start, start + size):
        for at in range(0, len(piece.data), PAGE):
            data = bytes(piece.data[at : at + PAGE])
            if data.strip(b"\0"):
                found[piece.address + at] = data
    return found


def as_stopped(copy: Target, run: Running, but: tuple[str, ...] = ()) -> None:
    """Check that every mapping has the same bytes in the copy as in the process, which sleeps."""
    at = parse_mappings(run.output)
    suspend(run.pid)
    try:
        with LiveTarget(run.pid, stopped=True) as live:
            assert [region for region in copy.regions() if region.name != "[stack]"] == [r for r in live.regions() if r.name != "[stack]"]
            for name, (start, size) in at.items():
                if name not in but:
                    assert pages(copy, start, size) == pages(live, start, size), name
            for module, same in zip(copy.modules(), live.modules()):
                assert module == same
            for start in (at["dense"][0] + 5 * PAGE - 8, at["locked"][0] + 512, at["changed"][0] + PAGE - 4, at["deleted"][0] + PAGE):
                assert copy.read(start, 16) == live.read(start, 16)
                assert copy.word(start) == live.word(start)
            assert len(pages(copy, *at["dense"])) == 512
            assert len(pages(copy, *at["sparse"])) == 171
            assert len(pages(copy, *at["reserved"])) == 64
            start, size = at["beyond"]
            with pytest.raises(UnreadableMemory):
                copy.read(start + size - PAGE, 8)
            assert copy.unread == live.unread == [], "beyond the end of the file nothing is held"
    finally:
        os.kill(run.pid, signal.SIGCONT)


def test_every_kind_of_memory(running: Running) -> None:
    with attach(running.pid) as copy:
        assert isinstance(copy, CopiedProcess)
        as_stopped(copy, running)
        assert copy.warnings == []


def test_system_calls_that_fail(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy works without process_vm_readv (forbidden in some containers), PAGEMAP_SCAN or MADV_POPULATE_WRITE (not in older kernels)."""

    def refused(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    made = Transfer.__init__

    def plain(self: Transfer, *given: Any) -> None:
        made(self, *given)
        self._refused = True

    monkeypatch.setattr(Transfer, "__init__", plain)
    with attach(running.pid) as copy:
        as_stopped(copy, running)
    monkeypatch.undo()
    monkeypatch.setattr(presence, "scan_pagemap", refused)
    with attach(running.pid) as copy:
        as_stopped(copy, running)
    monkeypatch.undo()
    monkeypatch.setattr(copying, "_POPULATE_WRITE", 9999)
    with attach(running.pid) as copy:
        as_stopped(copy, running)


def test_deleted_files(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the user may not open /proc/PID/map_files, findleaks reads a deleted file from the memory of the process while the process
    exists."""
    opened = copied.MappedFiles._open_region
    monkeypatch.setattr(
        copied.MappedFiles, "_open_region", lambda self, region, fields: (-1, 0) if b"gone" in fields[5] else opened(self, region, fields)
    )
    with attach(running.pid) as copy:
        as_stopped(copy, running)
        start, size = parse_mappings(running.output)["offset"]
        os.kill(running.pid, signal.SIGKILL)
        assert wait_for(lambda: has_ended(running.pid))
        copy._files.chunks.clear()  # type: ignore[union-attr]
        with pytest.raises(UnreadableMemory):
            copy.read(start, size)


def test_mappings_without_reserved_memory(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    made = copied.windows

    def some(*given: Any) -> Any:
        found, count = made(*given)
        return found[::2], count

    monkeypatch.setattr(copied, "windows", some)
    with attach(running.pid) as copy:
        as_stopped(copy, running)
    monkeypatch.setattr(copied, "windows", lambda *given: ([], 0))
    with attach(running.pid) as copy:
        as_stopped(copy, running)


def test_process_continues_and_the_copy_stays(counter: Callable[..., Counter]) -> None:
    one = counter()
    with attach(one.pid) as copy:
        before = copy.word(one.at["ticks"])
        assert one.runs()
        assert copy.word(one.at["ticks"]) == before
        assert copy.run_on(0.01)
        later = copy.word(one.at["ticks"])
        assert later > before
        os.kill(one.pid, signal.SIGKILL)
        assert wait_for(lambda: has_ended(one.pid))
        assert copy.word(one.at["ticks"]) == later
        found = copy.symbol("ticks")
        assert found is not None and found.address == one.at["ticks"]
        assert len(copy.threads()) == 2
        assert not copy.run_on(0.01)
        assert copy.word(one.at["ticks"]) == later


_COPIES = """
import os, sys
from pathlib import Path
from findleaks.target.copied import attach

def held():
    words = Path("/proc/self/status").read_text().split()
    return len(os.listdir("/proc/self/fd")), int(words[words.index("VmRSS:") + 1])

attach(int(sys.argv[1])).close()
files, resident = held()
for _ in range(5):
    with attach(int(sys.argv[1])) as copy:
        assert held()[1] > resident + 8 * 1024, (held(), resident)
        copy.word(int(sys.argv[2]))
assert held()[0] == files
assert held()[1] < resident + 2 * 1024, (held(), resident)
"""


def test_copy_leaves_nothing_behind(running: Running) -> None:
    """Measure this in a separate process, whose memory does not depend on garbage of earlier tests."""
    (running.folder / "grow").touch()
    assert wait_for(lambda: "grown" in (running.folder / "stdout").read_text())
    constant = parse_mappings(running.output)["constant"][0]
    finished = subprocess.run([sys.executable, "-c", _COPIES, str(running.pid), str(constant)], capture_output=True, text=True, timeout=180)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_ctrl_c_in_the_middle_of_a_copy(counter: Callable[..., Counter], monkeypatch: pytest.MonkeyPatch) -> None:
    one = counter("crowd")
    assert wait_for(lambda: len(os.listdir(f"/proc/{one.pid}/task")) == 202)
    vector = Transfer._vector
    reached = threading.Event()

    def slow(self: Transfer, *given: Any) -> int:
        reached.set()
        os.kill(os.getpid(), signal.SIGINT)
        assert wait_for(lambda: self._look() is not None)  # type: ignore[func-returns-value]
        return vector(self, *given)

    before = open_descriptors()
    monkeypatch.setattr(Transfer, "_vector", slow)
    with pytest.raises(KeyboardInterrupt), attach(one.pid):
        pytest.fail("it was copied all the same")
    assert reached.is_set()
    assert one.runs()
    assert not [t for t in os.listdir(f"/proc/{one.pid}/task") if state(one.pid, int(t)) == "t"]
    assert open_descriptors() == before


def test_process_ends_while_it_is_copied(counter: Callable[..., Counter], monkeypatch: pytest.MonkeyPatch) -> None:
    vector = Transfer._vector

    def killed(self: Transfer, *given: Any) -> int:
        os.kill(one.pid, signal.SIGKILL)
        assert wait_for(lambda: has_ended(one.pid))
        return vector(self, *given)

    monkeypatch.setattr(Transfer, "_vector", killed)
    one = counter()
    with pytest.raises(TargetError) as caught:
        attach(one.pid)
    assert str(caught.value) == f"pid {one.pid}: the process has ended while it was copied"


def test_without_memory_for_a_copy(programs: Path, tmp_path: Path) -> None:
    """Without enough memory for a copy (here by a limit), the process is read while it is stopped, and a message says so."""
    script = "import time\nb = bytearray(b'x') * (300 << 20)\nprint('ready', flush=True)\ntime.sleep(3600)"
    with Running([sys.executable, "-c", script], tmp_path) as run:
        done = subprocess.run(
            [sys.executable, "-m", "findleaks", "verdict", "--json", "--pid", str(run.pid)],
            capture_output=True,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (360 << 20, 360 << 20)),
            check=True,
        )
        (found,) = (json.loads(line) for line in done.stdout.splitlines())
        (warning,) = [line for line in found["warnings"] if "memory for a copy" in line]
        assert warning.startswith(f"pid {run.pid}: not enough memory for a copy of 3")
        assert warning.endswith("the process was stopped while it was read.")
