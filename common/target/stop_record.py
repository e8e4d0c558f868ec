"""What is known of a process, besides its memory, as of one stop: what a core of it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from findleaks.target.files import content
from findleaks.target.moment import Moment
from findleaks.target.notes import RegisterNotes


class StopRecord(NamedTuple):
    """One stop of a process: `stat` is the text of /proc/PID/stat, `maps` of /proc/PID/maps."""

    proc: str  # its folder under /proc
    stat: bytes
    maps: bytes
    moment: Moment
    registers: Sequence[RegisterNotes]  # of the threads, the main one first

    def stat_field(self, number: int, default: int = 0) -> int:
        """A numeric field of `stat`, by its number in proc(5)."""
        found = stat_field(self.stat, number)
        return default if found is None else found


def stat_of(proc: str) -> bytes:
    """The text of the process's `stat` file; b"" where it cannot be read."""
    try:
        return content(f"{proc}/stat")
    except OSError:
        return b""


def start_time_of(stat: bytes) -> Optional[int]:
    """When the process started, in clock ticks after the boot (field 22); None: not known."""
    return stat_field(stat, 22)


def stat_field(stat: bytes, number: int) -> Optional[int]:
    """A field of `stat_of`, counted from 1 (proc_pid_stat(5)); None: not there."""
    # The second field, the name, is in parentheses, and may have any characters.
    fields = stat.rpartition(b")")[2].split()
    try:
        return int(fields[number - 3])
    except (IndexError, ValueError):
        return None
