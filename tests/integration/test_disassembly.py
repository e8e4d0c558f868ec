"""What findleaks derives from machine code of the program is the same in GDB, in LLDB and on the command line, whether or not breakpoints
are set in the code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import mallocs_python
import nodes
import pytest
import rubies
import truth
from debuggers import findleaks, gdb, lldb, objects
from variants import mark_matrix_except

from cores import Running
from findleaks.disasm.capstone_loader import CAPSTONE_MISSING
from findleaks.runtimes import gil
from findleaks.runtimes.v8.layout import COUNT, CURRENT, ENTER
from findleaks.target.core import open_core

COMMANDS = ("scopes", "runtime")
INSIDE = [f"leaks {command} --json" for command in COMMANDS]
SCOPES = INSIDE[0]
WITHOUT_CAPSTONE = """
import sys; sys.modules["capstone"] = None
from findleaks.cli import main
for command in ("scopes", "runtime", "find"):
    print("-- next", flush=True)
    main([command, "--json", sys.argv[1]])
"""
OLDER = [version for version in nodes.VERSIONS if version != nodes.NEWEST]


def answers(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in objects(output)]


def answer(output: str) -> dict[str, Any]:
    (found,) = answers(output)
    return found


def start_nested(folder: Path, version: str) -> Running:
    addon = folder / "counts.node"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", addon, truth.PROGRAMS / "node_counts.c"], check=True)
    return Running([nodes.get(version), str(truth.PROGRAMS / "node_nested.js"), str(addon)], folder / "run")


@pytest.mark.matrix
@pytest.mark.parametrize("version", [nodes.NEWEST, *OLDER])
def test_code_of_node(version: str, tmp_path: Path) -> None:
    """findleaks derives the places of handles, scopes, global handles and V8's heap from Node's code in a core.
    test_breakpoints_are_not_code uses a live process."""
    program = nodes.get(version)
    with start_nested(tmp_path, version) as running:
        output, core = running.output, str(running.kernel_core())
    here = [answer(findleaks(command, "--json", core)) for command in COMMANDS]
    assert f"handles {here[0]['isolates'][0]['handles']}\n" in output
    assert here[0]["isolates"][0]["globals"]["handles"] > 0
    assert answers(gdb(INSIDE, program, core)) == here
    assert answers(lldb(INSIDE, program, "-c", core)) == here
    done = subprocess.run([sys.executable, "-c", WITHOUT_CAPSTONE, core], capture_output=True, text=True)
    assert done.stderr.count("Traceback") == 0
    assert [line.count(CAPSTONE_MISSING) >= 1 for line in done.stdout.split("-- next")[1:]] == [True] * 3


@pytest.mark.parametrize("version", mark_matrix_except(("8.17.0", nodes.NEWEST), nodes.NEWEST))
def test_breakpoints_are_not_code(version: str, tmp_path: Path) -> None:
    """Debuggers write breakpoints into the code. findleaks reads the original code."""
    with start_nested(tmp_path, version) as running:
        pid = str(running.pid)
        here = answer(findleaks("scopes", "--json", "--pid", pid))
        listed = subprocess.run(["nm", nodes.get(version)], capture_output=True, text=True, check=True).stdout
        places = [words[0] for words in map(str.split, listed.splitlines()) if words[-1] in (*COUNT, *ENTER, *CURRENT)]
        assert len(places) >= 3
        each = [int(place, 16) for place in places]
        bytes_ = f"with open('/proc/{pid}/mem', 'rb') as file: print('at', [file.seek(place) and file.read(1).hex() for place in {each}])"
        there = f"at {['cc'] * len(places)}"
        breaks = ["set breakpoint always-inserted on", *(f"break *0x{place}" for place in places)]
        reported = gdb([*breaks, f"python exec({bytes_!r})", SCOPES], "-p", pid)
        assert there in reported
        assert answer(reported) == here
        breaks = [f"breakpoint set -a 0x{place}" for place in places]
        reported = lldb([*breaks, f"script exec({bytes_!r})", SCOPES], "-p", pid)
        assert there in reported
        assert answer(reported) == here


PYTHONS = ["3.11", *(pytest.param(version, marks=pytest.mark.matrix) for version in mallocs_python.SUITES if version != "3.11")]


@pytest.mark.parametrize("version", PYTHONS)
def test_code_of_python(version: str, tmp_path: Path) -> None:
    """findleaks finds the lock of the interpreter from its code."""
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
    assert f"lock {expected}\n" in gdb([f"python {of_gdb}"], exe, image)
    context = "lldb.SBExecutionContext(lldb.debugger.GetSelectedTarget())"
    of_lldb = f"from findleaks.lldb.target import subject; {asked.format(f'subject(lldb.debugger, {context}, None)')}"
    assert f"lock {expected}\n" in lldb([f"script {of_lldb}"], exe, "-c", image)


@pytest.mark.parametrize(
    "version", [rubies.SYSTEM, *(pytest.param(one, marks=pytest.mark.matrix) for one in rubies.READ if one != rubies.SYSTEM)]
)
def test_code_of_ruby(version: str, tmp_path: Path) -> None:
    """findleaks finds the heap and its counters from the code."""
    with rubies.Pausing(version, truth.PROGRAMS / "ruby_objects.rb", tmp_path) as program:
        program.go(2)
        image = str(program.kernel_core())
    exe = rubies.get(version).words[0]
    words = ["runtime", "--only", "ruby", "--json"]
    here = answer(findleaks(*words, image))
    assert here["runtimes"][0]["counters"]["TOTAL"] > 0
    assert answer(gdb([f"leaks {' '.join(words)}"], exe, image)) == here
    assert answer(lldb([f"leaks {' '.join(words)}"], exe, "-c", image)) == here
