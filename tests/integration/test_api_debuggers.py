"""`findleaks.current()` in the Python of GDB and LLDB, on a core and on a live process. Its result is valid until the process continues."""

from __future__ import annotations

from pathlib import Path

import building
from debuggers import gdb, lldb

from cores import Running

REQUESTS = 30
ASK = "import findleaks; p = findleaks.current(); print('leaked', p.find().leaked.blocks, p.roots('g_sessions')[0].retained_blocks)"
AGAIN = "try:\n  print('leaked', p.find().leaked.blocks)\nexcept findleaks.TargetError as error:\n  print('refused:', error)"
EXPECTED = "leaked {leaked} {retained}"


program = building.fixture("sessions.c", "-g", "-O1")


running = building.running("10", REQUESTS)


core = building.core()


def answer(running: Running) -> str:
    (retained,) = (line.split()[1] for line in running.output.splitlines() if line.startswith("retained"))
    return f"leaked {2 * REQUESTS} {retained}"


def script(code: str) -> str:
    """Return code of several lines as one expression."""
    return f"exec({code!r})"


def lines(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith(("leaked", "refused"))]


def test_core_in_gdb(program: Path, core: Path, running: Running) -> None:
    assert lines(gdb([f"python {ASK}"], str(program), str(core))) == [answer(running)]


def test_core_in_lldb(program: Path, core: Path, running: Running) -> None:
    assert lines(lldb([f"script {script(ASK)}"], str(program), "-c", str(core))) == [answer(running)]


def test_live_process_in_gdb(running: Running) -> None:
    """A function call in the process changes its memory: objects from before the call raise an error, and a new object reads the new
    state."""
    found = lines(
        gdb(
            [f"python {ASK}", f"python {script(AGAIN)}", "call (int)getpid()", f"python {script(AGAIN)}", f"python {ASK}"],
            "-p",
            str(running.pid),
        )
    )
    again = f"leaked {2 * REQUESTS}"
    assert found == [answer(running), again, "refused: the process has run since findleaks.current(): call it again", answer(running)]


def test_live_process_in_lldb(running: Running) -> None:
    code = [
        f"script {script(ASK)}",
        f"script {script(AGAIN)}",
        "expression -- (int)getpid()",
        f"script {script(AGAIN)}",
        f"script {script(ASK)}",
    ]
    found = lines(lldb([*code, "detach"], "-p", str(running.pid)))
    again = f"leaked {2 * REQUESTS}"
    assert found == [answer(running), again, "refused: the process has run since findleaks.current(): call it again", answer(running)]


def test_no_process(program: Path) -> None:
    ask = "import findleaks\ntry:\n  findleaks.current()\nexcept findleaks.TargetError as error:\n  print('refused:', error)"
    for found in (gdb([f"python {script(ask)}"], str(program)), lldb([f"script {script(ask)}"], str(program))):
        (line,) = lines(found)
        assert "no process or core" in line
