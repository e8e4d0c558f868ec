"""Words in registers and below stack pointers are references if, and only if, the thread will read them again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import truth
from debuggers import run_cli
from variants import mark_matrix_except

import cores

FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-Wl,-z,now")
"""Symbols are bound at start. Otherwise ld.so would overwrite memory below the stack pointer when a function is first called."""


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
    """Check that every block that the program prints has the printed state."""
    wanted = {int(address, 16): word for word, address in (line.split() for line in running.output.splitlines() if " " in line)}
    blocks, warnings = truth.ask(*where)
    kinds = {int(block["address"], 16): block["kind"] for block in blocks if block["state"] == "in-use"}
    found = {address: {"reachable": "held", "definite": "lost"}.get(kinds[address], kinds[address]) for address in wanted}
    assert found == wanted, {hex(address): (word, found[address]) for address, word in wanted.items() if found[address] != word}
    assert warnings == []


@pytest.mark.platform("x86-64", "dead registers")
@pytest.mark.parametrize("how", ["live", "kernel", "gcore"])
@pytest.mark.parametrize("threads", mark_matrix_except([0, 2], 2))
def test_stale_words_are_no_references(build, tmp_path: Path, how: str, threads: int) -> None:
    with cores.Running([str(build("leftovers")), str(threads)], tmp_path) as running:
        check(running, picture(running, how))


@pytest.mark.parametrize("how", mark_matrix_except(["live", "kernel", "gcore"], "live", "kernel"))
@pytest.mark.parametrize("stack", ["own", "alternate"])
def test_a_signal_interrupts_a_leaf_function(build, tmp_path: Path, how: str, stack: str) -> None:
    with cores.Running([str(build("interrupted")), stack], tmp_path) as running:
        check(running, picture(running, how))


@pytest.mark.platform("x86-64", "dead words of frames")
@pytest.mark.parametrize(("how", "function"), [("live", "plain"), ("kernel", "plain"), ("live", "address")])
def test_dead_words_of_frames_are_no_references(build, tmp_path: Path, how: str, function: str) -> None:
    """Words that the function will read again are references. If the function has passed on the address of one word, all words of the frame
    are references."""
    with cores.Running([str(build("slots")), function], tmp_path) as running:
        lost = [line.split()[1] for line in running.output.splitlines() if line.startswith("lost")]
        where = picture(running, how)
        check(running, where)
        for address in lost[:1]:
            found = json.loads(run_cli("refs", "--json", address, *where, check=True).stdout)["references"]
            assert [(one["live"], one["why"]) for one in found if "address" in one] == [
                (False, f"in a frame of thread 1 (tid {running.pid}), not read again")
            ]


def test_refs_names_dead_words(build, tmp_path: Path) -> None:
    with cores.Running([str(build("leftovers"))], tmp_path) as running:
        lost = [line.split()[1] for line in running.output.splitlines() if line.startswith("lost")]
        where = picture(running, "live")

        def refs(address: str) -> dict:
            return json.loads(run_cli("refs", "--json", address, *where, check=True).stdout)

        vector, below = refs(lost[3]), refs(lost[30])
        text = run_cli("refs", lost[3], *where, check=True).stdout
    assert vector["live"] == below["live"] == 0
    assert {(one["register"], one["why"]) for one in vector["references"] if "register" in one} == {("xmm3", "not read again")}
    assert "dead register xmm3" in text
    whys = [one["why"] for one in below["references"] if "why" in one]
    assert whys == [f"below the stack pointer of thread 1 (tid {running.pid}), not read again"]


def test_all_words_are_references_without_capstone(build, tmp_path: Path) -> None:
    """Without capstone, dead words are treated as roots, and the result says so."""
    hidden = "import sys; sys.modules['capstone'] = None; from findleaks.cli import main; sys.exit(main(sys.argv[1:]))"
    with cores.Running([str(build("leftovers"))], tmp_path) as running:
        command = [sys.executable, "-c", hidden, "find", "--json", *picture(running, "live")]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    lost = sum(line.startswith("lost") for line in running.output.splitlines())
    assert found["totals"]["definite"]["blocks"] < lost
    assert [
        warning for warning in found["warnings"] if warning.startswith("every register counts as still in use") and "capstone" in warning
    ]


IMPORTS = "import sys; from findleaks.cli import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"

IN_ONE_SESSION = """
import io, json, sys
from findleaks.commands import execute
from findleaks.session import Session
from findleaks.target.core import open_core
session = Session(open_core(sys.argv[1]))
answers = []
for words in json.load(sys.stdin):
    out = io.StringIO()
    execute(lambda: session, [*words, "--json"], out)
    answers.append(json.loads(out.getvalue()))
print(json.dumps(answers))
"""


def answers(core: Path, commands: list[list[str]], **more: str) -> list[dict]:
    """Return the results of these commands on the core, in this order, in one session."""
    done = subprocess.run(
        [sys.executable, "-c", IN_ONE_SESSION, str(core)],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **more},
    )
    return json.loads(done.stdout)


def list_imports(core: Path) -> list[str]:
    """The modules that `find` imports without the types of debug information."""
    words = [sys.executable, "-c", IMPORTS, "find", "--no-debug-types", str(core)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stderr.split()


@pytest.mark.parametrize("how", ["kernel", "gcore"])
def test_code_is_read_if_only_a_register_refers_to_a_block(build, tmp_path: Path, how: str) -> None:
    with cores.Running([str(build("reread"))], tmp_path) as running:
        (core,) = picture(running, how)
        known = dict(line.split() for line in running.output.splitlines() if " " in line)
    blocks, warnings = truth.ask(core)
    kinds = {hex(int(block["address"], 16)): block["kind"] for block in blocks}
    assert {name: kinds[address] for name, address in known.items()} == {
        "held": "reachable",
        "lost": "definite",
        "second": "reachable",
        "third": "reachable",
    }
    assert warnings == []
    assert "capstone" in list_imports(Path(core))


def test_code_is_not_read_for_blocks_with_other_references(build, tmp_path: Path) -> None:
    """`find` does not import modules that it does not need. `find` reads no code here, and later commands still give the same results."""
    with cores.Running([str(build("reread")), "known"], tmp_path) as running:
        core = running.gcore()
        known = dict(line.split() for line in running.output.splitlines() if " " in line)
    modules = list_imports(core)
    assert "findleaks.engine.native.engine" in modules
    assert [name for name in modules if name.startswith(("capstone", "elftools", "findleaks.engine.reference"))] == []
    commands = [["find"], *([word, address] for word in ("path", "refs", "whatis") for address in known.values()), ["roots"], ["find"]]
    apart = [answers(core, [words])[0] for words in commands]
    assert apart[0]["totals"]["definite"]["blocks"] == 0
    assert answers(core, commands) == apart
    assert answers(core, commands, FINDLEAKS_PURE="1") == apart
    second, third, of_second, of_third = apart[1:5]
    assert (second["blocks"], third["blocks"]) == (1, 2)
    assert "register" in third["path"][0]["from"]
    assert (of_second["live"], of_third["live"]) == (3, 1)
