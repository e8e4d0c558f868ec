"""`snapshot` and `diff` in GDB, LLDB and on the command line: between two stops of a process, and on cores, with names and with files."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from debuggers import environment, gdb, lldb, objects, run_cli
from grows import FINDLEAKS, build, counts, go_on
from variants import mark_matrix_except

from cores import Running

Ask = Callable[..., str]
STOPS = {gdb: ["break grown", "run"], lldb: ["breakpoint set -n grown", "run"]}
GO_ON = "continue"
HELD = r"retained by g_sessions \(grows, data\): linked list, {:,} → {:,} nodes"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("a folder's name"))


@pytest.fixture(scope="module")
def cores(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Cores of the same process: after the first round, and after each of two more rounds."""
    with Running([str(program)], tmp_path_factory.mktemp("run")) as running:
        made = []
        for number in range(3):
            if number:
                go_on(running)
            made.append(running.gcore().rename(running.folder / f"core.{number}"))
        yield made


def load_core(ask: Ask, program: Path, core: Path) -> list[str]:
    return [str(program), str(core)] if ask is gdb else [str(program), "-c", str(core)]


def run_debugger(ask: Ask, program: Path, commands: list[str]) -> str:
    """Return the output of the debugger, which runs the program to the end of each round."""
    end = ["kill"] if ask is gdb else ["process kill"]
    if ask is gdb:
        return gdb(["set confirm off", *STOPS[gdb], *commands, *end], "--args", str(program), "3")
    return lldb(["settings set target.run-args 3", *STOPS[lldb], *commands, *end], str(program))


@pytest.mark.parametrize("ask", [gdb, lldb])
def test_between_two_stops(ask: Ask, program: Path) -> None:
    """`diff` reports the growth that the program prints, as a table and as JSON."""
    output = run_debugger(
        ask,
        program,
        ["leaks snapshot first", GO_ON, "leaks diff first", "leaks snapshot", GO_ON, "leaks diff --json", "leaks diff nothing"],
    )
    assert re.search(r"^first: .* resident, \d+ figures$", output, re.M)
    assert re.search(HELD.format(4000, 8000), output)
    assert "next: leaks diff first" in output and "next: leaks diff snapshot1" in output
    (last,) = [json.loads(line) for line in objects(output)]
    assert [one["name"] for one in last["samples"]] == ["first", "snapshot1", "now"]
    (row,) = [row for row in last["grown"] if row["what"] == "root" and row["name"] == "g_sessions (grows, data)"]
    assert row["counts"] == [4000, 8000, 12000]
    assert row["bytes"] == [4000 * 120, 8000 * 120, 12000 * 120]
    assert row["trend"] == "growing"
    assert "no snapshot 'nothing', and no file of that name; the snapshots are: first, snapshot1" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("ask", mark_matrix_except((gdb, lldb), gdb))
def test_names(ask: Ask, program: Path, cores: list[Path], tmp_path: Path) -> None:
    """A second snapshot replaces one of the same name, but a file is not replaced. Without a name, and before any snapshot, the message
    says what to type."""
    file = tmp_path / "kept in a file.snapshot"
    commands = [
        "leaks diff",
        "leaks snapshot one",
        "leaks snapshot 'a name'",
        "leaks snapshot one",
        "leaks diff --json",
        "leaks diff on",
        f'leaks snapshot -o "{file}"',
        f'leaks diff --json "{file}"',
        f'findleaks diff --json "{cores[0]}"',
        "findleaks snapshot two",
        "findleaks diff two",
        "leaks snapshot --every 1 three",
        "leaks snapshot --count 2 three",
        "leaks snapshot -o /nowhere/at/all/x",
        "leaks diff --help",
        "help leaks diff",
        "help leaks snapshot",
    ]
    output = ask(commands, *load_core(ask, program, cores[1]))
    assert "no snapshot was taken; run `leaks snapshot NAME` now, and `leaks diff NAME` at a later stop" in output
    assert "; it replaces the earlier snapshot of this name" in output
    assert 'next: leaks diff "a name"' in output
    names = [[one["name"] for one in json.loads(line)["samples"]] for line in objects(output)]
    assert names == [["a name", "one", "now"], [file.name, "now"], ["core.0", "now"]]
    assert "no snapshot 'on', and no file of that name: did you mean 'one'?" in output
    assert json.loads(run_cli("diff", "--json", str(file), str(cores[1]), check=True).stdout)["total"]["delta"] == 0
    grown = {row["name"]: row["counts"] for row in json.loads(objects(output)[2])["grown"]}
    assert grown["g_sessions (grows, data)"] == [4000, 8000]
    assert "next: findleaks diff two" in output
    assert "--every needs a running process" in output and "--count needs --every" in output
    assert "/nowhere/at/all/x: the snapshot cannot be written: no such file or directory" in output
    assert len(re.findall(r"names\s+of\s+snapshots\s+taken\s+there", output)) == 1
    assert "List what grew between two or more samples" in output and "Save the current figures" in output
    assert "Traceback" not in output


