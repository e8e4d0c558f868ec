"""What threads have in registers and below their stack pointers holds blocks if, and only if, they will read it again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import truth
from debuggers import ran

import cores

FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-Wl,-z,now")
"""Bound at start: ld.so would overwrite what is below the stack pointer when a function is called for the first time."""


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("programs")

    def build(name: str, *flags: str) -> Path:
        output = folder / "-".join([name, *(flag.strip("-") for flag in flags)])
        if not output.exists():
            subprocess.run(["gcc", *FLAGS, *flags, "-o", str(output), str(truth.PROGRAMS / f"{name}.c"), "-pthread"], check=True)
        return output

    return build


def picture(running: cores.Running, how: str) -> list[str]:
    return ["--pid", str(running.pid)] if how == "live" else [str(running.kernel_core() if how == "kernel" else running.gcore())]


def check(running: cores.Running, where: list[str]) -> None:
    """Every block that the program names is what it says; none is missing."""
    wanted = {int(address, 16): word for word, address in (line.split() for line in running.output.splitlines() if " " in line)}
    blocks, warnings = truth.ask(*where)
    kinds = {int(block["address"], 16): block["kind"] for block in blocks if block["state"] == "in-use"}
    found = {address: {"reachable": "held", "definite": "lost"}.get(kinds[address], kinds[address]) for address in wanted}
    assert found == wanted, {hex(address): (word, found[address]) for address, word in wanted.items() if found[address] != word}
    assert warnings == []


@pytest.mark.parametrize("how", ["live", "kernel", "gcore"])
@pytest.mark.parametrize("threads", [0, 2])
def test_leftovers_hold_nothing(build, tmp_path: Path, how: str, threads: int) -> None:
    with cores.Running([str(build("leftovers")), str(threads)], tmp_path) as running:
        check(running, picture(running, how))


@pytest.mark.parametrize("how", ["live", "kernel", "gcore"])
@pytest.mark.parametrize("stack", ["own", "alternate"])
def test_a_signal_interrupts_a_leaf_function(build, tmp_path: Path, how: str, stack: str) -> None:
    with cores.Running([str(build("interrupted")), stack], tmp_path) as running:
        check(running, picture(running, how))


def test_refs_tell_what_is_not_read_again(build, tmp_path: Path) -> None:
    with cores.Running([str(build("leftovers"))], tmp_path) as running:
        lost = [line.split()[1] for line in running.output.splitlines() if line.startswith("lost")]
        where = picture(running, "live")

        def refs(address: str) -> dict:
            return json.loads(ran("refs", "--json", address, *where, check=True).stdout)

        vector, below = refs(lost[3]), refs(lost[30])
        text = ran("refs", lost[3], *where, check=True).stdout
    assert vector["live"] == below["live"] == 0
    assert {(one["register"], one["why"]) for one in vector["references"] if "register" in one} == {("xmm3", "not read again")}
    assert "dead register xmm3" in text
    whys = [one["why"] for one in below["references"] if "why" in one]
    assert whys == [f"below the stack pointer of thread 1 (tid {running.pid}), not read again"]


def test_without_capstone_everything_holds(build, tmp_path: Path) -> None:
    """Leftovers are roots then, and the answer says so."""
    hidden = "import sys; sys.modules['capstone'] = None; from findleaks.cli import main; sys.exit(main(sys.argv[1:]))"
    with cores.Running([str(build("leftovers"))], tmp_path) as running:
        command = [sys.executable, "-c", hidden, "find", "--json", *picture(running, "live")]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    lost = sum(line.startswith("lost") for line in running.output.splitlines())
    assert found["totals"]["definite"]["blocks"] < lost
    assert [
        warning for warning in found["warnings"] if warning.startswith("every register counts as still in use") and "capstone" in warning
    ]
