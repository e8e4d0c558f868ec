"""`count --inject` on programs that say what they call: patched, counted exactly, and given back as they were, whoever is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import truth
from counts import Places, by_command_line, by_gdb, by_lldb, code, places, printed, told, until
from debuggers import PATIENCE, environment, gdb, gdb_terminal, lldb

from cores import Running

MOVED = {"reads": 18000, "compares": 9000, "stores": 9000, "branches": 18000, "jumps": 9000, "loops": 27000, "carries": 9000}
"""Calls of each function by the threads; `loops` passes its beginning at each turn."""
NAMES = ("event", "faults", "down", *(f"moved_{name}" for name in MOVED))
DOORS = {"command line": by_command_line, "gdb": by_gdb}


def built(folder: Path, name: str, *options: str) -> Path:
    output = folder / name
    words = ["gcc", "-O2", "-g", "-Wall", "-Wextra", "-Werror", *options, "-o", str(output), str(truth.PROGRAMS / f"{name}.c"), "-pthread"]
    subprocess.run(words, check=True)
    return output


@pytest.fixture(scope="module")
def injected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("injected"), "injected")


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("counting"), "counting")


@pytest.fixture
def busy(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Iterator[tuple[Running, Places]]:
    program = built(tmp_path_factory.mktemp("busy"), "busy")
    with subprocess.Popen([str(program), "3", "300"], stdout=open(os.path.join(tmp_path, "stdout"), "wb"), cwd=tmp_path) as process:
        try:
            until(lambda: "ready" in (tmp_path / "stdout").read_text(), "the program")
            yield Busy(process.pid, tmp_path), places(process.pid, program, NAMES)  # type: ignore[misc]
        finally:
            process.kill()


class Busy:
    def __init__(self, pid: int, folder: Path) -> None:
        self.pid, self.folder = pid, folder


class Working:
    """A counter at work, of a function that has its jump."""

    def __init__(self, command: Sequence[str], pid: int, at: Places, before: dict[str, bytes]) -> None:
        self.process = subprocess.Popen(
            list(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment()
        )
        until(lambda: self.process.poll() is not None or code(pid, at) != before, "the jump")

    def finish(self) -> str:
        try:
            out, self.error = self.process.communicate(timeout=PATIENCE)
        finally:
            self.process.kill()
        assert out, self.error
        return out


def stubs(pid: int) -> list[str]:
    """Mappings of code without a file."""
    rows = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return [row[0] for row in rows if row[1] == "r-xp" and len(row) == 5]


def mappings(pid: int) -> int:
    return len(Path(f"/proc/{pid}/maps").read_text().splitlines())


def unharmed(running: Any, at: Places, before: dict[str, bytes]) -> None:
    assert "TracerPid:\t0\n" in Path(f"/proc/{running.pid}/status").read_text()
    assert code(running.pid, at) == before
    assert stubs(running.pid) == []
    (running.folder / "go").touch()
    until(lambda: "done" in printed(running), "the calls")
    assert "wrong" not in printed(running)
    (running.folder / "again").touch()
    until(lambda: "alive" in printed(running), "the process to call it again")


def counted(table: dict[str, Any]) -> Counter[str]:
    found: Counter[str] = Counter()
    for stack in table["stacks"]:
        assert stack["complete"]
        names = [frame["function"] or "" for frame in stack["frames"]]
        end = names.index("handle" if "handle" in names else "work") + 1
        found[";".join(names[:end])] += stack["count"]
    return found


def expected(running: Any, column: int = 1) -> Counter[str]:
    until(lambda: "done" in printed(running), "the program to say what it did")
    rows = [line.split() for line in printed(running).splitlines() if line.startswith("event;")]
    return Counter({row[0]: int(row[column]) for row in rows if row[column] != "0"})


@pytest.mark.parametrize(("door", "option"), [("gdb", "-fcf-protection=none"), ("command line", "-fcf-protection=full")])
def test_every_call_by_its_stack(door: str, option: str, tmp_path: Path) -> None:
    """Through realigned frames, code without call frame information, signal handlers; by three threads at once. What a child does that is
    forked meanwhile is not counted. A function that begins with endbr64 is patched behind it."""
    program = built(tmp_path, "injected", option)
    with Running([str(program)], tmp_path) as running:
        at = places(running.pid, program, NAMES)
        before = code(running.pid, at)
        maps = mappings(running.pid)
        working = Working(DOORS[door](running.pid, ["event", "--inject", "--json", "--events", "36000"]), running.pid, at, before)
        (tmp_path / "go").touch()
        (table,) = told(working.finish())
        assert counted(table) == expected(running)
        assert (table["engine"], table["events"], table["matched"], table["end"]) == ("inject", 36000, 36000, "asked")
        assert (table["unnamed"], table["unsure"], table["warnings"]) == (0, 0, [])
        assert mappings(running.pid) <= maps + 8  # the program's threads had stacks
        unharmed(running, at, before)


def test_moved_instructions_still_work(injected: Path, tmp_path: Path) -> None:
    """The program checks what each call returns, the child's calls included, which pass the jump as well."""
    with Running([str(injected)], tmp_path) as running:
        at = places(running.pid, injected, NAMES)
        before = code(running.pid, at)
        words = ["moved_*", "--inject", "--json", "--events", str(sum(MOVED.values()))]
        working = Working(by_command_line(running.pid, words), running.pid, at, before)
        (tmp_path / "go").touch()
        (table,) = told(working.finish())
        found: Counter[str] = Counter()
        for stack in table["stacks"]:
            found[stack["frames"][0]["function"]] += stack["count"]
        assert found == {f"moved_{name}": calls for name, calls in MOVED.items()}
        unharmed(running, at, before)


