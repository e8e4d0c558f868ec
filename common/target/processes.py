"""Finds a process by name, and when it began, from /proc."""

from __future__ import annotations

import argparse
import os
from typing import Optional

from findleaks.target.files import content

_STARTED = 22 - 3  # the field of /proc/PID/stat, counted from behind the name in parentheses
SHOWN = 8  # process ids in an error message


def process(word: str) -> int:
    """The process id that `word` is or names; ArgumentTypeError unless exactly one has the name.
    A name is that of the running file (/proc/PID/exe: a script's interpreter), of the first word of
    the command line, or of the process (/proc/PID/comm, cut after 15 characters)."""
    if word.isascii() and word.isdigit():
        return int(word)
    found = sorted(pid for pid in _other_processes() if word in _names(pid))
    if len(found) == 1:
        return found[0]
    if not found:
        raise argparse.ArgumentTypeError(f"no process is called {word[:60]!r}: give its number, or its name as ps prints it")
    shown = ", ".join(str(pid) for pid in found[:SHOWN]) + (" …" if len(found) > SHOWN else "")
    raise argparse.ArgumentTypeError(f"{len(found)} processes are called {word[:60]!r}: {shown}; choose one by its number")


def _other_processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _names(pid: int) -> set[str]:
    """The names of a process; none if it ended, or is a kernel thread."""
    names = set()
    try:
        names.add(os.path.basename(os.fsdecode(content(f"/proc/{pid}/cmdline").split(b"\0")[0])))
        names.add(os.fsdecode(content(f"/proc/{pid}/comm").rstrip(b"\n")))
        # Last, since it is refused for other users' processes.
        names.add(os.path.basename(os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")))
    except OSError:
        pass
    return names - {""}


def start_time(pid: Optional[int]) -> Optional[int]:
    """When a process began, in clock ticks since the machine's start (proc(5): field 22 of
    /proc/PID/stat); None if it is not there."""
    try:
        return int(content(f"/proc/{pid}/stat").rpartition(b")")[2].split()[_STARTED])
    except (OSError, ValueError, IndexError):
        return None
