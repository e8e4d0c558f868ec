"""If findleaks cannot attach to a process, it prints one line with the reason, and the process continues."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from counting import COUNTER, Counter, compile_sources, counters, wait_for

from findleaks.errors import TargetError
from findleaks.target import process, ptrace
from findleaks.target.copied import attach
from findleaks.target.ptrace import is_exiting, state


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_sources(tmp_path_factory.mktemp("programs"), counter=COUNTER)


@pytest.fixture
def counter(programs: Path) -> Iterator[Callable[..., Counter]]:
    with counters(programs / "counter") as make:
        yield make


def refusal(pid: int) -> str:
    with pytest.raises(TargetError) as caught:
        attach(pid)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_process() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    for pid in (gone.pid, 0, -1, 1 << 40):
        assert refusal(pid) == f"pid {pid}: there is no such process"


def test_ourselves_a_zombie_and_a_kernel_thread() -> None:
    assert "findleaks cannot stop itself" in refusal(os.getpid())
    child = os.fork()
    if child == 0:
        os._exit(0)
    try:
        assert wait_for(lambda: state(child, child) == "Z")
        assert "zombie" in refusal(child)
    finally:
        os.waitpid(child, 0)
    if Path("/proc/2/comm").exists() and Path("/proc/2/comm").read_text() == "kthreadd\n":
        assert "kernel thread" in refusal(2)
        assert not is_exiting(2)


def test_exiting_process_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it becomes a zombie, a process briefly has no memory. The test simulates what /proc shows then."""
    lines = {"Tgid": "77", "State": "R (running)", "TracerPid": "0"}
    stat = b"77 (x y) R 1 77 77 0 -1 4194308 " + b"0 " * 40
    monkeypatch.setattr(ptrace, "status", lambda pid: lines)
    monkeypatch.setattr(process, "status", lambda pid: lines)
    monkeypatch.setattr(ptrace, "stat_of", lambda proc: stat)
    monkeypatch.setattr(ptrace, "tasks", lambda pid: list(range(77, 177)))
    assert is_exiting(77)
    assert refusal(77) == "pid 77: the process is exiting; its memory is gone"


def test_a_main_thread_that_ended_before_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptrace, "status", lambda pid: {"VmSize": "1 kB"} if pid == 80 else {"Tgid": "77"})
    monkeypatch.setattr(ptrace, "stat_of", lambda proc: b"77 (x y) Z 1 77 77 0 -1 4194308 " + b"0 " * 40)
    monkeypatch.setattr(ptrace, "tasks", lambda pid: [77, 78, 80])
    assert not is_exiting(77)


def test_another_tracer_is_named(counter: Callable[..., Counter]) -> None:
    one = counter()
    script = f"import time\nfrom findleaks.target.live import LiveTarget\none = LiveTarget({one.pid}, stopped=False)\n"
    script += "print('held', flush=True)\ntime.sleep(3600)"
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        message = refusal(one.pid)
        assert "already traced by python" in message
        assert f"(pid {child.pid})" in message
    finally:
        child.kill()
        child.wait()
    assert one.runs()


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process is needed, which only root can make")
def test_not_permitted(counter: Callable[..., Counter], tmp_path: Path) -> None:
    one = counter()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            attach(one.pid)
        except TargetError as error:
            good = "not permitted" in str(error) and "belongs to user 0" in str(error) and "CAP_SYS_PTRACE" in str(error)
            status = 0 if good and "\n" not in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert one.runs()
