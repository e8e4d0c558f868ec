"""Check which debuggers are installed, and whether findleaks loads in them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence

from findleaks.errors import FindleaksError
from findleaks.launcher import gdb_lines, gdb_program, lldb_lines, lldb_program
from findleaks.results.environment import Check
from findleaks.startup_files import startup_file

AREA = "debuggers"
LONGEST = 30  # seconds that a debugger may take to start and load findleaks

_PROBE = (
    "import sys, importlib.util as u; "
    "print('findleaks-probe', '.'.join(map(str, sys.version_info[:3])), 'findleaks' in sys.modules, "
    "*[n for n in ('capstone', 'elftools') if u.find_spec(n) is None])"
)
"""Python code that prints the version of the debugger's Python, whether findleaks is loaded, and
missing libraries."""


def check_debuggers() -> Iterator[Check]:
    """Check whether GDB and LLDB start, load findleaks, and have its libraries."""
    yield from _check("GDB", "gdb", gdb_program, ("-nx", "-batch"), "-ex", gdb_lines, "python ")
    yield from _check("LLDB", "lldb-19", lldb_program, ("--no-lldbinit", "--batch"), "-o", lldb_lines, "script ")


def _check(
    name: str, package: str, find: Callable[[], str], first: Sequence[str], option: str, lines: Callable[[], list[str]], python: str
) -> Iterator[Check]:
    """Check one debugger. `find` returns its program. `lines` returns the commands that load
    findleaks. `option` precedes a command on the command line, and `python` begins a command in
    Python."""
    try:
        program = find()
    except FindleaksError:
        yield Check(AREA, name, "missing", f"not installed; the command line works without {name}", f"apt install {package}")
        return
    words = [program, *first, *(word for line in [*lines(), python + _PROBE] for word in (option, line))]
    yield describe_debugger(name, program, run(words))
    yield _check_startup_file(name)


def run(words: Sequence[str]) -> str:
    """Return the output of a program, including errors; "" if it does not start or takes over
    LONGEST seconds."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LONGEST)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")


def describe_debugger(name: str, program: str, output: str) -> Check:
    """Return the result of the check, from the output of the probe in a debugger."""
    answer = next((line.split()[1:] for line in output.splitlines() if line.startswith("findleaks-probe ")), None)
    if answer is None:
        if "ython" in output and ("not supported" in output or "disabled" in output or "not built" in output):
            remedy = "install a build with Python; or use the command line: findleaks find CORE"
            return Check(AREA, name, "failed", f"{program} is built without Python", remedy)
        return Check(AREA, name, "failed", f"{program} does not start or does not run Python", f"{program} --version")
    python, loaded, *absent = answer
    if loaded != "True":
        return Check(AREA, name, "failed", f"{program}, Python {python}: findleaks does not load", "findleaks init")
    if absent:
        libraries = " and ".join("pyelftools" if one == "elftools" else one for one in absent)
        return Check(AREA, name, "limited", f"{program}, Python {python}, which does not find {libraries}", "findleaks init --install")
    return Check(AREA, name, "ok", f"{program}, Python {python}", "")


def _check_startup_file(name: str) -> Check:
    path = startup_file(name)
    shown = path.replace(os.path.expanduser("~"), "~", 1)
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
    except OSError:
        text = ""
    if "findleaks" in text:
        return Check(AREA, f"{name} start-up file", "ok", f"{shown} loads findleaks", "")
    word = name.lower()
    detail = f"{shown} does not load findleaks; `findleaks {word} …` starts {name} with it"
    return Check(AREA, f"{name} start-up file", "missing", detail, "findleaks init --install")