def test_both_engines_name_the_same_stacks(injected: Path, tmp_path: Path) -> None:
    found = []
    for engine in ([], ["--inject"]):
        folder = tmp_path / ("inject" if engine else "breakpoints")
        with Running([str(injected)], folder) as running:
            at = places(running.pid, injected, NAMES)
            before = code(running.pid, at)
            words = ["event", "--json", "--events", "2000", *engine]
            working = Working(by_command_line(running.pid, words), running.pid, at, before)
            (folder / "go").touch()
            (table,) = told(working.finish())
            assert table["events"] == table["matched"] == 2000
            rows = [[(frame["function"], frame["offset"], frame["module"]) for frame in stack["frames"]] for stack in table["stacks"]]
            found.append(sorted(rows, key=str))
    assert found[0] == found[1]
    assert len(found[0]) == 4


def test_outside_a_scope_of_ones_own(counting: Path, tmp_path: Path) -> None:
    """The functions that open and close it are patched, too."""
    total = (20 + 15 + 10 + 12 + 3 * 7) * 4 * 5 // 2
    with Running([str(counting), "4"], tmp_path) as running:
        at = places(running.pid, counting, ("event", "enter_scope", "leave_scope"))
        before = code(running.pid, at)
        words = ["event", "--inject", "--enter", "enter_scope", "--leave", "leave_scope", "--events", str(total), "--json"]
        working = Working(by_gdb(running.pid, words), running.pid, at, before)
        assert all(data != before[name] for name, data in code(running.pid, at).items())
        (tmp_path / "go").touch()
        (table,) = told(working.finish())
        assert counted(table) == expected(running, 2)
        assert (table["events"], table["matched"]) == (total, sum(expected(running, 2).values()))
        unharmed(running, at, before)


def test_every_and_for(counting: Path, tmp_path: Path) -> None:
    with Running([str(counting), "4"], tmp_path) as running:
        at = places(running.pid, counting, ("event",))
        before = code(running.pid, at)
        working = Working(by_gdb(running.pid, ["event", "--inject", "--every", "0.4", "--for", "1.6", "--json"]), running.pid, at, before)
        (tmp_path / "go").touch()
        tables = told(working.finish())
        assert len(tables) >= 3
        assert [table["last"] for table in tables] == [False] * (len(tables) - 1) + [True]
        assert [table["events"] for table in tables] == sorted(table["events"] for table in tables)
        assert (tables[-1]["events"], tables[-1]["end"]) == (780, "time")
        assert counted(tables[-1]) == expected(running)
        unharmed(running, at, before)


@pytest.mark.parametrize(("number", "code_"), [(signal.SIGINT, 0), (signal.SIGTERM, None), (signal.SIGKILL, None)])
def test_the_command_line_is_ended(number: int, code_: int, counting: Path, tmp_path: Path) -> None:
    """Interrupted, it prints the table; terminated or killed, its GDB still takes the stub out."""
    with Running([str(counting), "4"], tmp_path) as running:
        at = places(running.pid, counting, ("event",))
        before = code(running.pid, at)
        working = Working(by_command_line(running.pid, ["event", "--inject"]), running.pid, at, before)
        (tmp_path / "go").touch()
        until(lambda: "done" in printed(running), "all calls")
        working.process.send_signal(number)
        out, _ = working.process.communicate(timeout=PATIENCE)
        if number == signal.SIGINT:
            assert "s: 780 calls, " in out
            assert f"interrupted; {running.pid} runs on, nothing left in it." in out
            assert working.process.returncode == 0
        until(lambda: "TracerPid:\t0\n" in Path(f"/proc/{running.pid}/status").read_text(), "GDB to let go")
        unharmed(running, at, before)


