"""Add findleaks to the start-up files of debuggers, and remove it from them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.errors import FindleaksError
from findleaks.launcher import gdb_lines, gdb_program, lldb_lines, lldb_program
from findleaks.report.files import write_file
from findleaks.value_classes import NamedTuple

BEGIN, END = "# >>> findleaks >>>", "# <<< findleaks <<<"
"""The lines before and after the part of a start-up file that belongs to findleaks."""
_PART = re.compile(rf"\n?^{re.escape(BEGIN)}\n.*?^{re.escape(END)}\n?", re.M | re.S)


class Edit(NamedTuple):
    """A change to a start-up file. `before`: the text of the file; None if there is no such
    file."""

    path: str
    before: Optional[str]
    after: str

    def format_diff(self) -> Iterator[str]:
        """Yield the lines of the change as a unified diff."""
        from difflib import unified_diff  # only `init` needs this

        old, new = (self.before or "").splitlines(), self.after.splitlines()
        name = self.path if self.before is not None else os.devnull
        return unified_diff(old, new, name, self.path, lineterm="", n=1)


def startup_file(debugger: str) -> str:
    """Return the path of the start-up file of "GDB" or "LLDB" in the user's home directory.

    GDB reads $XDG_CONFIG_HOME/gdb/gdbinit if it exists, else ~/.gdbinit (GDB 11 and newer)."""
    if debugger == "GDB":
        config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        found = os.path.join(config, "gdb", "gdbinit")
        return found if os.path.isfile(found) else os.path.expanduser("~/.gdbinit")
    return os.path.expanduser("~/.lldbinit")


def list_edits(remove: bool) -> list[Edit]:
    """Return the edits that make the installed debuggers load findleaks, or stop loading it.

    A file that needs no change has no edit. Raises FindleaksError if no debugger is installed, or
    if a file cannot be read."""
    edits, installed = [], 0
    for debugger, program, lines in (("GDB", gdb_program, gdb_lines), ("LLDB", lldb_program, lldb_lines)):
        if not remove:
            try:
                program()
            except FindleaksError:
                continue
        installed += 1
        path = startup_file(debugger)
        before = _read(path)
        after = edit_text(before or "", [] if remove else lines())
        if after != (before or ""):
            edits.append(Edit(path, before, after))
    if not installed:
        raise FindleaksError("neither GDB nor LLDB is installed: install one (apt install gdb), then repeat this command")
    return edits


def edit_text(text: str, lines: Sequence[str]) -> str:
    """Replace findleaks' part of a start-up file by `lines`. Without lines, the part is removed."""
    rest = _PART.sub("", text)
    if not lines:
        return rest
    gap = "" if not rest else "\n" if rest.endswith("\n") else "\n\n"
    return rest + gap + "\n".join([BEGIN, *lines, END, ""])


def write_edit(edit: Edit) -> None:
    """Replace the file in one step, and keep its mode. A symbolic link stays a link. Raises
    FindleaksError if the file cannot be written."""
    write_file(edit.path, edit.after.encode("utf-8", "surrogateescape"))


def _read(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FindleaksError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
