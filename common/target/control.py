"""What a debugger can do with a process besides reading it: run it, set breakpoints, change it.
Front ends implement these; `count` gets them by `Target.breakpoint_host`, `injection_host`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Optional, Protocol

if TYPE_CHECKING:
    from findleaks.target.base import Target


@dataclass(frozen=True)
class Outcome:
    """Why the process stopped: "asked" (by the callback), "time", "interrupt" (the user's Ctrl-C),
    "stop" (by something else) or "ended". `text` says more about the last two."""

    why: str
    text: str = ""


class ThreadPosition(NamedTuple):
    tid: int
    pc: int
    sp: int


class ProcessHost(Protocol):
    """A process of this machine that is held stopped."""

    pid: int

    def opened(self) -> Target:
        """The process as it is now, as a read-only target that the caller closes."""
        ...

    def run(self, seconds: Optional[float]) -> Outcome:
        """Let the process run, for at most this many seconds."""
        ...


class BreakpointHost(ProcessHost, Protocol):
    """A process that a debugger holds stopped. Between `arm` and `disarm`, which may be called at
    any time, and again, it has findleaks' breakpoints."""

    def arm(self, addresses: Sequence[int], hit: Callable[[int], bool]) -> None:
        """Set a breakpoint at each address. `hit` is called with that of a breakpoint that a thread
        has reached; true asks to stop."""
        ...

    def disarm(self) -> None:
        """Remove what `arm` set; the code has its original bytes again."""
        ...

    def close(self) -> None:
        """Called when everything is printed: the user has the debugger again."""
        ...

    # The rest is about the thread at a breakpoint, and is valid within `hit` only.

    def thread(self) -> int:
        """The thread's id."""
        ...

    def register(self, name: str) -> int: ...

    def read(self, address: int, size: int) -> bytes:
        """The bytes there now, nothing cached; may be short, or b"" where nothing is mapped."""
        ...

    def holds(self, expression: str) -> bool:
        """Whether the debugger's expression is not 0; UsageError when it cannot be evaluated."""
        ...


class PatchHost(ProcessHost, Protocol):
    """A process whose code can be changed."""

    def write(self, address: int, data: bytes) -> None:
        """Change code; TargetError when that is not permitted."""
        ...

    def places(self) -> list[ThreadPosition]: ...

    def call(self, instruction: int, number: int, *arguments: int) -> int:
        """The result of a system call, by a thread pointed at the `syscall` at `instruction`."""
        ...


class InjectionHost(PatchHost, Protocol):
    """What `count --inject` needs beyond patching. After `close`, `begin` may be called again."""

    def begin(self) -> None:
        """Called before the process is run."""
        ...

    def hold(self) -> None:
        """Called before the process is changed: a Ctrl-C waits until it runs, or all is printed."""
        ...

    def close(self) -> None:
        """Called when everything is printed: the user has the debugger again."""
        ...

    def stop(self) -> None:
        """Stop the running process soon. Called by another thread."""
        ...

    def terminated(self) -> bool:
        """Whether a signal asked the debugger to end. Called by another thread."""
        ...
