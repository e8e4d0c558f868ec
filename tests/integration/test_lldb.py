"""findleaks in LLDB: loading, help, expressions, errors, Ctrl-C, data that is out of date, and data that only LLDB can read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import building
import pytest
from ctrl_c import check_interrupts
from debuggers import LLDB, LLDB_LOADER, environment, findleaks, lldb, lldb_terminal, objects
from doors import build, counts, parse_blocks

from cores import Running
from findleaks.catalogue import CATALOGUE

COMMANDS = list(CATALOGUE)


program = building.by(build)


running = building.running()


core = building.core()


def split_output(output: str) -> list[str]:
    """Split the output by the commands that were typed."""
    return [part.partition("\n")[2].strip() for part in output.split("(lldb) ")[1:]]


def run_commands(commands: list[str], *arguments: str) -> list[str]:
    """Return the output of these commands."""
    output = lldb(commands, *arguments)
    assert "Traceback" not in output
    assert "internal error" not in output
    return split_output(output)[-len(commands) :]


def test_loading_imports_no_analysis() -> None:
    code = "import sys; print(sorted(m for m in sys.modules if m.startswith('findleaks.')))"
    loaded = ["catalogue", "debugger_session", "errors", "escaping", "formatting"]
    loaded += ["lldb", "lldb.completion", "lldb.interrupt", "lldb.register"]
    loaded += ["report", "report.columns", "report.encoding", "value_classes"]
    assert run_commands([f"script {code}"]) == [str([f"findleaks.{name}" for name in loaded])]


def test_help_of_every_command() -> None:
    overview, other = run_commands(["help leaks", "help findleaks"])
    assert all(f"findleaks {word} " in other for word in COMMANDS)
    assert "Example: leaks find " in overview and "Example:\n  findleaks find " in other
    texts = iter(
        run_commands([text for word in COMMANDS for text in (f"help leaks {word}", f"leaks {word} --help", f"findleaks {word} -h")])
    )
    for word, short, long, of_findleaks in zip(COMMANDS, texts, texts, texts):
        assert f"\n      {word} " in overview
        typed = "findleaks" if CATALOGUE[word].only_in_shell else "leaks"
        assert f"Example:\n  {typed} {word} " in short
        assert ("It runs in a shell" in " ".join(short.split())) == (word in ("triage", "watch"))
        assert f"\n  {typed} {word} " in long
        assert f"\n  findleaks {word} " in of_findleaks
        assert all("\n  --json " in text for text in (long, of_findleaks))


def test_expressions(program: Path, core: Path, running: Running) -> None:
    at = parse_blocks(running.output)
    places = ["$sp", "$rsp", "$sp+8", "&g_list", "g_list", "g_pair", "g_array", "main", "g_list->text", "*g_list", "(char*)g_list+8"]
    places += ["'g_list + 1'", "main_arena", "&main_arena"]
    lines = run_commands([f"leaks whatis --json {place}" for place in places], str(program), "-c", str(core))
    found = dict(zip(places, (json.loads(line)["answers"][0] for line in lines)))
    first = int(at["first"], 16)
    assert found["g_list"]["address"] == found["*g_list"]["address"] == at["first"]
    assert found["g_list->text"]["address"] == found["(char*)g_list+8"]["address"] == hex(first + 8)
    assert found["'g_list + 1'"]["address"] == hex(first + 48)
    assert {found[name]["symbol"] for name in ("&g_list", "g_pair", "g_array", "main")} == {"g_list", "g_pair", "g_array", "main"}
    assert found["$sp"] == found["$rsp"]
    assert int(found["$sp+8"]["address"], 16) == int(found["$sp"]["address"], 16) + 8
    assert found["$sp"]["is"] == "stack"
    assert found["main_arena"] == found["&main_arena"]
    assert found["main_arena"]["is"] == "allocator"


ERRORS = [
    ("leaks whatis nosuch", "leaks: 'nosuch' is not an address: use of undeclared identifier 'nosuch'"),
    ("leaks whatis g_list->nosuch", "leaks: 'g_list->nosuch' is not an address: no member named 'nosuch' in 'node'"),
    ("leaks whatis (", "leaks: '(' is not an address: expected expression"),
    ("leaks whatis 1.5", "leaks: '1.5' is not an address, but a double"),
    ("leaks whatis $nosuch", "leaks: '$nosuch' is not an address: use of undeclared identifier '$nosuch'"),
    ("leaks whatis", "leaks whatis: expected ADDR (see `leaks whatis --help`)"),
    ("leaks find --nosuch", "leaks find: unknown option --nosuch (see `leaks find --help`)"),
    ("findleaks -nosuch", "findleaks find: unknown option --nosuch (see `findleaks find --help`)"),
    ("findleaks nosuch", f"findleaks: no command 'nosuch'; the commands are: {', '.join(COMMANDS)}"),
    ("leaks whatis 'g_list", "leaks: no closing quotation in: 'g_list"),
]


def test_errors_are_one_line_and_failures(program: Path, core: Path) -> None:
    assert run_commands([command for command, _ in ERRORS], str(program), "-c", str(core)) == [f"error: {error}" for _, error in ERRORS]


def test_calls_of_functions_are_refused(program: Path, running: Running) -> None:
    """Calls are refused also in a process that could run them, because it must not run while findleaks reads it."""
    (answer,) = run_commands(["leaks whatis (long)getpid()"], "-p", str(running.pid))
    assert answer.startswith("error: leaks: '(long)getpid()' is not an address: ")
    assert len(answer.splitlines()) == 1


def test_no_process() -> None:
    error = "no process or core: start or attach to a process, or load a core file, and try again"
    assert run_commands(["leaks find", "findleaks"]) == [f"error: leaks: {error}", f"error: findleaks: {error}"]


ENDED = "(no process or core|pid [0-9]+: (there is no such process|the process (has ended|is exiting|is a zombie)))"


def test_a_process_that_ended(program: Path, tmp_path: Path) -> None:
    """The process ended or was killed outside LLDB, and LLDB has not noticed. The process is exiting, a zombie, or gone. The script waits
    until the kernel has unmapped its memory."""
    somebody = (
        "script import os, time; pid = lldb.debugger.GetSelectedTarget().process.GetProcessID(); os.kill(pid, 9); "
        "[time.sleep(0.01) for _ in iter(lambda: 'VmSize' in os.popen(f'cat /proc/{pid}/status 2>&1').read(), False)]"
    )
    for kill in ("process kill", somebody):
        answers = run_commands(["breakpoint set -n sweep", "run", "leaks find", kill, "leaks find"], str(program))
        assert "leaked: " in answers[2]
        assert re.search(f"^error: leaks: {ENDED}", answers[4], re.MULTILINE), answers[4]


def test_findleaks_alone_runs_find(program: Path, core: Path) -> None:
    find, *same = run_commands(
        ["leaks find --json", "findleaks", "findleaks --json", "findleaks find -json"], str(program), "-c", str(core)
    )
    assert json.loads(find)["command"] == "find"
    assert "leaked: " in same.pop(0)
    assert same == [find, find]


def test_failing_command_stops_a_script(program: Path, core: Path) -> None:
    """Batch mode stops at the first command that fails."""

    def status(command: str) -> int:
        words = [
            LLDB,
            "-x",
            "-b",
            "-O",
            f"command script import {LLDB_LOADER}",
            "-o",
            command,
            "-o",
            "script print('went on')",
            str(program),
        ]
        done = subprocess.run([*words, "-c", str(core)], capture_output=True, text=True, env=environment(), timeout=180)
        return "went on\n" in done.stdout

    assert (status("leaks find"), status("leaks find --fail-over 0"), status("leaks find --nosuch")) == (True, False, False)


def test_thread_and_frame_of_the_user_stay(running: Running) -> None:
    where = ["thread info", "frame info"]
    commands = ["thread select 2", *where, "leaks find", *where, "thread select 1", "up", *where, "leaks blocks", *where]
    output = lldb(commands, "-p", str(running.pid))
    shown = [line for line in output.splitlines() if line.startswith(("thread #", "frame #"))]
    assert [line.split()[1].rstrip(":") for line in shown] == ["#2", "#0", "#2", "#0", "#1", "#1", "#1", "#1", "#1"]
    assert shown[:2] == shown[2:4]
    assert shown[5:7] == shown[7:]  # the previous result belongs to `up`


def test_changes_are_read(program: Path, tmp_path: Path) -> None:
    """findleaks sees all changes of memory and registers by the user."""
    writes = ["expression g_list = (struct node *)0", "memory write -s 8 &g_interior 0", "thread select 2", "register write rbx 0"]
    with Running([str(program)], tmp_path) as run:
        output = lldb(["leaks find", *[word for write in writes for word in (write, "leaks find")]], "-p", str(run.pid))
    lost = [lost for _, lost in counts(output)]
    assert [n - lost[0] for n in lost] == [0, 10, 11, 11, 12]


def test_process_is_read_again_after_it_ran(program: Path) -> None:
    commands = ["breakpoint set -n make", "run", "leaks blocks --json", "breakpoint set -n sweep", "continue", "leaks blocks --json"]
    answers = run_commands([*commands, "process kill"], str(program))
    assert len(objects(answers[2])) <= len(objects(answers[5])) - 17


def test_another_core_in_the_same_debugger(program: Path, core: Path, tmp_path: Path) -> None:
    with Running([str(program), "100"], tmp_path) as run:
        other = run.gcore()
    output = lldb(
        ["leaks find", f"target create {program} --core {other}", "leaks find", "target select 0", "leaks find"],
        str(program),
        "-c",
        str(core),
    )
    (first, _), (second, _), (third, _) = counts(output)
    assert (second, third) == (first + 100, first)


def test_core_in_older_lldb_releases(program: Path, core: Path) -> None:
    """Before LLDB 17 there is no SBProcess.GetCoreFile. The core is then found among the files that LLDB has mapped."""
    words = ["leaks find --json", "script del lldb.SBProcess.GetCoreFile", "leaks find --json"]
    first, _, found = run_commands(words, str(program), "-c", str(core))
    assert found == first
    assert objects(found)


@pytest.mark.alone
def test_ctrl_c_ends_a_command(program: Path, tmp_path: Path) -> None:
    with Running([str(program), "1000000"], tmp_path) as run, lldb_terminal("-p", str(run.pid), FINDLEAKS_PURE="1") as terminal:
        check_interrupts(terminal, "error: leaks: interrupted\r\n")


def test_completion(program: Path) -> None:
    with lldb_terminal(str(program)) as terminal:
        terminal.until(r"\(lldb\) $")
        start = len(terminal.text)
        terminal.press("leaks fi\t")
        terminal.until(r"leaks fi.*nd ", start)  # the typed text stays, and the rest is appended
        terminal.press("\n")
        terminal.until("error: leaks: no process or core", start)


def test_completion_of_what_a_command_takes(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLDB completes symbols of functions for `count`, and files for other commands. It writes the missing characters and a space."""
    (tmp_path / "only.snapshot").touch()
    monkeypatch.chdir(tmp_path)
    with lldb_terminal(str(program)) as terminal:
        for typed, rest in (("leaks count mai", "n "), ("leaks diff on", r"ly\.snapshot ")):
            start = len(terminal.text)
            terminal.press(typed + "\t")
            terminal.until(f"{typed}.*{rest}", start)
            terminal.press("\x15")  # Ctrl-U deletes the line


def test_a_process_behind_a_server(program: Path, tmp_path: Path) -> None:
    """If another debug server traces the process, findleaks reads it through LLDB's API, like a process on another machine. The results
    lack only information that /proc has."""

    def without_proc(lines: list[str]) -> list[Any]:
        return [{key: value for key, value in json.loads(line).items() if key not in ("unread", "kernel")} for line in lines]

    server = shutil.which("lldb-server-19")
    assert server is not None
    with Running([str(program)], tmp_path) as run:
        at = parse_blocks(run.output)
        reported = [objects(findleaks(*words, "--pid", str(run.pid))) for words in (["find", "--json"], ["path", "--json", at["vector"]])]
        with subprocess.Popen(
            [server, "gdbserver", "--pipe", "1", "127.0.0.1:0", "--attach", str(run.pid)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            port = int(process.stdout.read(8).split(b"\0")[0])
            output = lldb([f"gdb-remote 127.0.0.1:{port}", "leaks find --json", f"leaks path --json {at['vector']}", "detach"])
            process.terminate()
        assert without_proc(objects(output)) == without_proc([line for lines in reported for line in lines])
