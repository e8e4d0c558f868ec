"""What counting asks of a front end: breakpoints, and the thread that stands at one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Optional, Protocol

from findleaks.target.base import Target


@dataclass(frozen=True)
class Outcome:
    """Why the process stands again. `why`: "asked" (the callback said so), "time", "interrupt" (the user's Ctrl-C), "stop" (something
    else stopped it) or "ended"; `text` says more of the last two."""

    why: str
    text: str = ""


class Memory:
    """What a process of this machine has in memory now, with nothing kept. Closed until `open` is called."""

    def __init__(self, pid: int) -> None:
        self._path = f"/proc/{pid}/mem"
        self._descriptor = -1

    def open(self) -> None:
        """OSError where the process cannot be read."""
        self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, address: int, size: int) -> bytes:
        """May be short, or b"" where nothing is mapped."""
        try:
            return os.pread(self._descriptor, size, address)
        except (OSError, OverflowError):
            return b""

    def close(self) -> bool:
        """Whether it was open."""
        if self._descriptor < 0:
            return False
        os.close(self._descriptor)
        self._descriptor = -1
        return True


class Process(Protocol):
    """A process that a debugger holds stopped. Between `arm` and `disarm` it has breakpoints of ours; `disarm` may be called at any
    time, and again."""

    pid: int

    def arm(self, addresses: Sequence[int], hit: Callable[[int], bool]) -> None:
        """Set a breakpoint at each address. `hit` is called with the address of one that a thread has reached, true asks to stop."""
        ...

    def disarm(self) -> None:
        """Take away what `arm` set; the bytes of the code are then as they were."""
        ...

    def close(self) -> None:
        """All was told: nothing more will be asked."""
        ...

    def run(self, seconds: Optional[float]) -> Outcome:
        """Let the process run for that long at most."""
        ...

    def opened(self) -> Target:
        """The process as it is now, as a target of the caller's to close."""
        ...

    # Of the thread that stands at a breakpoint, within `hit` only:

    def thread(self) -> int:
        """Its id."""
        ...

    def register(self, name: str) -> int: ...

    def read(self, address: int, size: int) -> bytes:
        """What is there now, from nothing kept; may be short or b"" where nothing is mapped."""
        ...

    def holds(self, expression: str) -> bool:
        """Whether the debugger's expression is true (not 0). UsageError when it cannot be evaluated."""
        ...
