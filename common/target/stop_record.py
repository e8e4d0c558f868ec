"""The data, other than memory, that a core records about one stop of a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from findleaks.target.files import read_file
from findleaks.target.notes import RegisterNotes
from findleaks.target.stopped_pages import StoppedPages


class StopRecord(NamedTuple):
    """One stop of a process: `stat` is the text of /proc/PID/stat, `maps` that of
    /proc/PID/maps."""

    proc: str  # folder of the process below /proc
    stat: bytes
    maps: bytes
    pages: StoppedPages
    registers: Sequence[RegisterNotes]  # registers of the threads, the main one first

    def stat_field(self, number: int, default: int = 0) -> int:
        """Return a numeric field of `stat`, by its number in proc(5)."""
        found = stat_field(self.stat, number)
        return default if found is None else found


def stat_of(proc: str) -> bytes:
    """Read the process's `stat` file; b"" if unreadable."""
    try:
        return read_file(f"{proc}/stat")
    except OSError:
        return b""


def start_time_of(stat: bytes) -> Optional[int]:
    """Return the start time of the process in clock ticks after boot (field 22); None: unknown."""
    return stat_field(stat, 22)


def stat_field(stat: bytes, number: int) -> Optional[int]:
    """Return a field of the text that `stat_of` returns, counted from 1 (proc_pid_stat(5)); None if
    it is missing."""
    # The second field, the name, is in parentheses, and may contain any characters.
    fields = stat.rpartition(b")")[2].split()
    try:
        return int(fields[number - 3])
    except (IndexError, ValueError):
        return None
