"""The result of `stacks`: threads with identical call stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.results.record import OPTIONAL, Record
from findleaks.results.sites import StackFrame
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class ThreadGroup(Record):
    """Threads with one call stack."""

    count: int
    """Number of threads."""
    threads: Sequence[int]
    """The kernel's numbers of the threads."""
    names: Sequence[Optional[str]]
    """Their names."""
    frames: Sequence[StackFrame]
    """The call stack, innermost frame first."""
    complete: bool
    """Whether the stack reaches its beginning."""


@dataclass(frozen=True, eq=False, repr=False)
class UserThreadGroup(Record):
    """Threads that a managed runtime schedules itself (goroutines), with one state and call
    stack."""

    runtime: str
    """The runtime's name."""
    kind: str
    """What the runtime calls such a thread: "goroutine"."""
    count: int
    """Number of threads."""
    numbers: Sequence[int]
    """The runtime's numbers of the threads, in the order of their creation."""
    state: str
    """Their state: "waiting"."""
    reason: Optional[str]
    """What they wait for: "chan receive"."""
    waiting_seconds: Optional[float]
    """The longest wait, in seconds, if it is known."""
    stack_bytes: int
    """Bytes of their stacks."""
    internal: bool
    """Whether they belong to the runtime itself."""
    creator: Optional[StackFrame]
    """Where they were created."""
    frames: Sequence[StackFrame]
    """The call stack, innermost frame first."""


@dataclass(frozen=True, eq=False, repr=False)
class Stacks(Record):
    """The result of `stacks`."""

    threads: int
    """Number of threads of the process."""
    stacks: Sequence[ThreadGroup]
    """By call stack, most threads first."""
    user_threads: int = field(default=0, metadata=OPTIONAL)
    """Number of threads that managed runtimes schedule themselves, without the runtimes' own."""
    user_stacks: Sequence[UserThreadGroup] = field(default=(), metadata=OPTIONAL)
    """These threads by state and call stack, most threads first."""