def test_several_inferiors_in_one_gdb(program: Path, cores: list[Path]) -> None:
    """All inferiors share the names of snapshots: a snapshot of one core can be compared with another core. Without a name, `diff` uses
    snapshots of the same program."""
    output = gdb(
        [
            "leaks snapshot before",
            "add-inferior -no-connection",
            "inferior 2",
            f"core-file {cores[2]}",
            "leaks diff --json before",
            "inferior 1",
            "leaks diff --json",
        ],
        str(program),
        str(cores[0]),
    )
    two, same = (json.loads(line) for line in objects(output))
    assert {row["name"]: row["counts"] for row in two["grown"]}["g_sessions (grows, data)"] == [4000, 12000]
    assert two["differences"] == []
    assert same["total"]["delta"] == 0


def test_completion_in_gdb(program: Path, cores: list[Path]) -> None:
    """GDB completes names of snapshots, options, and files."""
    commands = [f"leaks snapshot {name}" for name in ("before-lunch", "beside", '"with a blank"')]
    commands += [f"complete leaks {words}" for words in ("diff be", "diff before-l", "diff --b", "diff --by lo", "watch --e", "diff /pro")]
    output = gdb(commands, str(program), str(cores[0]))
    completed = ["diff before-lunch", "diff beside", "diff before-lunch", "diff --by", "diff --by lost", "watch --every", "diff /proc"]
    assert [line for line in output.splitlines() if line.startswith("leaks ")] == [f"leaks {words}" for words in completed]


def diff_of(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a diff that must be the same in every front end: everything except the names of the samples."""
    return {**answer, "samples": [{**one, "name": ""} for one in answer["samples"]]}


def test_front_ends_agree(program: Path, cores: list[Path], tmp_path: Path) -> None:
    """Snapshots and diffs have the same figures and JSON in each front end, and equal the numbers that the program prints."""
    before, after = cores[0], cores[2]
    line = json.loads(run_cli("diff", "--json", "--exe", str(program), str(before), str(after), check=True).stdout)
    rows = {row["name"]: row for row in line["grown"]}
    assert rows["g_sessions (grows, data)"]["counts"] == [4000, 12000]
    assert rows["40 B"]["counts"] == [3000, 9000]
    saved = str(tmp_path / "saved.snapshot")
    words = ("snapshot", "--json", "-o", saved, "--exe", str(program))
    alone = [json.loads(run_cli(*words, str(core), check=True).stdout) for core in (before, after)]
    for ask in (gdb, lldb):
        load = f"core-file {after}" if ask is gdb else f"target create {shlex.quote(str(program))} -c {shlex.quote(str(after))}"
        output = ask(["leaks snapshot a --json", load, "leaks snapshot b --json", "leaks diff a --json"], *load_core(ask, program, before))
        first, second, found = (json.loads(line) for line in objects(output))
        assert diff_of(found) == diff_of(line)
        for taken, same in zip((first, second), alone, strict=True):
            assert taken["figures"] == same["figures"]
            assert taken["warnings"] == same["warnings"] == []


def list_suggestions(output: str, prog: str) -> list[str]:
    return re.findall(rf"^ +next: ({re.escape(prog)} .*)$", output, re.M)


@pytest.mark.parametrize("words", [("-c",), ("-f", "-c")], ids=["sh", "zsh"])
def test_shell_runs_suggested_commands(words: tuple[str, ...], cores: list[Path], tmp_path: Path) -> None:
    prog, odd = " ".join(map(shlex.quote, FINDLEAKS)), tmp_path / "a core's folder"
    odd.symlink_to(cores[0].parent)
    cores = [odd / core.name for core in cores]
    done = run_cli("diff", *map(str, cores), check=True)
    lines = list_suggestions(done.stdout, prog)
    assert len(lines) >= 2
    for line in lines:
        shell = "sh" if words == ("-c",) else "zsh"
        ended = subprocess.run([shell, *words, line], capture_output=True, text=True, env=environment())
        assert (ended.returncode, ended.stderr) == (0, ""), line
        assert ended.stdout


@pytest.mark.parametrize(
    ("prog", "ask"),
    [
        ("leaks", gdb),
        ("findleaks", lldb),
        *(pytest.param(*one, marks=pytest.mark.matrix) for one in (("leaks", lldb), ("findleaks", gdb))),
    ],
)
def test_debugger_runs_suggested_commands(ask: Ask, prog: str, program: Path, cores: list[Path]) -> None:
    compare = f'{prog} diff "{cores[0]}" "{cores[1]}"'
    lines = list_suggestions(ask([compare], *load_core(ask, program, cores[2])), prog)
    assert len(lines) >= 2
    output = ask(lines, *load_core(ask, program, cores[2]))
    assert "Traceback" not in output and "error" not in output
    assert "g_sessions (grows, data)" in output and "GET /orders/1" in output


def test_truth_of_the_program(program: Path, tmp_path: Path) -> None:
    """The rounds of the program are correct. The other tests depend on the rounds."""
    with Running([str(program), "2"], tmp_path) as running:
        assert counts(running.output) == (8000, 6000)
