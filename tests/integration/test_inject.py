"""`count --inject` on programs that print their calls: every call is counted, and the code is restored, also if the debugger is killed."""

from __future__ import annotations

import json
import re
import shlex
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tracking
from counts import Places, Working, by_command_line, by_gdb, code, parse_tables, places, read_stdout, until
from debuggers import gdb, gdb_terminal, lldb
from patched import MOVED, NAMES, build, by_line, mappings, stubs

from cores import Running

DOORS = {"command line": by_command_line, "gdb": by_gdb}


@pytest.fixture(scope="module")
def injected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("injected"), "injected")


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("counting"), "counting")


def check_unharmed(running: Any, at: Places, before: dict[str, bytes]) -> None:
    assert "TracerPid:\t0\n" in Path(f"/proc/{running.pid}/status").read_text()
    assert code(running.pid, at) == before
    assert stubs(running.pid) == []
    (running.folder / "go").touch()
    until(lambda: "done" in read_stdout(running), "the calls")
    assert "wrong" not in read_stdout(running)
    (running.folder / "again").touch()
    until(lambda: "alive" in read_stdout(running), "the process to call it again")


def count_stacks(table: dict[str, Any]) -> Counter[str]:
    found: Counter[str] = Counter()
    for stack in table["stacks"]:
        assert stack["complete"]
        names = [frame["function"] or "" for frame in stack["frames"]]
        end = names.index("handle" if "handle" in names else "work") + 1
        found[";".join(names[:end])] += stack["count"]
    return found


def compute_expected(running: Any, column: int = 1) -> Counter[str]:
    until(lambda: "done" in read_stdout(running), "the program to say what it did")
    rows = [line.split() for line in read_stdout(running).splitlines() if line.startswith("event;")]
    return Counter({row[0]: int(row[column]) for row in rows if row[column] != "0"})


@pytest.mark.platform("x86-64", "`count --inject`, `track`")
@pytest.mark.parametrize(
    ("front_end", "option"),
    [pytest.param("gdb", "-fcf-protection=none", marks=pytest.mark.matrix), ("command line", "-fcf-protection=full")],
)
def test_every_call_by_its_stack(front_end: str, option: str, tmp_path: Path) -> None:
    """Calls are counted through realigned frames, code without call frame information and signal handlers, in three threads. Calls of a
    child that the program forks are not counted. If a function begins with endbr64, the patch is after this instruction."""
    program = build(tmp_path, "injected", option)
    with Running([str(program)], tmp_path) as running:
        at = places(running.pid, program, NAMES)
        before = code(running.pid, at)
        maps = mappings(running.pid)
        working = Working(DOORS[front_end](running.pid, ["event", "--inject", "--json", "--events", "36000"]), running.pid, at, before)
        (tmp_path / "go").touch()
        (table,) = parse_tables(working.finish())
        assert count_stacks(table) == compute_expected(running)
        assert (table["engine"], table["events"], table["matched"], table["end"]) == ("inject", 36000, 36000, "asked")
        assert (table["stack_table_full"], table["undecided"], table["warnings"]) == (0, 0, [])
        assert mappings(running.pid) <= maps + 8  # the threads of the program have stacks in the table
        check_unharmed(running, at, before)


def test_moved_instructions_still_work(injected: Path, tmp_path: Path) -> None:
    """The program checks the return value of each call. Calls of a forked child also pass through the patched code."""
    with Running([str(injected)], tmp_path) as running:
        at = places(running.pid, injected, NAMES)
        before = code(running.pid, at)
        words = ["moved_*", "--inject", "--json", "--events", str(sum(MOVED.values()))]
        working = Working(by_command_line(running.pid, words), running.pid, at, before)
        (tmp_path / "go").touch()
        (table,) = parse_tables(working.finish())
        found: Counter[str] = Counter()
        for stack in table["stacks"]:
            found[stack["frames"][0]["function"]] += stack["count"]
        assert found == {f"moved_{name}": calls for name, calls in MOVED.items()}
        check_unharmed(running, at, before)


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
            (table,) = parse_tables(working.finish())
            assert table["events"] == table["matched"] == 2000
            rows = [[(frame["function"], frame["offset"], frame["module"]) for frame in stack["frames"]] for stack in table["stacks"]]
            found.append(sorted(rows, key=str))
    assert found[0] == found[1]
    assert len(found[0]) == 4


