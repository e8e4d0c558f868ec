"""findleaks in GDB: loading, help, completion, expressions, errors, Ctrl-C, the pager, and data that is out of date."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import building
import pytest
from ctrl_c import check_interrupts
from debuggers import GDB_LOADER, environment, findleaks, gdb, gdb_terminal, objects
from doors import build, counts, parse_blocks

from cores import Running
from findleaks.catalogue import CATALOGUE
from findleaks.commands import load

COMMANDS = list(CATALOGUE)


program = building.by(build)


running = building.running()


core = building.core()


def no_traceback(output: str) -> str:
    assert "Traceback" not in output
    assert "Python Exception" not in output
    assert "internal error" not in output
    return output


def last(output: str) -> str:
    return output.rstrip().splitlines()[-1]


def test_each_word_of_the_catalogue_is_a_command() -> None:
    assert [(word, load(word).name) for word in CATALOGUE] == [(word, word) for word in CATALOGUE]


@pytest.mark.matrix  # A busy machine takes longer.
def test_loading_takes_under_60_ms() -> None:
    def seconds(*words: str) -> float:
        best = 9.0
        for _ in range(7):
            before = os.times()
            subprocess.run(["gdb", "-nx", "-batch", *words], check=True, env=environment())
            after = os.times()
            best = min(best, after.children_user + after.children_system - before.children_user - before.children_system)
        return best

    assert seconds("-ex", f"source {GDB_LOADER}") - seconds() < 0.060


def test_loading_imports_no_analysis() -> None:
    """Loading imports no analysis, which makes it fast on any machine. A command is imported when it is first used."""
    code = "print(sorted(m for m in sys.modules if m.startswith('findleaks')))"
    loaded = ["catalogue", "debugger_session", "errors", "escaping", "formatting", "gdb", "gdb.register"]
    loaded += ["report", "report.columns", "report.encoding", "value_classes"]
    assert last(gdb(["python import sys", f"python {code}"])) == str(["findleaks", *(f"findleaks.{name}" for name in loaded)])


def test_help_of_every_command() -> None:
    overview = gdb(["help leaks"])
    assert all(f"leaks {word} -- " in overview for word in COMMANDS)
    for prefix in ("leaks", "findleaks"):
        asked = [[f"help {prefix} {word}", f"{prefix} {word} --help", f"{prefix} {word} -h", "echo ====\\n"] for word in COMMANDS]
        texts = no_traceback(gdb([command for commands in asked for command in commands])).split("====\n")
        for word, text in zip(COMMANDS, texts):
            typed = "findleaks" if CATALOGUE[word].only_in_shell else prefix
            assert text.count(f"\n  {typed} {word} ") == 3  # each help has an example
            assert text.count("\n  --json ") == 2  # two of them have options


def test_completion(program: Path) -> None:
    kinds = "leaks find --kind definite --"
    expected = {
        "leaks fi": ["leaks find"],
        "leaks ": [f"leaks {word}" for word in sorted(COMMANDS)],
        "findleaks bl": ["findleaks blocks"],
        "leaks find --ki": ["leaks find --kind"],
        "leaks find --by si": ["leaks find --by site", "leaks find --by size"],
        "leaks whatis g_arr": ["leaks whatis g_array"],
        "leaks whatis &g_arr": ["leaks whatis &g_array"],
    }
    asked = [word for text in (*expected, kinds) for word in (f"complete {text}", "echo ====\\n")]
    *found, options, _ = (part.splitlines() for part in gdb(asked, str(program)).split("====\n"))
    assert dict(zip(expected, found)) == expected
    assert f"{kinds}json" in options


def test_expressions(program: Path, core: Path, running: Running) -> None:
    at = parse_blocks(running.output)
    places = ["$sp", "&g_list", "g_list", "g_pair", "g_array", "main", "g_list->text", "*g_list", "(char*)g_list+8", "&main_arena", "$1+8"]
    commands = [f"leaks whatis --json {place}" for place in places]
    commands += ["leaks whatis g_list + 1 --json", "leaks whatis -json g_list &g_list 'g_list + 2'"]
    *lines, spaces, several = objects(gdb(["print g_list", *commands], str(program), str(core)))
    found = dict(zip(places, (json.loads(line)["answers"][0] for line in lines)))
    assert len(lines) == len(places)
    assert found["g_list"]["address"] == at["first"]
    assert found["*g_list"]["address"] == at["first"]
    assert found["g_list->text"]["address"] == found["(char*)g_list+8"]["address"] == hex(int(at["first"], 16) + 8)
    assert found["$1+8"]["address"] == hex(int(at["first"], 16) + 8 * 48)
    assert {found[name]["symbol"] for name in ("&g_list", "g_pair", "g_array", "main")} == {"g_list", "g_pair", "g_array", "main"}
    assert found["$sp"]["is"] == "stack"
    assert found["&main_arena"]["is"] == "allocator"
    # Expressions with spaces, and several addresses.
    one, three = (json.loads(line)["answers"] for line in (spaces, several))
    first = int(at["first"], 16)
    assert [answer["address"] for answer in one] == [hex(first + 48)]
    assert [answer["address"] for answer in three][::2] == [at["first"], hex(first + 96)]


ERRORS = [
    ("leaks whatis nosuch", "leaks: 'nosuch' is not an address: No symbol \"nosuch\" in current context."),
    ("leaks whatis g_list->nosuch", "leaks: 'g_list->nosuch' is not an address: There is no member named nosuch."),
    ("leaks whatis (", "leaks: '(' is not an address: A syntax error in expression, near `'."),
    ("leaks whatis 1.5", "leaks: '1.5' is not an address, but a double"),
    ("leaks whatis $nosuch", "leaks: '$nosuch' is not an address, but void"),
    ("leaks whatis", "leaks whatis: expected ADDR (see `leaks whatis --help`)"),
    ("leaks find --nosuch", "leaks find: unknown option --nosuch (see `leaks find --help`)"),
    ("findleaks -nosuch", "findleaks find: unknown option --nosuch (see `findleaks find --help`)"),
    ("leaks nosuch", f"leaks: no command 'nosuch'; the commands are: {', '.join(COMMANDS)}"),
    ("leaks path malloc(8)", "leaks: 'malloc(8)' is not an address: Cannot call functions in the program: may-call-functions is off."),
]


def test_errors_are_one_line(program: Path, core: Path) -> None:
    output = gdb(["echo ====\\n", *(command for command, _ in ERRORS)], str(program), str(core))
    assert output.partition("====\n")[2].splitlines() == [error for _, error in ERRORS]


def test_no_process() -> None:
    error = "leaks: no process or core: start or attach to a process, or load a core file, and try again"
    expected = [error, error, error.replace("leaks:", "findleaks:")]
    assert gdb(["leaks find", "leaks blocks --json", "findleaks"]).splitlines() == expected


def test_core_file_that_is_gone(program: Path, core: Path, tmp_path: Path) -> None:
    mine = tmp_path / "core"
    mine.write_bytes(core.read_bytes())
    output = gdb([f"shell rm {mine}", "leaks find"], str(program), str(mine))
    assert last(output) == f"leaks: {mine}: no such file or directory: the debugger's core file was removed; load another core"


def test_setting_may_call_functions_stays(program: Path, core: Path) -> None:
    show = "show may-call-functions"
    output = gdb(["leaks whatis g_list", show, "set may-call-functions off", "leaks whatis g_list", show], str(program), str(core))
    assert [line.split()[-1] for line in output.splitlines() if line.startswith("Permission to call")] == ["on.", "off."]


def test_findleaks_alone_runs_find(program: Path, core: Path) -> None:
    commands = ["leaks find --json", "findleaks --json", "findleaks find --json", "findleaks -json"]
    commands += ["leaks blocks --json", "findleaks blocks --json"]
    typed = [word for command in commands for word in (command, "echo ====\\n")]
    found, *same, blocks, others, _ = (objects(part) for part in gdb(typed, str(program), str(core)).split("====\n"))
    assert found
    assert same == [found] * 3
    assert blocks == others != found


def test_status_for_scripts(program: Path, core: Path) -> None:
    def status(command: str) -> int:
        words = ["gdb", "-nx", "-batch", "-ex", f"source {GDB_LOADER}", "-ex", command, str(program), str(core)]
        return subprocess.run(words, capture_output=True, env=environment()).returncode

    assert (status("leaks find"), status("leaks find --fail-over 1M"), status("leaks find --fail-over 0")) == (0, 0, 1)


def test_ascii_terminals(program: Path, core: Path) -> None:
    output = no_traceback(gdb(["leaks find"], str(program), str(core), LC_ALL="C", PYTHONUTF8="0"))
    assert "leaked: " in output


def test_thread_and_frame_of_the_user_stay(running: Running) -> None:
    where = ["thread", "frame"]
    output = gdb(["thread 2", *where, "leaks find", *where, "thread 1", "up", *where, "leaks blocks", *where], "-p", str(running.pid))
    shown = [line for line in output.splitlines() if line.startswith(("[Current thread", "#"))]
    shown = [line for line in shown if not line.startswith("[Switching")]
    threads = [line for line in shown if line.startswith("[Current")]
    frames = [line for line in shown if line.startswith("#1")]
    assert len(threads) == 4
    assert (threads[0], threads[2]) == (threads[1], threads[3])
    assert threads[0] != threads[2]
    assert len(frames) == 3  # after `up`, and twice after `frame`
    assert len(set(frames)) == 1


def test_process_is_read_again_after_it_ran(program: Path) -> None:
    commands = ["break make", "run", "leaks blocks --json", "break sweep", "continue", "leaks blocks --json", "leaks find", "kill"]
    output = no_traceback(gdb(commands, str(program)))
    before, _, after = output.partition("Breakpoint 2 at")
    assert len(objects(after)) == counts(output)[0][0]
    assert len(objects(before)) <= len(objects(after)) - 17


def test_memory_and_registers_that_the_user_writes_are_seen(program: Path, tmp_path: Path) -> None:
    with Running([str(program)], tmp_path) as run:
        writes = ["set var g_list = 0", "leaks find", "thread 2", "set var $rbx = 0", "leaks find"]
        output = gdb(["leaks find", "leaks find", *writes], "-p", str(run.pid))
    (used, lost), *others = counts(output)
    assert others == [(used, lost), (used, lost + 10), (used, lost + 11)]


def test_a_running_process_is_reported(program: Path) -> None:
    output = no_traceback(gdb(["run &", "leaks find", "kill"], str(program)))
    assert "leaks: the process is running: stop it first (Ctrl-C, or `interrupt`)" in output.splitlines()


def test_two_inferiors(program: Path, core: Path, running: Running) -> None:
    """Each inferior has its own results, also after the user switches between the inferiors."""
    commands = ["leaks find --json", f"add-inferior -exec {program} -no-connection", "inferior 2", "leaks find --json"]
    output = gdb([*commands, f"attach {running.pid}", "leaks find --json", "inferior 1", "leaks find --json"], str(program), str(core))
    lines = objects(output)
    assert len(lines) == 3
    assert lines[0] == lines[2]
    assert "leaks: no process or core" in output


def test_another_core_at_the_same_place(program: Path, core: Path, tmp_path: Path) -> None:
    """A core file that was replaced is read again."""
    mine = tmp_path / "core"
    mine.write_bytes(core.read_bytes())
    with Running([str(program), "100"], tmp_path / "run") as run:
        other = run.gcore()
    reload = [f"shell cp {other} {mine}", f"core-file {mine}"]
    output = gdb(["leaks find", *reload, "leaks find"], str(program), str(mine))
    (first, _), (second, _) = counts(output)
    assert second == first + 100


def test_pager_can_be_left(program: Path, core: Path) -> None:
    with gdb_terminal(str(program), str(core)) as terminal:
        terminal.run("set height 6", r"\(gdb\) $")
        terminal.run("leaks blocks", "<RET> for more")
        start = len(terminal.text)
        terminal.press("q\n")
        no_traceback(terminal.until(r"Quit\r\n.*\(gdb\) $", start))
        terminal.run("set height 0", r"\(gdb\) $")
        assert "leaked: " in terminal.run("leaks find", "leaked: ")


@pytest.mark.alone
def test_ctrl_c_ends_a_command(program: Path, tmp_path: Path) -> None:
    with Running([str(program), "1000000"], tmp_path) as run, gdb_terminal("-p", str(run.pid), FINDLEAKS_PURE="1") as terminal:
        check_interrupts(terminal, r"leaks: interrupted\r\n.*\(gdb\) $")


def test_return_does_not_repeat(program: Path, core: Path) -> None:
    with gdb_terminal(str(program), str(core)) as terminal:
        terminal.run("leaks find", r"leaked: (?s:.*)\(gdb\) $")
        start = len(terminal.text)
        terminal.press("\n")
        terminal.run("python print('is-' + 'over')", "is-over")
        assert "leaked: " not in terminal.text[start:]


def test_a_process_behind_gdbserver(program: Path, tmp_path: Path) -> None:
    """findleaks reads a process behind gdbserver through GDB's API. The results are the same as for a local process, except for information
    that only /proc has."""

    def without_proc(lines: list[str]) -> list[Any]:
        return [{key: value for key, value in json.loads(line).items() if key not in ("unread", "kernel")} for line in lines]

    with Running([str(program)], tmp_path) as run:
        at = parse_blocks(run.output)
        questions = [["find", "--json"], ["blocks", "--json"], ["path", "--json", at["vector"]], ["whatis", "--json", *at.values()]]
        reported = [line for words in questions for line in objects(findleaks(*words, "--pid", str(run.pid)))]
        server = subprocess.Popen(
            ["gdbserver", "--once", "--attach", "127.0.0.1:0", str(run.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        with server:
            assert server.stderr is not None
            port = next(line.split()[-1] for line in server.stderr if line.startswith("Listening on port"))
            output = gdb([f"target remote 127.0.0.1:{port}", *["leaks " + " ".join(words) for words in questions], "detach"])
            server.terminate()
    assert without_proc(objects(no_traceback(output))) == without_proc(reported)