def test_keys_at_gdbs_prompt(counting: Path, tmp_path: Path) -> None:
    with Running([str(counting), "4"], tmp_path) as running:
        at = places(running.pid, counting, ("event",))
        before = code(running.pid, at)
        with gdb_terminal("-p", str(running.pid)) as debugger:
            debugger.press("leaks count event --inject --every 1\n")
            until(lambda: code(running.pid, at) != before, "the jump")
            (tmp_path / "go").touch()
            debugger.until(r" s: 780 calls, ")
            time.sleep(0.4)
            debugger.press("\x03")
            debugger.until("interrupted; nothing left in it. The process stands, as before.")
            assert code(running.pid, at) == before
            debugger.run("detach", "detached")
        unharmed(running, at, before)


@pytest.mark.parametrize("how", ["end", "crash"])
def test_the_process_ends(how: str, counting: Path, tmp_path: Path) -> None:
    """To the last call: the table is shared, and outlives the process."""
    with Running([str(counting), "4"], tmp_path) as running:
        at = places(running.pid, counting, ("event",))
        working = Working(by_command_line(running.pid, ["event", "--inject", "--json"]), running.pid, at, code(running.pid, at))
        (tmp_path / "go").touch()
        until(lambda: "done" in printed(running), "all calls")
        (tmp_path / how).touch()
        (table,) = told(working.finish())
        assert (table["events"], table["matched"], table["end"]) == (781, 781, "ended")


REFUSED = {
    "too_short": "too_short is too short: 3 bytes, 5 are needed",
    "jumps_back": "jumps to 0x[0-9a-f]+, which would be overwritten",
    "calls_first": "cannot be moved: it is a call, which would return into the stub",
    "enters_first": "cannot be moved: it enters the kernel",
    "event --when 1": "--when is an expression of the debugger's, which a stub in the process cannot evaluate",
    "event --outside-scope v8": "the rule v8 does not work on this process",
    "no_such": "no function 'no_such' in any symbol table of the process",
}


def test_refused(injected: Path, tmp_path: Path) -> None:
    with Running([str(injected)], tmp_path) as running:
        at = places(running.pid, injected, NAMES)
        before = code(running.pid, at)
        output = gdb([f"leaks count {words} --inject" for words in REFUSED], "-p", str(running.pid))
        for line in REFUSED.values():
            assert re.search(f"leaks: .*{line}", output)
        done = by_line(running.pid, "too_short")
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"findleaks: {REFUSED['too_short']}\n")
        line = "leaks: count --inject needs GDB: run it there, or `findleaks count --inject … --pid PID`; or leave it out"
        assert line in lldb(["leaks count event --inject", "detach"], "-p", str(running.pid))
        unharmed(running, at, before)


@pytest.mark.parametrize(
    ("how", "function", "line"),
    [
        ("crowded", "event", "memory cannot be had near 0x[0-9a-f]+: no [0-9,]+ bytes are free within 2 GiB"),
        ("filtered", "event", "the process is under seccomp, which may end it for a system call that it does not expect"),
        ("inside", "faults", "thread [0-9]+ may return to 0x[0-9a-f]+, in the bytes that are to be patched: try again"),
    ],
)
def test_refused_by_what_the_process_is_like(how: str, function: str, line: str, injected: Path, tmp_path: Path) -> None:
    with Running([str(injected), how], tmp_path) as running:
        at = places(running.pid, injected, NAMES)
        before = code(running.pid, at)
        done = by_line(running.pid, function)
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(f"findleaks: {line}\n", done.stderr)
        unharmed(running, at, before)


def by_line(pid: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "findleaks", "count", *words, "--inject", "--pid", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=PATIENCE)


def text_of(pid: int, at: Places) -> bytes:
    """The page of code that the functions are in."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), 4096, at["event"] & -4096)


@pytest.mark.parametrize("times", [10, pytest.param(100, marks=pytest.mark.matrix)])
def test_put_in_and_taken_out_again_and_again(times: int, busy: tuple[Any, Places]) -> None:
    """Under load: threads are in the function, in the stub and in a signal handler all the time."""
    running, at = busy
    before, maps = text_of(running.pid, at), mappings(running.pid)
    output = gdb(["leaks count event --inject --for 0.1 --json"] * times, "-p", str(running.pid))
    tables = told(output)
    assert len(tables) == times
    for table in tables:
        assert table["warnings"] == []
        assert table["events"] > 100
        assert abs(table["events"] - table["matched"]) == 0
        assert {frame["function"] for stack in table["stacks"] for frame in stack["frames"]} >= {"event", "down", "call", "start_thread"}
        assert all(stack["complete"] for stack in table["stacks"])
    assert text_of(running.pid, at) == before
    assert (stubs(running.pid), mappings(running.pid)) == ([], maps)
    runs(running)


def runs(running: Any) -> None:
    lines = len(printed(running).splitlines())
    until(lambda: len(printed(running).splitlines()) > lines + 2, "the program to go on")


def held(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"TracerPid:\t(\d+)", status)[0])


def guardians(debugger: int) -> list[int]:
    """The guardians that a debugger has started."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == debugger and any(word.endswith(b"guardian.py") for word in words):
            found.append(pid)
    return found


