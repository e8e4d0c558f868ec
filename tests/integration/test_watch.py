"""`watch`, and snapshots at an interval: processes that grow, end, and call exec; on a terminal, in a pipe, and as JSON."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import building
import pytest
from debuggers import Terminal, environment, gdb, lldb, run_cli
from grows import FINDLEAKS, build, go_on, truth
from stopwatch import Stopwatch
from variants import mark_matrix_except

from cores import Running

EVERY = 2.0
MAX_SECONDS = 1.0
"""Seconds from the press of a key to the end of the command. This is far less than EVERY."""
TABLE = r"retained by g_sessions \(grows, data\): linked list, 4,000 → 8,000 nodes"


program = building.by(build)


@pytest.fixture
def running(program: Path, tmp_path: Path) -> Iterator[Running]:
    with Running([str(program)], tmp_path / "run") as run:
        yield run


class Started:
    """A command whose output is read line by line."""

    def __init__(self, *words: str) -> None:
        uncut = {**environment(), "COLUMNS": ""}  # buffered as in any pipe
        self._process = subprocess.Popen([*FINDLEAKS, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=uncut)

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def until(self, part: str) -> str:
        while part not in (line := self.line()):
            assert line, f"ended without {part!r}: {self.ended()}"
        return line

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def ended(self) -> tuple[str, str, int]:
        """Return the rest of the output, standard error, and the exit status."""
        assert self._process.stdout is not None and self._process.stderr is not None
        out, err = self._process.stdout.read(), self._process.stderr.read()
        return out, err, self._process.wait()

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


def find_sessions_row(item: dict[str, object]) -> dict[str, object]:
    """Return the row of g_sessions in a diff's JSON, with its container."""
    grown = item["grown"]
    assert isinstance(grown, list)
    (row,) = [row for row in grown if row["what"] == "root" and row["name"] == "g_sessions (grows, data)"]
    return {"bytes": row["delta"], "nodes": [one["counts"][-1] for one in row["inside"] if one["what"] == "container"]}


def test_json_has_one_object_for_each_interval(running: Running, tmp_path: Path) -> None:
    """Each JSON object has the same fields as the output of `diff`, with exact counts of nodes and the bytes of the added nodes."""
    before, _ = truth(running)
    with Started("watch", "--every", "0.2", "--json", "-o", str(tmp_path / "kept"), "--pid", str(running.pid)) as started:
        first = json.loads(started.line())
        assert (first["command"], first["ended"], len(first["samples"])) == ("watch", None, 2)
        go_on(running)
        after, _ = truth(running)
        while (
            not (item := json.loads(started.line()))["total"]["delta"]
            or not find_sessions_row(item)["nodes"]
            or find_sessions_row(item)["nodes"] != [after]
        ):
            pass
        assert find_sessions_row(item) == {"bytes": (after - before) * 120, "nodes": [after]}
        started.interrupt()
        _, errors, status = started.ended()
    assert (errors, status) == ("", 0)
    files = sorted((tmp_path / "kept").iterdir())
    assert len(files) >= len(item["samples"])
    compared = json.loads(run_cli("diff", "--json", str(tmp_path / "kept"), check=True).stdout)
    assert find_sessions_row(compared) == find_sessions_row(item)


def test_tables_follow_one_another_in_a_pipe(running: Running) -> None:
    with Started("watch", "--every", "0.2", "--pid", str(running.pid)) as started:
        assert "the first comparison follows in 0.2 s" in started.line() + started.line()
        started.until("nothing grows")
        go_on(running)
        started.until("linked list, 4,000 → 8,000 nodes")  # the first table may show only a part of the growth
        started.interrupt()
        out, errors, status = started.ended()
    assert (errors, status) == ("", 0)
    assert "\x1b" not in out


def test_ends_after_a_time(running: Running) -> None:
    done = run_cli("watch", "--every", "0.1", "--for", "0.3", "--json", "--pid", str(running.pid), check=True)
    assert 1 <= len(done.stdout.splitlines()) <= 3


