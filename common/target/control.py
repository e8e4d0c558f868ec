"""What a debugger offers beside reading a process that it holds stopped: let it run, set breakpoints, change it.

`Target.breakpoint_host` and `Target.injection_host` give these to `count`; the front ends implement them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Optional, Protocol

if TYPE_CHECKING:
    from findleaks.target.base import Target


@dataclass(frozen=True)
class Outcome:
    """Why the process stopped. `why`: "asked" (the callback said so), "time", "interrupt" (the user's Ctrl-C), "stop" (something
    else stopped it) or "ended"; `text` says more of the last two."""

    why: str
    text: str = ""


class ThreadPosition(NamedTuple):
    """Where a stopped thread is."""

    tid: int
    pc: int
    sp: int


class BreakpointHost(Protocol):
    """A process that a debugger holds stopped. Between `arm` and `disarm` it has our breakpoints; `disarm` may be called at any
    time, and again."""

    pid: int

    def arm(self, addresses: Sequence[int], hit: Callable[[int], bool]) -> None:
        """Set a breakpoint at each address. `hit` is called with the address of one that a thread has reached, true asks to stop."""
        ...

    def disarm(self) -> None:
        """Take away what `arm` set; the bytes of the code are then as they were."""
        ...

    def close(self) -> None:
        """Everything is printed: the debugger is the user's again."""
        ...

    def run(self, seconds: Optional[float]) -> Outcome:
        """Let the process run for that long at most."""
        ...

    def opened(self) -> Target:
        """The process as it is now, as a target that the caller closes."""
        ...

    # Of the thread that is at a breakpoint, within `hit` only:

    def thread(self) -> int:
        """Its id."""
        ...

    def register(self, name: str) -> int: ...

    def read(self, address: int, size: int) -> bytes:
        """What is there now, nothing cached; may be short or b"" where nothing is mapped."""
        ...

    def holds(self, expression: str) -> bool:
        """Whether the debugger's expression is true (not 0). UsageError when it cannot be evaluated."""
        ...


class PatchHost(Protocol):
    """A process of this machine that is held stopped, and whose code can be changed."""

    pid: int

    def opened(self) -> Target:
        """The process as it is now, as a target that the caller closes; it is read only."""
        ...

    def write(self, address: int, data: bytes) -> None:
        """Change code; TargetError when that is not permitted."""
        ...

    def places(self) -> list[ThreadPosition]:
        """Where the threads are."""
        ...

    def call(self, instruction: int, number: int, *arguments: int) -> int:
        """What the system call returns that a thread makes, pointed at the `syscall` at `instruction`."""
        ...

    def run(self, seconds: Optional[float]) -> Outcome:
        """Let the process run for that long at most."""
        ...


class InjectionHost(PatchHost, Protocol):
    """What `count --inject` needs beyond patching. After `close` it may `begin` again."""

    def begin(self) -> None:
        """The process is going to be run."""
        ...

    def hold(self) -> None:
        """It is going to be changed: a Ctrl-C of the user waits until it runs, or everything is printed."""
        ...

    def close(self) -> None:
        """Everything is printed: the debugger is the user's again."""
        ...

    def stop(self) -> None:
        """Stop the process that runs, soon. Called by another thread."""
        ...

    def terminated(self) -> bool:
        """Whether a signal asked the debugger to end. Called by another thread."""
        ...