def test_seccomp_filter_that_permits_injection(injected: Path, tmp_path: Path) -> None:
    """Containers use such filters. findleaks reads them and checks each system call before it makes the call."""
    with Running([str(injected), "filtered"], tmp_path) as running:
        at = places(running.pid, injected, NAMES)
        before = code(running.pid, at)
        working = Working(by_gdb(running.pid, ["event", "--inject", "--json", "--events", "36000"]), running.pid, at, before)
        (tmp_path / "go").touch()
        (table,) = parse_tables(working.finish())
        assert count_stacks(table) == compute_expected(running)
        check_unharmed(running, at, before)


def test_outside_a_scope_of_the_user(counting: Path, tmp_path: Path) -> None:
    """The functions that open and close the scope are patched, too."""
    total = (20 + 15 + 10 + 12 + 3 * 7) * 4 * 5 // 2
    with Running([str(counting), "4"], tmp_path) as running:
        at = places(running.pid, counting, ("event", "enter_scope", "leave_scope"))
        before = code(running.pid, at)
        words = ["event", "--inject", "--enter", "enter_scope", "--leave", "leave_scope", "--events", str(total), "--json"]
        working = Working(by_gdb(running.pid, words), running.pid, at, before)
        until(lambda: all(data != before[name] for name, data in code(running.pid, at).items()), "all jumps")
        (tmp_path / "go").touch()
        (table,) = parse_tables(working.finish())
        assert count_stacks(table) == compute_expected(running, 2)
        assert (table["events"], table["matched"]) == (total, sum(compute_expected(running, 2).values()))
        check_unharmed(running, at, before)


def test_every_and_for(counting: Path, tmp_path: Path) -> None:
    with Running([str(counting), "4"], tmp_path) as running:
        at = places(running.pid, counting, ("event",))
        before = code(running.pid, at)
        words = ["event", "--inject", "--every", "0.3", "--json"]
        working = Working(by_gdb(running.pid, [*words, "--events", "780"]), running.pid, at, before)
        working.wait_for_tables(2)
        (tmp_path / "go").touch()
        tables = parse_tables(working.finish())
        assert [table["events"] for table in tables[:2]] == [0, 0]
        assert [table["last"] for table in tables] == [False] * (len(tables) - 1) + [True]
        assert [table["events"] for table in tables] == sorted(table["events"] for table in tables)
        assert (tables[-1]["events"], tables[-1]["end"]) == (780, "asked")
        assert count_stacks(tables[-1]) == compute_expected(running)
        (table,) = parse_tables(gdb(["leaks " + shlex.join(["count", *words, "--for", "0.1"])], "-p", str(running.pid)))
        assert (table["last"], table["events"], table["end"]) == (True, 0, "time")
        check_unharmed(running, at, before)


@pytest.mark.parametrize(
    ("number", "code_"), [(signal.SIGINT, 0), pytest.param(signal.SIGTERM, None, marks=pytest.mark.matrix), (signal.SIGKILL, None)]
)
def test_command_line_is_interrupted_or_killed(number: int, code_: int, counting: Path, tmp_path: Path) -> None:
    """After SIGINT, the command prints the table. After SIGTERM or SIGKILL, its GDB still removes the stub."""
    with Running([str(counting), "4"], tmp_path) as running:
        at = places(running.pid, counting, ("event",))
        before = code(running.pid, at)
        working = Working(by_command_line(running.pid, ["event", "--inject"]), running.pid, at, before)
        (tmp_path / "go").touch()
        until(lambda: "done" in read_stdout(running), "all calls")
        working.process.send_signal(number)
        out = working.finish()
        if number == signal.SIGINT:
            assert "s: 780 calls, " in out
            assert f"interrupted; {running.pid} keeps running; all changes to the process were removed." in out
            assert working.process.returncode == 0
        until(lambda: "TracerPid:\t0\n" in Path(f"/proc/{running.pid}/status").read_text(), "GDB to let go")
        check_unharmed(running, at, before)


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
            debugger.until("interrupted; all changes to the process were removed. The process is stopped, as before.")
            assert code(running.pid, at) == before
            debugger.run("detach", "detached")
        check_unharmed(running, at, before)


