"""`count` on a program that prints how often it calls a function through which stacks, in GDB, in LLDB, and from the command line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import building
import pytest
import truth
from counts import (
    DOORS,
    Counting,
    Places,
    Words,
    by_command_line,
    by_gdb,
    by_lldb,
    check_unharmed,
    code,
    count_calls,
    parse_expected,
    parse_tables,
    places,
    read_stdout,
    until,
)
from debuggers import Terminal, gdb, gdb_terminal, lldb, lldb_terminal, run_cli
from variants import mark_matrix_except

from cores import Running

THREADS = 4
FUNCTIONS = ("event", "enter_scope", "leave_scope")


program = building.fixture("counting.c", "-O2", "-g", "-pthread")


@pytest.fixture(params=DOORS)
def front_end(request: pytest.FixtureRequest) -> Words:
    return DOORS[request.param]


APART = pytest.mark.parametrize("front_end", mark_matrix_except(list(DOORS), "command line", "lldb"), indirect=True)
"""`findleaks count` runs GDB. Tests that run GDB directly are therefore in the matrix."""
BY_GDB = pytest.mark.parametrize("front_end", mark_matrix_except(list(DOORS), "command line"), indirect=True)
"""The matrix also runs these tests in LLDB. The other tests show that LLDB counts calls, evaluates conditions and restores the process."""


@pytest.fixture
def running(program: Path, tmp_path: Path) -> Iterator[Running]:
    with Running([str(program), str(THREADS)], tmp_path / "run") as run:
        yield run


@pytest.fixture
def at(program: Path, running: Running) -> Places:
    return places(running.pid, program, FUNCTIONS)


TOTAL = (20 + 15 + 10 + 12 + 3 * 7) * THREADS * (THREADS + 1) // 2


@pytest.mark.platform("x86-64", "`count`, in GDB and on the command line", "`count`, in LLDB")
def test_every_call_by_its_stack(front_end: Words, running: Running, at: Places) -> None:
    """Calls are counted by their stacks, also if two stacks are equal in their innermost 3,000 bytes, or if frames vary in size."""
    before = code(running.pid, at)
    counting = Counting(front_end, ["event", "--events", str(TOTAL), "--json"], running, at)
    (running.folder / "go").touch()
    (table,) = parse_tables(counting.finish())
    assert count_calls(table) == parse_expected(running, 1)
    assert (table["events"], table["matched"], table["end"]) == (TOTAL, TOTAL, "asked")
    assert [one["function"] for one in table["functions"]] == ["event"]
    check_unharmed(running, at, before)


@BY_GDB
def test_outside_a_scope_of_the_user(front_end: Words, running: Running, at: Places) -> None:
    """Scopes belong to threads: a scope of one thread has no effect on calls of another thread."""
    before = code(running.pid, at)
    words = ["event", "--enter", "enter_scope", "--leave", "leave_scope", "--events", str(TOTAL), "--json"]
    counting = Counting(front_end, words, running, at)
    (running.folder / "go").touch()
    (table,) = parse_tables(counting.finish())
    assert count_calls(table) == parse_expected(running, 2)
    assert table["events"] == TOTAL
    assert table["matched"] == sum(parse_expected(running, 2).values())
    check_unharmed(running, at, before)


def beside_program(folder: Path) -> Path:
    return building.compile_program(folder, "counting_beside.c", "-O1", "-pthread")


def beside(front_end: Words, folder: Path, what: str) -> dict[str, Any]:
    """Count calls while another thread does something else."""
    program = beside_program(folder)
    with Running([str(program), "3", "100", what], folder / "run") as running:
        counting = Counting(front_end, ["event", "--events", "300", "--json"], running, places(running.pid, program, ["event"]))
        (running.folder / "go").touch()
        (table,) = parse_tables(counting.finish())
        until(lambda: "done" in read_stdout(running), "the calls")
    return table


@pytest.mark.parametrize(
    "front_end", [pytest.param(DOORS[name], id=name, marks=() if name == "lldb" else pytest.mark.matrix) for name in DOORS]
)
def test_libraries_come_and_go(front_end: Words, tmp_path: Path) -> None:
    """Debuggers set internal breakpoints in the loader, to learn of loaded libraries. Sometimes a thread reaches one of them together
    with the breakpoint of `count`."""
    library = tmp_path / "library.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, "-x", "c", "/dev/null"], check=True)
    table = beside(front_end, tmp_path, str(library))
    assert (table["events"], table["end"]) == (300, "asked")


def by_gdb_passing(pid: int, words: Sequence[str]) -> list[str]:
    return debugger_passing(by_gdb(pid, words), "-ex", "handle SIGSEGV nostop noprint pass")


def by_lldb_passing(pid: int, words: Sequence[str]) -> list[str]:
    return debugger_passing(by_lldb(pid, words), "-o", "process handle SIGSEGV --stop false --notify false --pass true")


def debugger_passing(command: list[str], *first: str) -> list[str]:
    """Return the commands that set a breakpoint or handler of the user before `count` starts."""
    at = next(place for place, word in enumerate(command) if word.startswith("leaks count")) - 1
    return [*command[:at], *first, *command[at:]]


PASSING = [by_command_line, pytest.param(by_gdb_passing, marks=pytest.mark.matrix), by_lldb_passing]


@pytest.mark.parametrize("front_end", PASSING)
def test_signals_that_the_program_handles(front_end: Words, tmp_path: Path) -> None:
    """A JVM uses SIGSEGV to find null references. If the debugger passes SIGSEGV to the program without a stop, counting continues."""
    table = beside(front_end, tmp_path, "faults")
    assert (table["events"], table["end"]) == (300, "asked")


@pytest.mark.parametrize("front_end", [by_lldb], ids=["lldb"])
def test_signals_at_the_breakpoint(front_end: Words, tmp_path: Path) -> None:
    """Most signals arrive while a thread is at the breakpoint. The handler then returns to the breakpoint, while other threads wait until
    they may step over it. Each call is still counted once."""
    program, threads, calls = beside_program(tmp_path), 4, 150
    with Running([str(program), str(threads), str(calls), "alarms"], tmp_path / "run") as running:
        counting = Counting(front_end, ["event", "--json"], running, places(running.pid, program, ["event"]))
        (running.folder / "go").touch()
        until(lambda: "done" in read_stdout(running), "the calls")
        (running.folder / "end").touch()
        (table,) = parse_tables(counting.finish())
        assert int(read_stdout(running).rpartition("done ")[2]) > 10
    assert (table["events"], table["end"]) == (threads * calls, "ended")
    assert sum(count_calls(table).values()) == threads * calls


@APART
def test_when_and_every(front_end: Words, running: Running, at: Places) -> None:
    before = code(running.pid, at)
    argument = {"aarch64": "x0"}.get(os.uname().machine, "rdi")
    words = ["event", "--when", f"*(int*)${argument} == 0", "--every", "0.5", "--events", str(TOTAL), "--json"]
    counting = Counting(front_end, words, running, at)
    counting.wait_for_tables(2)
    (running.folder / "go").touch()
    tables = parse_tables(counting.finish())
    assert [table["events"] for table in tables[:2]] == [0, 0]
    assert [table["last"] for table in tables] == [False] * (len(tables) - 1) + [True]
    assert [table["events"] for table in tables] == sorted(table["events"] for table in tables)
    assert (tables[-1]["events"], tables[-1]["matched"], tables[-1]["end"]) == (TOTAL, THREADS, "asked")
    assert count_calls(tables[-1]) == {"event;alpha;work": THREADS}
    check_unharmed(running, at, before)


INTERRUPTING = """python
from findleaks.gdb.counting import GdbBreakpoints
hits = []
counting = GdbBreakpoints(gdb.selected_inferior().pid, gdb.selected_inferior())
counting._hit = lambda address: hits.append(address) or len(hits) == 2
counting._interrupting = True
print("stops", [counting.handle_breakpoint(address) for address in (1, 2, 3)], "counted", hits, counting._handle_signal("SIGINT").why)
end
"""


def test_calls_while_gdb_is_interrupting_are_counted(tmp_path: Path) -> None:
    """GDB interrupts the process with a signal that arrives before counting ends. Calls before the signal are counted, up to the
    requested number."""
    (tmp_path / "interrupting").write_text(INTERRUPTING)
    assert "stops [False, False, False] counted [1, 2] asked" in gdb([f"source {tmp_path / 'interrupting'}"])


@BY_GDB
def test_an_idle_process_ends_in_time(front_end: Words, running: Running, at: Places) -> None:
    before = code(running.pid, at)
    (table,) = parse_tables(Counting(front_end, ["event", "--for", "1", "--json"], running, at).finish())
    assert (table["events"], table["stacks"], table["end"]) == (0, [], "time")
    assert table["seconds"] >= 1
    check_unharmed(running, at, before)


def test_ctrl_c_ends_with_the_table(running: Running, at: Places) -> None:
    before = code(running.pid, at)
    counting = Counting(by_command_line, ["event"], running, at)
    (running.folder / "go").touch()
    until(lambda: "done" in read_stdout(running), "all calls")
    counting.process.send_signal(signal.SIGINT)
    out = counting.finish()
    assert f"s: {TOTAL} calls, " in out
    assert f"interrupted; {running.pid} keeps running; all changes to the process were removed." in out
    assert counting.process.returncode == 0
    check_unharmed(running, at, before)


def test_signals_that_a_background_job_ignores(running: Running, at: Places) -> None:
    """nohup ignores SIGHUP, and scripts ignore SIGINT in background jobs. If both signals are ignored, neither signal ends the counting,
    but SIGTERM does."""

    def ignoring(pid: int, words: Sequence[str]) -> list[str]:
        return ["sh", "-c", 'trap "" INT HUP; exec "$@"', "sh", *by_command_line(pid, words)]

    before = code(running.pid, at)
    counting = Counting(ignoring, ["event"], running, at)
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{counting.process.pid}/status").read_text().splitlines())
    for number in (signal.SIGINT, signal.SIGHUP):
        assert int(status["SigIgn"], 16) >> (number - 1) & 1
        counting.process.send_signal(number)
    (running.folder / "go").touch()
    until(lambda: "done" in read_stdout(running), "all calls")
    counting.process.send_signal(signal.SIGTERM)
    assert f"s: {TOTAL} calls, " in counting.finish()
    check_unharmed(running, at, before)


@pytest.mark.parametrize("terminal", [gdb_terminal, lldb_terminal], ids=["gdb", "lldb"])
def test_keys_at_a_debuggers_prompt(terminal: Callable[..., Terminal], running: Running, at: Places) -> None:
    """Tables are printed while the counts grow. Ctrl-C ends the counting, and the debugger prints its prompt."""
    before = code(running.pid, at)
    with terminal("-p", str(running.pid)) as debugger:
        debugger.press("leaks count event --every 1\n")
        until(lambda: code(running.pid, at)["event"] != before["event"], "the breakpoint")
        (running.folder / "go").touch()
        debugger.until(rf" s: {TOTAL} calls, ")
        time.sleep(0.4)  # the table is complete, and the next one is not yet due, so the process runs
        debugger.press("\x03")
        debugger.until("interrupted; the breakpoints were removed")
        debugger.run("detach", "detached")
    check_unharmed(running, at, before)


@pytest.mark.matrix  # A busy machine may print the first tables late.
@pytest.mark.parametrize("terminal", [gdb_terminal, lldb_terminal], ids=["gdb", "lldb"])
def test_ctrl_c_in_the_middle_of_a_table(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    """Ctrl-C while a table is printed: this table is completed, and a last table follows. The debugger blocks in the meantime, because
    the test does not read its output."""
    program, stacks = tmp_path / "many", 1024
    subprocess.run(["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, truth.PROGRAMS / "counting_many.c"], check=True)
    with Running([str(program), str(stacks)], tmp_path / "run") as running, terminal("-p", str(running.pid)) as debugger:
        debugger.press("leaks count event --every 2 --limit 0\n")
        debugger.until(r" s: [\d,]+ calls, ([5-9]\d\d|\d,\d{3}) stacks")  # the earlier tables are complete
        time.sleep(0.5)
        debugger.press("\x03")
        time.sleep(0.5)
        text = debugger.until(r"interrupted(; the breakpoints were removed|[\r\n])")  # the sentence may be split over two reads
    tables = re.split(r" s: [\d,]+ calls, ", text)[-2:]
    whole = [int(table.split()[0].replace(",", "")) for table in tables]
    shown = [len(re.findall(r"^ +[\d,]+  event\r$", table, re.M)) for table in tables]
    assert shown[1] == whole[1] > 100
    assert shown[0] > whole[0] - 200  # the terminal discards pending output when the key is pressed
    assert "interrupted; the breakpoints were removed" in tables[1]


def test_process_survives_killed_findleaks(running: Running, at: Places) -> None:
    """If `count` is killed, its GDB ends too, and detaches from the process."""
    before = code(running.pid, at)
    counting = Counting(by_command_line, ["event"], running, at)
    counting.process.kill()
    counting.finish()
    until(lambda: "TracerPid:\t0\n" in Path(f"/proc/{running.pid}/status").read_text(), "GDB to let go")
    check_unharmed(running, at, before)


ENDS = {f"{name}-{how}": (DOORS[name], how) for name in DOORS for how in ("end", "crash")}


@pytest.mark.parametrize("ending", mark_matrix_except(ENDS, "command line-end", "gdb-crash", "lldb-crash"))
def test_the_process_ends(ending: tuple[Words, str], running: Running, at: Places) -> None:
    front_end, how = ending
    counting = Counting(front_end, ["event", "--json"], running, at)
    (running.folder / "go").touch()
    until(lambda: "done" in read_stdout(running), "all calls")
    (running.folder / how).touch()
    (table,) = parse_tables(counting.finish())
    assert table["events"] == TOTAL + 1
    assert table["end"] == ("stop" if how == "crash" and front_end is not by_command_line else "ended")
    if table["end"] == "stop":
        assert table["why"] == "it received SIGSEGV"


ERRORS = {
    "count no_such": "no function 'no_such' in any symbol table of the process",
    "count event --outside-scope napi": "the rule napi does not work on this process: no function napi_open_handle_scope",
    "count event --outside-scope v8": "the rule v8 does not work on this process: no readable loaded file contains V8",
    "count event --outside-scope other": "--outside-scope other: no such rule; use one of v8, napi, jni, python-gil",
    "count event --enter event": "--leave is missing",
    "count event --enter enter_scope --enter none --leave leave_scope": "the rule enter_scope or none … leave_scope does not work on this",
    "count event --enter event --leave leave_scope": "event itself opens or closes the scope",
    "count 0x10": "0x10 is not code of the process",
}


def test_errors(running: Running, at: Places) -> None:
    before = code(running.pid, at)
    commands = [f"leaks {words}" for words in ERRORS]
    for output in (lldb([*commands, "detach"], "-p", str(running.pid)), gdb(commands, "-p", str(running.pid))):
        for line in ERRORS.values():
            assert f"leaks: {line}" in output
    for words, line in (*ERRORS.items(),)[::4]:  # the command line has the same messages
        done = run_cli(*words.split(), "--pid", str(running.pid))
        assert (done.returncode, done.stdout) == (2, "")
        assert line in done.stderr
        assert len(done.stderr.splitlines()) == 1
    check_unharmed(running, at, before)


def test_cores_do_not_run(running: Running) -> None:
    core = str(running.gcore())
    line = "count needs a running process, not a core; `stacks` and `scopes` work on cores"
    done = run_cli("count", "event", core)
    assert (done.returncode, done.stderr) == (2, f"findleaks: {line}\n")
    assert f"leaks: {line}" in gdb(["leaks count event"], "-c", core)
    assert f"leaks: {line}" in lldb(["leaks count event"], "-c", core)