def killed(process: subprocess.Popen[str], pid: int, guardian: bool) -> None:
    """Kill the debugger that holds the process, and its guardian, or not."""
    debugger = process.pid
    until(lambda: len(guardians(debugger)) == 1, "the guardian")
    (beside,) = guardians(debugger)
    time.sleep(0.3)  # it counts
    if guardian:
        os.kill(beside, signal.SIGKILL)
    os.kill(debugger, signal.SIGKILL)
    process.communicate()
    until(lambda: not held(pid), "the kernel to let go")


def test_a_killed_debugger_leaves_nothing(busy: tuple[Any, Places]) -> None:
    """Its guardian takes the stub out, while threads run through it."""
    running, at = busy
    before = text_of(running.pid, at)
    working = Working(
        by_gdb(running.pid, ["event", "--inject"]), running.pid, {"event": at["event"]}, code(running.pid, {"event": at["event"]})
    )
    killed(working.process, running.pid, guardian=False)
    until(lambda: text_of(running.pid, at) == before and not stubs(running.pid), "the guardian to have done it")
    runs(running)


@pytest.mark.parametrize("next_", ["inject", "lldb", pytest.param("breakpoints", marks=pytest.mark.matrix)])
def test_what_a_killed_debugger_leaves_the_next_one_takes_out(next_: str, busy: tuple[Any, Places]) -> None:
    """Its guardian killed as well, the process runs on through the stub, until anybody counts in it again."""
    running, at = busy
    before = text_of(running.pid, at)
    working = Working(
        by_gdb(running.pid, ["event", "--inject"]), running.pid, {"event": at["event"]}, code(running.pid, {"event": at["event"]})
    )
    killed(working.process, running.pid, guardian=True)
    assert text_of(running.pid, at) != before
    (stub,) = stubs(running.pid)
    runs(running)
    words = ["event", "--events", "50", "--json", *(["--inject"] if next_ == "inject" else [])]
    command = by_lldb(running.pid, words) if next_ == "lldb" else by_command_line(running.pid, words)
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=PATIENCE)
    (table,) = told(done.stdout)
    assert table["events"] == table["matched"] == 50
    line = f"an earlier count --inject was killed: its stub at 0x{stub.split('-')[0]} is taken out, 1 function(s) restored"
    assert table["warnings"][0] == line
    assert text_of(running.pid, at) == before
    if next_ == "lldb":
        assert "stay mapped, and do nothing" in table["warnings"][1]
        assert by_line(running.pid, "event", "--for", "0.1").returncode == 0
    else:
        assert len(table["warnings"]) == 1
    assert stubs(running.pid) == []
    runs(running)


@pytest.mark.parametrize("door", [by_gdb, by_lldb], ids=["gdb", "lldb"])
def test_breakpoints_of_a_killed_debugger_are_taken_out(door: Any, counting: Path, tmp_path: Path) -> None:
    """By its guardian, in time for all calls that come afterwards."""
    with Running([str(counting), "4"], tmp_path) as running:
        at = places(running.pid, counting, ("event",))
        before = code(running.pid, at)
        working = Working(door(running.pid, ["event"]), running.pid, at, before)
        killed(working.process, running.pid, guardian=False)
        until(lambda: code(running.pid, at) == before, "the guardian")
        unharmed(running, at, before)


def test_json_is_one_line(counting: Path, tmp_path: Path) -> None:
    with Running([str(counting), "1"], tmp_path) as running:
        done = by_line(running.pid, "event", "--for", "0.2", "--json")
        table = json.loads(done.stdout)
        assert (table["engine"], table["events"], table["stacks"], table["end"]) == ("inject", 0, [], "time")
        done = by_line(running.pid, "event", "--for", "0.2")
        assert re.fullmatch(rf"0\.\d s: 0 calls, 0 stacks\n\n  stopped; {running.pid} runs on, nothing left in it.\n", done.stdout)
