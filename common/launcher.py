"""Load findleaks into a debugger: print lines for its start-up file, or start it with findleaks."""

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

# Versions that are tried as lldb-N. Debian has only these names, and 14 is the oldest supported
# version.
LLDB_NEWEST, LLDB_OLDEST = 29, 14


def loader_path(front: str) -> str:
    """Return the path of the file to load into `front` ("gdb" or "lldb")."""
    here = os.path.dirname(os.path.realpath(__file__))
    return os.path.join(folders(here)[f"findleaks.{front}"], f"findleaks_{front}.py")


def print_init(out: TextIO) -> int:
    """Print the lines that load findleaks, for ~/.gdbinit and ~/.lldbinit. Returns 0."""
    for debugger, file, lines in (("GDB", "~/.gdbinit", gdb_lines()), ("LLDB", "~/.lldbinit", lldb_lines())):
        out.write("\n".join([f"# For {file}: adds the command `leaks` to {debugger}.", *lines, "", ""]))
    out.write("# To start them with findleaks loaded, without a start-up file: `findleaks gdb …`, `findleaks lldb …`.\n")
    return 0


def gdb_lines() -> list[str]:
    """Return GDB commands that load findleaks, and then add directories with the libraries that it
    needs.
    Directories that belong to findleaks are searched first."""
    return [gdb_line(), *(f"python {code}" for code in _site_code())]


def lldb_lines() -> list[str]:
    """Return LLDB commands that load findleaks, and then add directories with the libraries that it
    needs."""
    return [lldb_line(), *(f"script {code}" for code in _site_code())]


def _site_code() -> list[str]:
    """Return Python code for each directory of a library that this process has, but that a debugger
    which loads this copy would not find. A checkout has no reference to an editable install in an
    environment other than .venv."""
    here = os.path.dirname(os.path.realpath(__file__))
    known = {os.path.realpath(site) for site in sites(here)}
    found = []
    for library in LIBRARIES:
        spec = find_spec(library)
        site = os.path.realpath(os.path.dirname(os.path.dirname(spec.origin))) if spec is not None and spec.origin else ""
        if site and site not in known:
            known.add(site)
            found.append(
                f'__import__("runpy").run_path({_python_literal(os.path.join(here, "bootstrap.py"))})["add_site"]({_python_literal(site)})'
            )
    return found


def _python_literal(path: str) -> str:
    """Return a Python literal without backquotes, because LLDB evaluates text between two
    backquotes in any line."""
    return repr(path).replace("`", "\\x60")


def gdb_line() -> str:
    """Return the GDB command that loads findleaks.
    GDB takes the rest of the line, including spaces, as the name of the file."""
    return f"source {loader_path('gdb')}"


def lldb_line() -> str:
    """Return the LLDB command that loads findleaks.
    LLDB splits words as a shell does, so a path may need quotes."""
    path = loader_path("lldb")
    if re.search(r"[^\w./+@:,=~%-]", path):
        path = '"' + re.sub(r'(["\\`])', r"\\\1", path) + '"'
    return f"command script import {path}"


def start_debugger(front: str, argv: Sequence[str]) -> NoReturn:
    """Replace this process by GDB or LLDB (`lldb`, else the newest lldb-N) with findleaks loaded
    and with these arguments.
    The debugger handles Ctrl-C and sets the exit status. Raises FindleaksError if it is not
    installed."""
    # GDB runs -ex commands in order, after it has opened the program and the core. LLDB runs -O
    # commands before it opens them. findleaks is loaded first, so that the user's commands can use
    # it.
    program, option, lines = (gdb_program(), "-ex", gdb_lines()) if front == "gdb" else (lldb_program(), "-O", lldb_lines())
    sys.stdout.flush()
    try:
        os.execv(program, [os.path.basename(program), *(word for line in lines for word in (option, line)), *argv])
    except OSError as error:
        raise FindleaksError(f"{program} does not start: {error.strerror}") from None


def gdb_program() -> str:
    """Return the path of the GDB to start. Raises FindleaksError if it is not installed."""
    program = shutil.which("gdb")
    if program is None:
        raise FindleaksError("gdb is not on the PATH: install it (apt install gdb), or use the command line: findleaks find CORE")
    return program


def lldb_program() -> str:
    """Return the path of the LLDB to start. Raises FindleaksError if it is not installed."""
    for name in ("lldb", *(f"lldb-{version}" for version in range(LLDB_NEWEST, LLDB_OLDEST - 1, -1))):
        program = shutil.which(name)
        if program is not None:
            return program
    raise FindleaksError(
        f"neither lldb nor lldb-{LLDB_OLDEST} to lldb-{LLDB_NEWEST} is on the PATH: "
        "install one (apt install lldb-19), or use the command line: findleaks find CORE"
    )
