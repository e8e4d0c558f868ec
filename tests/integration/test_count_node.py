"""`count` on a Node that leaks handles because a handle scope is missing, and on the repaired Node: it shows the stack that creates the
leaked handles."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nodes
import pytest
import truth
from counts import until
from debuggers import findleaks, gdb, lldb, objects, run_cli
from variants import mark_matrix_except

SCRIPT = truth.PROGRAMS / "node_forever.js"
WORDS = ("count", "node::MakeCallback", "--outside-scope", "v8", "--events", "800", "--json")
GUILTY = ["node::MakeCallback", "node::HandleWrap::OnClose", "uv_run", "node::Start"]


def list_functions(stack: Any) -> list[str]:
    """Return the names of the functions of a stack, without inlined functions, because only Node's debug information contains inlined
    functions."""
    return [frame["function"].split("(")[0] for frame in stack["frames"] if not frame.get("inlined")]


def count_fired(folder: Path) -> int:
    text = (folder / "fired").read_text() if (folder / "fired").exists() else ""
    return int(text or 0)


@pytest.fixture(params=mark_matrix_except(["0.10.21", "0.10.22"], "0.10.21"))
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, int, Path]]:
    with subprocess.Popen([nodes.get(request.param), str(SCRIPT)], cwd=tmp_path, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield request.param, process.pid, tmp_path
        finally:
            process.kill()


def table(output: str) -> dict[str, Any]:
    (line,) = objects(output)
    made: dict[str, Any] = json.loads(line)
    return made


def guilty_alone(found: dict[str, Any], version: str, least: int) -> None:
    """Check that the bad release has exactly one complete stack with more than `least` calls, the leaking one, and that the repaired
    release has none."""
    if version == "0.10.22":
        assert (found["matched"], found["stacks"]) == (0, [])
        return
    (stack,) = found["stacks"]
    assert stack["complete"]
    assert list_functions(stack)[:4] == GUILTY
    assert stack["frames"][-1]["function"] == "_start"
    assert least < stack["count"] == found["matched"] < found["events"]


def timers_go_on(folder: Path) -> None:
    before = count_fired(folder)
    until(lambda: count_fired(folder) > before, "another timer")


def test_the_one_guilty_stack(node: tuple[str, int, Path]) -> None:
    version, pid, folder = node
    inside = "leaks " + " ".join(WORDS)
    outputs = [findleaks(*WORDS, "--pid", str(pid)), lldb([inside, "detach"], "-p", str(pid))]
    if version == "0.10.22":  # the matrix tests LLDB; the command line uses GDB
        outputs.append(gdb([inside], "-p", str(pid)))
    for output in outputs:
        found = table(output)
        assert (found["events"], found["end"]) == (800, "asked")
        guilty_alone(found, version, 100)
    timers_go_on(folder)


def test_the_stub_finds_the_guilty_stack(node: tuple[str, int, Path]) -> None:
    """Count with the injected stub, in GDB and then from the command line, 20 times as many calls in the same time."""
    version, pid, folder = node
    words = (*WORDS[:-2], "8000", "--json", "--inject")
    for output in (findleaks(*words, "--pid", str(pid)), gdb(["leaks " + " ".join(words)], "-p", str(pid))):
        found = table(output)
        assert (found["events"], found["end"], found["engine"]) == (8000, "asked", "inject")
        assert (found["stack_table_full"], found["undecided"], found["warnings"]) == (0, 0, [])
        guilty_alone(found, version, 1000)
    timers_go_on(folder)


def test_timers_are_counted_without_the_rule(node: tuple[str, int, Path]) -> None:
    _, pid, _ = node
    done = run_cli("count", "node::MakeCallback", "--events", "800", "--folded", "--pid", str(pid), check=True)
    lines = [line.rpartition(" ") for line in done.stdout.splitlines()]
    assert sum(int(count) for _, _, count in lines) == 800
    assert any("node::HandleWrap::OnClose;node::MakeCallback" in stack for stack, _, _ in lines)
    assert any("OnTimeout;node::MakeCallback" in stack for stack, _, _ in lines)


def test_thread_specific_data_of_a_late_key(tmp_path: Path) -> None:
    """If the key of thread-specific data is large, the pointer to the isolate is in a second table."""
    command = [nodes.get("0.10.21"), str(SCRIPT)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, env=nodes.late_key(tmp_path)) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            found = table(findleaks(*WORDS, "--pid", str(process.pid)))
        finally:
            process.kill()
    assert 100 < found["matched"] < 800
    (stack,) = found["stacks"]
    assert list_functions(stack)[:4] == GUILTY
