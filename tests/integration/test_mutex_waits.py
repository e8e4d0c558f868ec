"""Threads that wait for mutexes of libc: deadlocks, and the holders of mutexes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import building
import pytest
from debuggers import findleaks, gdb, lldb, objects, run_cli

import cores
from findleaks.audit.findings.ending import describe_end
from findleaks.runtimes.finding import Finding
from findleaks.session import Session
from findleaks.target.core import open_core

program = building.fixture("mutex_waits.c", "-O2", "-g", "-w", "-pthread")
FUTEX = "202"
THREADS = {"cycle": 2, "twice": 2, "held": 3, "inherited": 2, "table": 3, "crowd": 10}  # otherwise 1


def start_program(program: Path, word: str, folder: Path) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    """Start the program, and return it and the addresses that it printed after all threads wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "printed", "w") as file:
        started = subprocess.Popen([str(program), word], cwd=folder, stderr=file, preexec_fn=cores._allow_cores)
    deadline = time.monotonic() + cores.PATIENCE
    printed: dict[str, str] = {}
    while not printed or (word == "forked" and "child" not in printed) or not waits(word, printed):
        assert started.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
        printed = dict(re.findall(r"(\w+)=(\S+)", (folder / "printed").read_text()))
    return started, printed


def kill_program(program: Path, word: str, folder: Path) -> tuple[Path, dict[str, str]]:
    """Start the program, kill it after all threads wait, and return its core and the addresses that it printed."""
    started, printed = start_program(program, word, folder)
    deadline = time.monotonic() + cores.PATIENCE
    os.kill(int(printed.get("child", started.pid)), signal.SIGABRT)
    if "child" in printed:
        while not list(folder.glob("core*")) or Path(f"/proc/{printed['child']}/maps").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        started.kill()
    started.wait(cores.PATIENCE)
    (core,) = folder.glob("core*")
    return core, printed


def waits(word: str, printed: dict[str, str]) -> bool:
    """Return whether all threads of the process have been started and wait for one of the printed addresses."""
    folders = list(Path(f"/proc/{printed.get('child', printed['pid'])}/task").iterdir())
    places = [int(one, 16) for one in printed.values() if one.startswith("0x")]
    try:
        calls = [(folder / "syscall").read_text().split() for folder in folders]
    except OSError:  # a thread ended
        return False
    futexes = [int(call[1], 16) for call in calls if call[0] == FUTEX]
    return len(calls) == len(futexes) == THREADS.get(word, 1) and all(any(0 <= one - at < 48 for at in places) for one in futexes)


# By argument of the program: the finding's title, and a pattern of its cause. {NAME} is the value that the program printed.
DEADLOCKS = {
    "cycle": (
        "2 threads cannot continue, because they wait for locks of each other: a deadlock.",
        r"Thread {pid} is waiting to lock journal <{journal}> .*, which thread (\d+) holds; thread \1 is .* lock accounts <{accounts}>",
    ),
    "twice": (
        "2 threads cannot continue, because no other thread can unlock a mutex: a deadlock.",
        r"Thread {pid} is waiting to lock accounts <{accounts}> .*, which it holds already\. 1 more thread waits for it, too\.",
    ),
    "ended": (
        "1 thread cannot continue, because no other thread can unlock a mutex: a deadlock.",
        r"Thread {pid} is waiting to lock journal <{journal}> .*, which thread \d+ locked\. This process has no such thread",
    ),
    "forked": (
        "1 thread cannot continue, because no other thread can unlock a mutex: a deadlock.",
        r"Thread {child} is waiting to lock <{allocated}> .* or the process was forked while the thread held the mutex\.",
    ),
}

# The thread that holds the mutex is alive, so there is a note and no finding.
HELD = {
    "held": r"2 threads wait for the pthread_mutex_t at {allocated}, which thread \d+ holds",
    "inherited": r"Thread {pid} waits for the pthread_mutex_t at {inheriting}, which thread \d+ holds",
    "table": r"2 threads wait for table \(pthread_rwlock_t at {table}\), which thread \d+ holds",
}


def fill(pattern: str, printed: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: re.escape(printed[match[1]]), pattern)


def verdict(core: Path) -> dict[str, Any]:
    return dict(json.loads(run_cli("verdict", "--json", str(core)).stdout))


@pytest.mark.parametrize("word", DEADLOCKS)
def test_deadlocks(word: str, program: Path, tmp_path: Path) -> None:
    core, printed = kill_program(program, word, tmp_path)
    title, cause = DEADLOCKS[word]
    found = verdict(core)["findings"][0]
    assert (found["finding"], found["text"]) == ("deadlock", title)
    assert re.match(fill(cause, printed), found["cause"]), found["cause"]


@pytest.mark.parametrize("word", HELD)
def test_mutexes_held_by_a_running_thread(word: str, program: Path, tmp_path: Path) -> None:
    core, printed = kill_program(program, word, tmp_path)
    found = verdict(core)
    assert found["notes"][0] == f"The process did not crash: process {os.getpid()} sent SIGABRT. `stacks` shows what the threads were doing"
    assert re.fullmatch(fill(HELD[word], printed), found["notes"][1]), found["notes"]
    assert all(one["finding"] != "deadlock" for one in found["findings"])


def test_most_threads_of_a_running_process_wait_for_one_mutex(program: Path, tmp_path: Path) -> None:
    started, printed = start_program(program, "crowd", tmp_path)
    try:
        found = json.loads(findleaks("verdict", "--json", "--pid", str(started.pid)))
    finally:
        started.kill()
        started.wait(cores.PATIENCE)
    pattern = fill(r"9 threads wait for accounts \(pthread_mutex_t at {accounts}\), which thread \d+ \(mutex_waits\) holds", printed)
    assert any(re.fullmatch(pattern, one) for one in found["notes"]), found["notes"]
    assert all(one["finding"] != "deadlock" for one in found["findings"])


def test_a_finding_about_threads_may_name_the_mutex(program: Path, tmp_path: Path) -> None:
    core, printed = kill_program(program, "crowd", tmp_path)
    session = Session(open_core(str(core)))
    for address, is_noted in ((printed["accounts"], False), ("0x10", True)):
        found = Finding("thread-stacks", 0, "10 threads run.", "9 of them wait.", lock=int(address, 16))
        assert any("threads wait for accounts" in one for one in describe_end(session, [found])) is is_noted


@pytest.mark.parametrize("word", ["timed", "changed", "own-lock", "own-table"])
def test_other_waits(word: str, program: Path, tmp_path: Path) -> None:
    core, _ = kill_program(program, word, tmp_path)
    found = verdict(core)
    assert all(one["finding"] != "deadlock" for one in found["findings"])
    assert not any(" wait" in note for note in found["notes"])


def test_every_front_end(program: Path, tmp_path: Path) -> None:
    core, printed = kill_program(program, "cycle", tmp_path)
    text = findleaks("stacks", str(core))
    holder = re.search(
        r"pthread_mutex_lock\S* .*\n +- waiting to lock journal <(\S+)> \(a pthread_mutex_t\), which thread (\d+) holds", text
    )
    assert holder is not None and holder[1] == printed["journal"] and holder[2] != printed["pid"], text
    assert "\ndeadlock: thread" in text
    own = json.loads(run_cli("stacks", "--json", str(core)).stdout)["deadlocks"]
    assert [one["address"] for one in own[0]["threads"]] == [printed["journal"], printed["accounts"]]
    for other in (gdb(["leaks stacks --json"], str(program), str(core)), lldb(["leaks stacks --json"], str(program), "-c", str(core))):
        assert json.loads(objects(other)[0])["deadlocks"] == own
