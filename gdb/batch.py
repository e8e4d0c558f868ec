"""The part of `findleaks.gdb_subprocess` that runs in GDB: runs a command line for the shell that
started GDB."""

from __future__ import annotations

import os
from collections.abc import Sequence

import gdb
from findleaks.debugger_session import DebuggerSession
from findleaks.errors import FindleaksError, Interrupted
from findleaks.gdb.register import Gdb


def run(words: Sequence[str], descriptor: int, width: int, target: str) -> None:
    """Run these words, and end GDB with their exit status.

    Output goes to `descriptor`. An error is printed as a line that begins with a zero byte.
    `target`: the words that name the process in a shell."""
    status = 2
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", buffering=1) as out:
        try:
            for setting in ("handle all nostop noprint pass", "handle SIGINT SIGTRAP stop print nopass", "set print thread-events off"):
                gdb.execute(setting, to_string=True)
            status = DebuggerSession(Gdb()).run(words, out, width, "findleaks", target)
        except Interrupted:
            out.write("\0interrupted\n")
            status = 130
        except FindleaksError as error:
            if isinstance(error.__cause__, BrokenPipeError):  # The reader has closed the pipe.
                status = 141
            else:
                out.write(f"\0{error}\n")
        gdb.execute("detach", to_string=True) if gdb.selected_inferior().pid else None
    # GDB 13's `quit` inside a Python command frees Python objects without the interpreter's lock:
    # A timer thread that has not ended yet, as on a busy machine, then causes a segmentation fault.
    os._exit(status)
