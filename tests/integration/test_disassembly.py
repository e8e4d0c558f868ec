"""In GDB and LLDB the debugger's disassembler reads the code that facts are derived from. Our own decoder is put out of action there, so
that an answer, which has to be the command line's, is the debugger's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import debuggers_matrix
import mallocs_python
import nodes
import pytest
import rubies
import truth
from debuggers import ROOT, findleaks, gdb, lldb, objects

from cores import Running
from findleaks.runtimes import gil
from findleaks.runtimes.v8.layout import COUNT, CURRENT, ENTER
from findleaks.target.core import open_core

BROKEN = "from findleaks.runtimes.v8 import listing; listing.decode = None"
"""Python: from now on there is no decoder but the debugger's."""

NO_DECODER = "a mistake in findleaks"
"""What is told of it where it is asked for all the same."""

COMMANDS = ("scopes", "runtime")
INSIDE = [f"leaks {command} --json" for command in COMMANDS]
SCOPES = INSIDE[0]
READINGS = ROOT / "tests" / "support" / "inside.py"
LATE = [version for version in nodes.VERSIONS if version not in ("0.10.21", "0.10.22", nodes.NEWEST)]


def answers(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in objects(output)]


def answer(output: str) -> dict[str, Any]:
    (found,) = answers(output)
    return found


def in_gdb(commands: Sequence[str], *where: str) -> str:
    return gdb([f"python {BROKEN}", *commands], *where)


def in_lldb(commands: Sequence[str], *where: str) -> str:
    return lldb([f"script {BROKEN}", *commands], *where)


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options by which LLDB keeps the index of Node's symbols, which takes it longer than all that is asked of it."""
    folder = tmp_path_factory.mktemp("index")
    settings = [f"symbols.lldb-index-cache-path {folder}", "symbols.enable-lldb-index-cache true"]
    return [word for setting in settings for word in ("-O", f"settings set {setting}")]


def nested(folder: Path, version: str) -> Running:
    addon = folder / "counts.node"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", addon, truth.PROGRAMS / "node_counts.c"], check=True)
    return Running([nodes.get(version), str(truth.PROGRAMS / "node_nested.js"), str(addon)], folder / "run")


@pytest.mark.parametrize("version", ["0.10.21", "0.10.22", nodes.NEWEST, *(pytest.param(one, marks=pytest.mark.matrix) for one in LATE)])
def test_nodes_own_code(version: str, indexed: list[str], tmp_path: Path) -> None:
    """Handles, scopes by their functions' code, global handles and V8's heap, of each version: live and in a core."""
    program = nodes.get(version)
    with nested(tmp_path, version) as running:
        pid = str(running.pid)
        here = [answer(findleaks(command, "--json", "--pid", pid)) for command in COMMANDS]
        assert f"handles {here[0]['isolates'][0]['handles']}\n" in running.output
        assert here[0]["isolates"][0]["globals"]["handles"] > 0
        assert answers(in_gdb(INSIDE, "-p", pid)) == here
        assert answers(in_lldb(INSIDE, *indexed, "-p", pid)) == here
        core = str(running.kernel_core())
    here = [answer(findleaks(command, "--json", core)) for command in COMMANDS]
    assert answers(in_gdb(INSIDE, program, core)) == here
    assert answers(in_lldb(INSIDE, *indexed, program, "-c", core)) == here


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The newest Node, and its core."""
    folder = tmp_path_factory.mktemp("node")
    with nested(folder, nodes.NEWEST) as running:
        made = running.kernel_core()
    yield nodes.get(nodes.NEWEST), str(made)
    made.unlink()


def agrees(found: dict[str, Any]) -> None:
    assert (found["refused"], found["differing"]) == (0, [])
    assert found["functions"] > 300
    assert found["seen"] > 20_000
    assert found["whole"] > 18_000


def test_both_readings_of_the_same_code(core: tuple[str, str], indexed: list[str]) -> None:
    """The debugger's and our decoder's, of thousands of instructions of V8 and of libc."""
    program, image = core
    agrees(answer(gdb([f"source {READINGS}"], program, image)))
    agrees(answer(lldb([f"command script import {READINGS}"], *indexed, program, "-c", image)))


GDB_SETTINGS = ("set disassembly-flavor intel", "set print asm-demangle on", "set print symbol-filename on", "set output-radix 16")
LLDB_SETTINGS = (
    "settings set target.x86-disassembly-flavor intel",
    "settings set target.use-hex-immediates false",
    "settings set target.hex-immediate-style asm",
)


@pytest.mark.matrix
@pytest.mark.parametrize("name", debuggers_matrix.SUITES)
def test_both_readings_in_other_debuggers(name: str, core: tuple[str, str]) -> None:
    program, image = core
    debugger = debuggers_matrix.get(name)
    script = f"source {READINGS}" if debugger.is_gdb else f"command script import {READINGS}"
    for setting in ("", *(GDB_SETTINGS if debugger.is_gdb else LLDB_SETTINGS)):
        agrees(answer(debugger.run([*([setting] if setting else []), script], exe=program, core=image)))


def test_whatever_the_user_has_set(core: tuple[str, str], indexed: list[str]) -> None:
    """The flavor is the user's again afterwards."""
    program, image = core
    here = answer(findleaks("scopes", "--json", image))
    told = in_gdb([*GDB_SETTINGS, SCOPES, "show disassembly-flavor"], program, image)
    assert answer(told) == here
    assert 'The disassembly flavor is "intel".' in told
    told = in_lldb([*LLDB_SETTINGS, SCOPES, "settings show target.x86-disassembly-flavor"], *indexed, program, "-c", image)
    assert answer(told) == here
    assert "= intel" in told