@pytest.mark.parametrize("word", ["watch", "snapshot"])
@pytest.mark.parametrize(
    ("number", "why"),
    [
        (signal.SIGTERM, "pid {} has ended"),
        (signal.SIGKILL, "pid {} has ended"),
        (signal.SIGUSR2, "pid {} runs another program now: grows"),
    ],
)
def test_end_and_exec_of_the_process(running: Running, tmp_path: Path, word: str, number: signal.Signals, why: str) -> None:
    """A message says that the process ended or called exec. It is not an error."""
    with Started(word, "--every", "0.2", "-o", str(tmp_path / "kept"), "--pid", str(running.pid)) as started:
        for _ in range(2):
            started.line()
        os.kill(running.pid, number)
        out, errors, status = started.ended()
    assert (errors, status) == ("", 0)
    assert why.format(running.pid) in out
    assert all(path.suffix == ".snapshot" for path in (tmp_path / "kept").iterdir())


def test_process_that_ends_says_so_in_json(running: Running) -> None:
    with Started("watch", "--every", "0.2", "--json", "--pid", str(running.pid)) as started:
        before = json.loads(started.line())
        os.kill(running.pid, signal.SIGKILL)
        last = json.loads(started.ended()[0].splitlines()[-1])
    assert last["ended"] == f"pid {running.pid} has ended"
    assert last["samples"][: len(before["samples"])] == before["samples"]


def watching(running: Running, every: float = 0.2) -> Terminal:
    """Start `watch` on a new terminal."""
    return Terminal([*FINDLEAKS, "watch", "--every", str(every), "--pid", str(running.pid)])


def status(terminal: Terminal) -> int:
    """Return the exit status of the program on the terminal, which remains a zombie."""
    ended = os.waitid(os.P_PID, terminal.pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    return int(ended.si_status)


@pytest.mark.parametrize("key", mark_matrix_except(["q", "\x03"], "q"))
def test_redrawn_in_place(running: Running, key: str) -> None:
    """The alternate screen shows one table. After `q` or Ctrl-C, the last table stays on the normal screen, and the terminal is
    restored."""
    with watching(running, EVERY) as terminal:
        terminal.until("the first comparison follows")
        go_on(running)
        terminal.until(TABLE)
        start = len(terminal.text)
        pressed = Stopwatch(terminal.pid)
        terminal.press(key)
        terminal.until(r"\x1b\[\?1049l", start)
        assert pressed.seconds() < MAX_SECONDS
        terminal.until(r"4,000 → 8,000 nodes[\s\S]*\n\r\n", terminal.text.rindex("\x1b[?1049l"))
        assert status(terminal) == 0
        left = terminal.text.rpartition("\x1b[?1049l")[2]
        assert "\x1b" not in left
        assert terminal.text.count("\x1b[?1049h") == 1
        assert "Traceback" not in terminal.text


def test_end_of_the_process_on_a_terminal(running: Running) -> None:
    with watching(running) as terminal:
        terminal.until("nothing grows")
        os.kill(running.pid, signal.SIGKILL)
        terminal.until(r"\x1b\[\?1049l[\s\S]*" + f"pid {running.pid} has ended")
        assert status(terminal) == 0


def test_ctrl_c_while_a_snapshot_is_taken(running: Running, tmp_path: Path) -> None:
    """Snapshots follow one another without a pause, so Ctrl-C arrives during a snapshot. Stored snapshots are complete, and no other file
    is left."""
    with Started("snapshot", "--every", "0.05", "-o", str(tmp_path / "kept"), "--pid", str(running.pid)) as started:
        for _ in range(3):
            started.until(".snapshot (")
        started.interrupt()
        _, errors, status = started.ended()
    assert (errors, status) == ("", 0)
    files = sorted((tmp_path / "kept").iterdir())
    assert len(files) >= 3
    assert {path.suffix for path in files} == {".snapshot"}
    for path in files:
        with sqlite3.connect(path) as base:
            assert base.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_refused_targets(running: Running, program: Path) -> None:
    core = running.gcore()
    done = run_cli("watch", str(core))
    assert done.returncode == 2
    assert (
        done.stderr
        == "findleaks: watch needs a running process, not a core: `findleaks watch --pid PID`, or `findleaks diff` of several cores\n"
    )
    for ask, where in ((gdb, [str(program), str(core)]), (lldb, [str(program), "-c", str(core)])):
        output = ask(["leaks watch"], *where)
        assert "detach, and type in a shell: findleaks watch --pid PID" in output
        output = ask(["leaks watch", "detach"], "-p", str(running.pid))
        assert f"type in a shell: findleaks watch --pid {running.pid}" in output
        assert "Traceback" not in output
