"""Suggested commands can be pasted as printed into sh, zsh, GDB and LLDB, whatever the names of variables in the process."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import truth
from debuggers import environment, gdb, lldb, run_cli

import cores
from findleaks.quoting import shell_quoted

COMMANDS = ("verdict", "find", "blocks", "caches", "roots", "roots --lost", "map", "runtime", "stacks", "verify")
PROG = f"{shell_quoted(sys.executable)} -m findleaks"
SHELLS = (("sh", "-c"), ("bash", "-c"), ("zsh", "-f", "-c"))


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, int]]:
    """Return the program, its core, and {name of a variable: blocks that it retains}."""
    folder = tmp_path_factory.mktemp("a folder's name")
    program = folder / "odd_names"
    source = truth.PROGRAMS / "odd_names.c"
    subprocess.run(["gcc", "-g", "-Wall", "-Wextra", "-Werror", "-o", str(program), str(source)], check=True)
    with cores.Running([str(program)], folder / "run") as running:
        core = running.gcore()
    rows = (line.partition(" ") for line in running.output.splitlines() if line[:1].isdigit())
    return program, core, {name: int(blocks) for blocks, _, name in rows}


def list_suggestions(output: str, prog: str) -> list[str]:
    """Return each command after `next:` once. A continuation line begins with the name of the program."""
    found: dict[str, None] = {}
    for line in output.splitlines():
        begun = re.match(r"^ +(next: )?(?=" + re.escape(prog) + " )", line)
        if begun is not None:
            found[line[begun.end() :]] = None
    return list(found)


def roots(name: str) -> str:
    return f"roots {shell_quoted(name)} --depth 4"


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_shell_parses_suggested_arguments(shell: tuple[str, ...], pictured: tuple[Path, Path, dict[str, int]]) -> None:
    names = [*pictured[2], "main thread's registers", "back\\slash", '"quoted"', "`id`", "a'b\"c\\d", "='s"]
    done = subprocess.run([*shell, "printf '%s\\n' " + " ".join(map(shell_quoted, names))], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == names


@pytest.fixture(scope="module")
def printed(pictured: tuple[Path, Path, dict[str, int]]) -> list[str]:
    """Return the commands that the command line suggests."""
    _, core, _ = pictured
    lines: dict[str, None] = {}
    for words in [*COMMANDS, roots("it's"), roots("g_sessions[abi:cxx11]"), roots("=ls")]:
        done = run_cli(*shlex.split(words), str(core))
        assert done.returncode in (0, 2), done.stderr  # status 2: no managed runtime
        lines.update(dict.fromkeys(list_suggestions(done.stdout, PROG)))
    assert len(lines) >= 10
    return list(lines)


@pytest.mark.parametrize("shell", SHELLS[::2], ids=lambda words: words[0])
def test_on_the_command_line(
    shell: tuple[str, ...], pictured: tuple[Path, Path, dict[str, int]], printed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell parses each line as one command, and findleaks accepts its arguments."""
    _, core, held = pictured
    assert len(held) == 11
    monkeypatch.chdir(core.parent)
    for line in printed:
        read = subprocess.run([*shell, f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True)
        words = read.stdout.split("\0")
        assert (words[:3], words.pop(), read.stderr) == ([sys.executable, "-m", "findleaks"], "", ""), line
        done = run_cli(*words[3:])
        assert (done.returncode, done.stderr) == (0, ""), line


def test_shell_runs_pasted_commands(pictured: tuple[Path, Path, dict[str, int]]) -> None:
    line = " ".join([PROG, roots("it's"), shell_quoted(str(pictured[1]))])
    for shell in SHELLS:
        done = subprocess.run([*shell, line], capture_output=True, text=True, env=environment(), cwd=pictured[1].parent)
        assert (done.returncode, done.stderr) == (0, ""), line
        assert done.stdout


@pytest.mark.parametrize("debugger", [gdb, lldb])
def test_in_a_debugger(debugger: object, pictured: tuple[Path, Path, dict[str, int]]) -> None:
    program, core, held = pictured
    ask = gdb if debugger is gdb else lldb
    arguments = [str(program), str(core)] if debugger is gdb else [str(program), "-c", str(core)]
    every = [f"leaks {words}" for words in COMMANDS if words != "runtime"]
    lines = list_suggestions(ask(every, *arguments), "leaks")
    assert len(lines) >= 8
    from findleaks.commands import Invocation

    named = [Invocation("leaks").line(roots(name)) for name in held]
    output = ask([*(line for line in lines if "map.html" not in line), *named], *arguments)
    assert "error" not in output.replace("heap sound", "")
    assert "Traceback" not in output
    for name, blocks in held.items():
        assert re.search(rf"^ .* {blocks}  {re.escape(name)} \(odd_names, data\)", output, re.M), name
