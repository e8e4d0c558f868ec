"""Stacks of coroutines whose handles are lost, even if their outermost frames are large; other memory with code addresses is no stack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import building
import pytest
from debuggers import gdb, lldb, objects, run_cli
from variants import mark_matrix_except

import cores

COUNT = 40
SIZE = 256 << 10
FUNCTIONS = {
    "context": "serve_large",
    "direct": "serve_direct",
    "switched": "run_switched",
    "nested": "run_switched",
    "small": "serve_small",
    "fresh": "",
}


@pytest.fixture(scope="module", params=mark_matrix_except(("-O0", "-O1", "-O2", "i386 -O0", "i386 -O1"), "-O0", "-O1", "i386 -O1"))
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    *machine, level = request.param.split()
    compiler = "i686-linux-gnu-gcc" if machine else ""
    return building.compile_program(tmp_path_factory.mktemp("program"), "coroutine_stacks.c", "-std=gnu11", level, compiler=compiler)


def find(*words: str) -> dict[str, Any]:
    return json.loads(run_cli("find", "--json", *words).stdout)


def mappings(body: dict[str, Any], which: str = "mappings") -> int:
    return int(body.get(which, {"blocks": 0})["blocks"])


def list_types(*words: str) -> set[str]:
    """Return the types of the blocks that are mappings of the program."""
    rows = [json.loads(line) for line in run_cli("blocks", "--allocator", "mmap", "--json", *words).stdout.splitlines()[:-1]]
    starts = [row["address"] for row in rows if row["size"] == SIZE]
    answers = json.loads(run_cli("whatis", *starts[:4], "--json", *words).stdout)["answers"]
    return {answer["block"]["type"] for answer in answers}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_stacks_with_lost_handles(kind: str, program: Path, tmp_path: Path) -> None:
    with cores.Running([str(program), kind], tmp_path / "run") as running:
        lost, words = int(running.output.split()[1]), ["--pid", str(running.pid)]
        body, types = find(*words), list_types(*words)
    # Stale words may refer to a few of them.
    assert lost == COUNT - 1 and lost - 2 <= mappings(body) <= lost
    assert mappings(body, "possible_mappings") == 0
    assert types == {f"anonymous mapping with a stack of {FUNCTIONS[kind]}" if FUNCTIONS[kind] else "anonymous mapping"}


def test_stacks_with_handles(program: Path, tmp_path: Path) -> None:
    with cores.Running([str(program), "held"], tmp_path / "run") as running:
        body = find("--pid", str(running.pid))
    assert mappings(body) == body["totals"]["definite"]["blocks"] == 0


@pytest.mark.parametrize("kind", ["callbacks", "returns", "traces"])
def test_code_addresses_in_other_memory(kind: str, program: Path, tmp_path: Path) -> None:
    """The mappings are in a row. Therefore they may be the parts of a reservation, unless they are stacks."""
    with cores.Running([str(program), kind], tmp_path / "run") as running:
        words = ["--pid", str(running.pid)]
        body, types = find(*words), list_types(*words)
    assert mappings(body, "possible_mappings") > mappings(body)
    assert types and not [one for one in types if "with a stack of" in one]


@pytest.mark.parametrize("kind", ["context", "switched"])
def test_front_ends_agree(kind: str, program: Path, tmp_path: Path) -> None:
    with cores.Running([str(program), kind], tmp_path / "run") as running:
        core = str(running.gcore())
    body, verdict = find(core), json.loads(run_cli("verdict", "--json", core).stdout)
    assert COUNT - 3 <= mappings(body) <= COUNT - 1
    finding = next(one for one in verdict["findings"] if one["finding"] == "leaked-mappings")
    assert "These are stacks of coroutines whose handles were lost" in finding["cause"]
    for other in (gdb(["leaks find --json"], str(program), core), lldb(["leaks find --json"], str(program), "-c", core)):
        answer = json.loads(objects(other)[0])
        assert (answer["groups"], answer["mappings"], answer["totals"]) == (body["groups"], body["mappings"], body["totals"])
