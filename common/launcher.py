"""Loads findleaks into a debugger: prints lines for its start-up file, or starts it so."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import NoReturn, TextIO

from findleaks.bootstrap import LIBRARIES, folders, sites
from findleaks.errors import FindleaksError

LLDB_NEWEST, LLDB_OLDEST = 29, 14  # looked for as lldb-N, Debian's only names; 14 has all needed


def loader(front: str) -> str:
    """Path of the file to load into `front` ("gdb" or "lldb")."""
    here = os.path.dirname(os.path.realpath(__file__))
    return os.path.join(folders(here)[f"findleaks.{front}"], f"findleaks_{front}.py")


def print_init(out: TextIO) -> int:
    """Print the lines that load findleaks, for ~/.gdbinit and ~/.lldbinit; returns 0."""
    for debugger, file, lines in (("GDB", "~/.gdbinit", gdb_lines()), ("LLDB", "~/.lldbinit", lldb_lines())):
        out.write("\n".join([f"# For {file}: adds the command `leaks` to {debugger}.", *lines, "", ""]))
    out.write("# Or start them loaded, with no start-up file: `findleaks gdb …`, `findleaks lldb …`.\n")
    return 0


def gdb_lines() -> list[str]:
    """GDB commands that load findleaks, then add folders with the libraries it needs: those that
    belong to findleaks come before."""
    return [gdb_line(), *(f"python {code}" for code in _site_code())]


def lldb_lines() -> list[str]:
    """LLDB commands that load findleaks, then add folders with the libraries it needs."""
    return [lldb_line(), *(f"script {code}" for code in _site_code())]


def _site_code() -> list[str]:
    """Python code per folder of a library that this process has, but a debugger that loads this
    copy lacks: a checkout does not know of its editable install in another environment than
    .venv."""
    here = os.path.dirname(os.path.realpath(__file__))
    known = {os.path.realpath(site) for site in sites(here)}
    found = []
    for library in LIBRARIES:
        spec = find_spec(library)
        site = os.path.realpath(os.path.dirname(os.path.dirname(spec.origin))) if spec is not None and spec.origin else ""
        if site and site not in known:
            known.add(site)
            found.append(f'__import__("runpy").run_path({_literal(os.path.join(here, "bootstrap.py"))})["add_site"]({_literal(site)})')
    return found


def _literal(path: str) -> str:
    """Python literal without backquotes: LLDB evaluates what is between two, in any line."""
    return repr(path).replace("`", "\\x60")


def gdb_line() -> str:
    """GDB command that loads findleaks. The rest of a line is the file's name, with spaces."""
    return f"source {loader('gdb')}"


def lldb_line() -> str:
    """LLDB command that loads findleaks. LLDB splits words as a shell: a path may need quotes."""
    path = loader("lldb")
    if re.search(r"[^\w./+@:,=~%-]", path):
        path = '"' + re.sub(r'(["\\`])', r"\\\1", path) + '"'
    return f"command script import {path}"


def start(front: str, argv: Sequence[str]) -> NoReturn:
    """Replace this process by GDB, or LLDB (`lldb`, else the newest lldb-N), with findleaks and
    these arguments; it handles Ctrl-C and sets the exit status. FindleaksError if there is none."""
    # GDB runs -ex commands in order, after it opened the program and the core, LLDB runs -O
    # commands before. findleaks is loaded first, so that the user's commands can use it.
    program, option, lines = (gdb_program(), "-ex", gdb_lines()) if front == "gdb" else (lldb_program(), "-O", lldb_lines())
    sys.stdout.flush()
    try:
        os.execv(program, [os.path.basename(program), *(word for line in lines for word in (option, line)), *argv])
    except OSError as error:
        raise FindleaksError(f"{program} does not start: {error.strerror}") from None


def gdb_program() -> str:
    """Path of the GDB to start. FindleaksError if there is none."""
    program = shutil.which("gdb")
    if program is None:
        raise FindleaksError("there is no gdb on the PATH: install it (apt install gdb), or use findleaks without: findleaks find CORE")
    return program


def lldb_program() -> str:
    """Path of the LLDB to start. FindleaksError if there is none."""
    for name in ("lldb", *(f"lldb-{version}" for version in range(LLDB_NEWEST, LLDB_OLDEST - 1, -1))):
        program = shutil.which(name)
        if program is not None:
            return program
    raise FindleaksError(
        f"there is no lldb on the PATH, nor lldb-{LLDB_OLDEST} to lldb-{LLDB_NEWEST}: "
        "install one (apt install lldb-19), or use findleaks without: findleaks find CORE"
    )