def test_a_signals_handler_forks(tmp_path: Path) -> None:
    """Sometimes a signal handler forks while the thread is in the stub, and the child runs the rest of the stub. Each call of the parent
    is counted once."""
    with tracking.start_tracked([str(tracking.build(tmp_path, "tracked_forks"))]) as program:
        working = tracking.recording(by_command_line(program.pid, ["by_malloc*", "--inject", "--json"]), program.pid)
        calls = sum(note.site == "by_malloc" for note in program.round())
        working.send_signal(signal.SIGINT)
        table = tracking.read_result(working)
        assert (table["events"], [stack["count"] for stack in table["stacks"]]) == (calls, [calls])
        assert program.round()
        assert program.end() == 0


@pytest.mark.parametrize("how", ["end", "crash"])
def test_the_process_ends(how: str, counting: Path, tmp_path: Path) -> None:
    """All calls are counted up to the end of the process, because the table is in shared memory."""
    with Running([str(counting), "4"], tmp_path) as running:
        at = places(running.pid, counting, ("event",))
        working = Working(by_command_line(running.pid, ["event", "--inject", "--json"]), running.pid, at, code(running.pid, at))
        (tmp_path / "go").touch()
        until(lambda: "done" in read_stdout(running), "all calls")
        (tmp_path / how).touch()
        (table,) = parse_tables(working.finish())
        assert (table["events"], table["matched"], table["end"]) == (781, 781, "ended")


REFUSED = {
    "too_short": "too_short is too short: 3 bytes, 5 are needed",
    "jumps_back": "jumps to 0x[0-9a-f]+, which would be overwritten",
    "calls_first": "cannot be moved: it is a call, which would return into the stub",
    "enters_first": "cannot be moved: it enters the kernel",
    "event --when 1": "--when is evaluated by the debugger, not by a stub in the process",
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
        line = "leaks: count --inject needs GDB; run it there, run `findleaks count --inject … --pid PID`, or omit --inject"
        assert line in lldb(["leaks count event --inject", "detach"], "-p", str(running.pid))
        check_unharmed(running, at, before)


@pytest.mark.parametrize(
    ("how", "function", "line"),
    [
        ("crowded", "event", "cannot allocate memory near 0x[0-9a-f]+: no [0-9,]+ bytes are free within 2 GiB"),
        ("confined", "event", "the process is under seccomp, which does not permit system call 319"),
        ("inside", "faults", "thread [0-9]+ may return to 0x[0-9a-f]+, in the bytes that are to be patched; try again"),
    ],
)
def test_refused_processes(how: str, function: str, line: str, injected: Path, tmp_path: Path) -> None:
    with Running([str(injected), how], tmp_path) as running:
        at = places(running.pid, injected, NAMES)
        before = code(running.pid, at)
        done = by_line(running.pid, function)
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(f"findleaks: {line}\n", done.stderr)
        check_unharmed(running, at, before)


def test_json_is_one_line(counting: Path, tmp_path: Path) -> None:
    with Running([str(counting), "1"], tmp_path) as running:
        done = by_line(running.pid, "event", "--for", "0.2", "--json")
        table = json.loads(done.stdout)
        assert (table["engine"], table["events"], table["stacks"], table["end"]) == ("inject", 0, [], "time")
        done = by_line(running.pid, "event", "--for", "0.2")
        assert re.fullmatch(
            rf"\d+\.\d s: 0 calls, 0 stacks\n\n  stopped; {running.pid} keeps running; all changes to the process were removed.\n",
            done.stdout,
        )
