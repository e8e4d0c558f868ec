"""Interfaces of debuggers that can run a process, set breakpoints in it, and change it.
The front ends implement them; `count` gets them from `Target.breakpoint_host` and
`Target.injection_host`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Optional, Protocol

if TYPE_CHECKING:
    from findleaks.target.base import Target


@dataclass(frozen=True)
class Outcome:
    """Reason why the process stopped: "asked" (by the callback), "time", "interrupt" (Ctrl-C),
    "stop" (another reason) or "ended". `text` explains the last two."""

    why: str
    text: str = ""


class ThreadPosition(NamedTuple):
    tid: int
    pc: int
    sp: int
    thread_pointer: int = 0  # 0: unknown


class ProcessHost(Protocol):
    """A stopped process of this machine."""

    pid: int

    def open_target(self) -> Target:
        """Return the process as it is now, as a read-only target that the caller closes."""
        ...

    def run(self, seconds: Optional[float]) -> Outcome:
        """Let the process run, for at most `seconds`."""
        ...


class BreakpointHost(ProcessHost, Protocol):
    """A process that a debugger holds stopped. It has findleaks' breakpoints between `arm` and
    `disarm`, which can be called repeatedly."""

    def arm(self, addresses: Sequence[int], hit: Callable[[int], bool]) -> None:
        """Set a breakpoint at each address. `hit` is called with the address of a breakpoint that a
        thread reached; it returns true to stop the process."""
        ...

    def disarm(self) -> None:
        """Remove the breakpoints of `arm`, which restores the original code."""
        ...

    def close(self) -> None:
        """End the use of the process. Called after all output is printed."""
        ...

    # The following members describe the thread that reached a breakpoint. They are valid only
    # during the call of `hit`.

    def thread(self) -> int:
        """Return the id of the thread."""
        ...

    def register(self, name: str) -> int: ...

    def read(self, address: int, size: int) -> bytes:
        """Return the bytes that are at the address now (not cached); fewer, or b"", if a part is
        not mapped."""
        ...

    def holds(self, expression: str) -> bool:
        """Whether the debugger's expression is nonzero. UsageError if it cannot be evaluated."""
        ...


class PatchHost(ProcessHost, Protocol):
    """A process whose code can be changed."""

    def write(self, address: int, data: bytes) -> None:
        """Change code. TargetError if that is not permitted."""
        ...

    def places(self) -> list[ThreadPosition]: ...

    def call(self, instruction: int, number: int, *arguments: int) -> int:
        """Run a system call in a thread, with its program counter set to the `syscall` instruction
        at `instruction`. Return the result of the call."""
        ...


class InjectionHost(PatchHost, Protocol):
    """Operations that `count --inject` needs in addition to those of PatchHost. `begin` may be
    called again after `close`."""

    def begin(self) -> None:
        """Prepare to run the process."""
        ...

    def hold(self) -> None:
        """Prepare to change the process. Ctrl-C is deferred until the process runs, or until all
        output is printed."""
        ...

    def close(self) -> None:
        """End the use of the process. Called after all output is printed."""
        ...

    def stop(self) -> None:
        """Stop the running process soon. Called by another thread."""
        ...

    def is_terminating(self) -> bool:
        """Whether a signal asked the debugger to exit. Called by another thread."""
        ...
