"""Find a process by name, and read the start time of a process, from /proc."""

from __future__ import annotations

import argparse
import os
from typing import Optional

from findleaks.target.files import read_file

_STARTED = 22 - 3  # index of the field of /proc/PID/stat after the name in parentheses
SHOWN = 8  # most process ids in an error message


def find_process(word: str) -> int:
    """Return the process id for a word, which is a process id or the name of a process.
    The name is that of the running file (/proc/PID/exe: the interpreter of a script), of the first
    word of the command line, or of the process (/proc/PID/comm, at most 15 characters).
    Raises ArgumentTypeError unless exactly one process has the name."""
    if word.isascii() and word.isdigit():
        return int(word)
    found = sorted(pid for pid in _other_processes() if word in _names(pid))
    if len(found) == 1:
        return found[0]
    if not found:
        raise argparse.ArgumentTypeError(f"no process is called {word[:60]!r}; give its pid, or its name as ps prints it")
    shown = ", ".join(str(pid) for pid in found[:SHOWN]) + (" …" if len(found) > SHOWN else "")
    raise argparse.ArgumentTypeError(f"{len(found)} processes are called {word[:60]!r}: {shown}; choose one by its pid")


def _other_processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _names(pid: int) -> set[str]:
    """Return the names of a process; none if it ended, or is a kernel thread."""
    names = set()
    try:
        names.add(os.path.basename(os.fsdecode(read_file(f"/proc/{pid}/cmdline").split(b"\0")[0])))
        names.add(os.fsdecode(read_file(f"/proc/{pid}/comm").rstrip(b"\n")))
        # Read this last, because the kernel refuses it for processes of other users.
        names.add(os.path.basename(os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")))
    except OSError:
        pass
    return names - {""}


def start_time(pid: Optional[int]) -> Optional[int]:
    """Return the start time of a process in clock ticks since boot (proc(5): field 22 of
    /proc/PID/stat); None if unreadable."""
    try:
        return int(read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()[_STARTED])
    except (OSError, ValueError, IndexError):
        return None
