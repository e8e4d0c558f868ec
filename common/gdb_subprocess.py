"""Run a command, such as `count`, in a GDB that has its own terminal session. Ctrl-C is forwarded
to it."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Optional

from findleaks.errors import FindleaksError, TargetError
from findleaks.escaping import visible
from findleaks.launcher import gdb_line
from findleaks.target.live import LiveTarget
from findleaks.target.ptrace import explain_refusal, status

_PR_SET_PDEATHSIG = 1  # prctl option: send a signal when the parent dies (linux/prctl.h)
# Function that GDB calls, as module:function; `make lint` checks it
ENTRY = "findleaks.gdb.batch:run"


def drop_pid_option(words: Sequence[str]) -> list[str]:
    """Return the command line that GDB executes: these words without --pid and its value."""
    rest = iter(words)
    kept = []
    for word in rest:
        if word in ("--pid", "-pid"):
            next(rest, None)
        elif not word.startswith(("--pid=", "-pid=")):
            kept.append(word)
    return kept


def run_in_gdb(pid: int, words: Sequence[str], width: int) -> int:
    """Run the command in these words on a process, and print lines as they arrive. Returns the exit
    status."""
    program = shutil.which("gdb")
    if program is None:
        raise FindleaksError(f"{words[0]} sets breakpoints with GDB, and gdb is not on the PATH: install it (apt install gdb)")
    # This reports why a process cannot be read, in better words than GDB.
    with LiveTarget(pid) as target:
        pid = target.pid or pid
    if status(pid).get("TracerPid", "0") != "0":
        raise TargetError(explain_refusal(pid))
    reading, writing = os.pipe()
    process = _start(program, pid, words, width, writing)
    os.close(writing)
    with _forward_signals(process):
        error = _print_lines(reading)
        complaints = process.stderr.read().decode("utf-8", "replace") if process.stderr is not None else ""
        ended = process.wait()
    if error == "interrupted":
        return 130
    if error:
        raise FindleaksError(error)
    if ended not in (0, 130, 141):
        why = " ".join(complaints.split())[-300:] or "no output"
        raise FindleaksError(f"GDB ended with {ended} while it ran {words[0]} on {pid}: {why}")
    return ended


def _start(program: str, pid: int, words: Sequence[str], width: int, output: int) -> subprocess.Popen[bytes]:
    """Start GDB on a process. The command writes its lines to the descriptor `output`."""
    module, function = ENTRY.split(":")
    call = f"from {module} import {function}; {function}({list(words)!r}, {output}, {width}, '--pid {pid}')"
    settings = ("set debuginfod enabled off", "set confirm off", "set pagination off", "set auto-load no", "set print thread-events off")
    options = [word for setting in settings for word in ("-iex", setting)]
    command = [program, "-nx", "-batch", *options, "-p", str(pid), "-ex", gdb_line(), "-ex", "python " + call]
    ctypes.CDLL(None)  # loads libc before the fork
    with open(os.devnull, "rb") as null:
        return subprocess.Popen(
            command,
            stdin=null,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[output],
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )


@contextmanager
def _forward_signals(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Interrupt GDB if this process is to end: after a signal, or if the block raises an exception.
    GDB then releases the process that it debugs."""

    def forward(_: int, frame: Optional[FrameType]) -> None:
        process.send_signal(signal.SIGINT)

    # Signals that nohup, or a script for its background jobs, set to be ignored, stay ignored.
    handled = [one for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]
    before: dict[int, Any] = {number: signal.signal(number, forward) for number in handled}
    try:
        yield
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_lines(descriptor: int) -> str:
    """Print the lines that the command writes, until it ends. Return its error message; "" if it
    succeeded."""
    error = ""
    with open(descriptor, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("\0"):
                error = line[1:].strip()
            else:
                sys.stdout.write(visible(line.rstrip("\n")) + "\n")
                sys.stdout.flush()
    return error


def _end_with_parent() -> None:
    """Arrange that GDB receives SIGTERM if this process dies. GDB then releases the process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