def test_gdb_without_the_program(core: tuple[str, str]) -> None:
    """It finds it by the core's own notes."""
    program, image = core
    assert answer(in_gdb(["file", SCOPES], program, image)) == answer(findleaks("scopes", "--json", image))


def test_gdb_set_to_another_architecture(core: tuple[str, str]) -> None:
    """Then our decoder reads: so it is asked for, and without it there is no answer."""
    program, image = core
    setting = "set architecture i386:x64-32"
    assert answer(gdb([setting, SCOPES], program, image)) == answer(findleaks("scopes", "--json", image))
    assert NO_DECODER in in_gdb([setting, SCOPES], program, image)


def test_code_of_another_file(core: tuple[str, str]) -> None:
    """What GDB has of a core's code may be from a file that is not the core's: it is not asked of bytes that it has not."""
    program, image = core
    with open_core(image) as target:
        symbol = target.symbol(COUNT[0])
    assert symbol is not None
    script = f"""
from findleaks.gdb.target import subject
target = subject().open()
code = target.read({symbol.address}, {symbol.size})
print("same", [target.disassembler({symbol.address}, one) is not None for one in (code, code[:-1] + bytes(1))])
"""
    assert "same [True, False]" in gdb([f"python exec({script!r})"], program, image)


def test_breakpoints_are_not_code(indexed: list[str], tmp_path: Path) -> None:
    """Debuggers write them into the process, and read it without them."""
    with nested(tmp_path, nodes.NEWEST) as running:
        pid = str(running.pid)
        here = answer(findleaks("scopes", "--json", "--pid", pid))
        listed = subprocess.run(["nm", nodes.get(nodes.NEWEST)], capture_output=True, text=True, check=True).stdout
        places = [words[0] for words in map(str.split, listed.splitlines()) if words[-1] in (*COUNT, *ENTER, *CURRENT)]
        assert len(places) >= 3
        each = [int(place, 16) for place in places]
        bytes_ = f"with open('/proc/{pid}/mem', 'rb') as file: print('at', [file.seek(place) and file.read(1).hex() for place in {each}])"
        there = f"at {['cc'] * len(places)}"
        breaks = ["set breakpoint always-inserted on", *(f"break *0x{place}" for place in places)]
        told = in_gdb([*breaks, f"python exec({bytes_!r})", SCOPES], "-p", pid)
        assert there in told
        assert answer(told) == here
        breaks = [f"breakpoint set -a 0x{place}" for place in places]
        told = in_lldb([*breaks, f"script exec({bytes_!r})", SCOPES], *indexed, "-p", pid)
        assert there in told
        assert answer(told) == here


PYTHONS = ["3.11", *(pytest.param(version, marks=pytest.mark.matrix) for version in mallocs_python.SUITES if version != "3.11")]


@pytest.mark.parametrize("version", PYTHONS)
def test_pythons_own_code(version: str, tmp_path: Path) -> None:
    """Where the interpreter's lock is."""
    python = mallocs_python.get(version)
    program = tmp_path / "waits.py"
    program.write_text("print('ready', flush=True)\nimport time\ntime.sleep(600)\n")
    with Running(python.command(str(program)), tmp_path / "run", python.environment()) as running:
        exe = str(Path(f"/proc/{running.pid}/exe").resolve())
        image = str(running.kernel_core())
    with open_core(image) as target:
        expected = gil.derive(target)
    assert expected is not None
    asked = "from findleaks.runtimes import gil; print('lock', gil.derive({}.open()))"
    of_gdb = f"from findleaks.gdb.target import subject; {asked.format('subject()')}"
    assert f"lock {expected}\n" in in_gdb([f"python {of_gdb}"], exe, image)
    context = "lldb.SBExecutionContext(lldb.debugger.GetSelectedTarget())"
    of_lldb = f"from findleaks.lldb.target import subject; {asked.format(f'subject(lldb.debugger, {context}, None)')}"
    assert f"lock {expected}\n" in in_lldb([f"script {of_lldb}"], exe, "-c", image)


@pytest.mark.parametrize(
    "version", [rubies.SYSTEM, *(pytest.param(one, marks=pytest.mark.matrix) for one in rubies.SUITES if one != rubies.SYSTEM)]
)
def test_rubys_own_code(version: str, tmp_path: Path) -> None:
    """Where the heap and its counters are."""
    with rubies.Pausing(version, truth.PROGRAMS / "ruby_objects.rb", tmp_path) as program:
        program.go(2)
        image = str(program.kernel_core())
    exe = rubies.get(version).words[0]
    words = ["runtime", "--only", "ruby", "--json"]
    here = answer(findleaks(*words, image))
    assert here["runtimes"][0]["counters"]["TOTAL"] > 0
    assert answer(in_gdb([f"leaks {' '.join(words)}"], exe, image)) == here
    assert answer(in_lldb([f"leaks {' '.join(words)}"], exe, "-c", image)) == here
