"""The result of `stacks`: threads with identical call stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.results.record import ADDRESS, OPTIONAL, Record
from findleaks.results.sites import StackFrame
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class FrameLock(Record):
    """A lock that a thread holds or waits for."""

    thread: int
    """The kernel's number (tid) of the thread."""
    frame: int
    """The index of the frame that holds the lock or waits for it."""
    kind: str
    """What the frame does, in the words of jstack: "locked", "waiting to lock", "waiting on",
    "waiting to re-lock in wait()", "parking to wait for", "eliminated"."""
    type: Optional[str]
    """The type of the object."""
    address: Optional[int] = field(metadata=ADDRESS)
    """The address of the object; None if a compiler has removed the object."""
    owner: Optional[int] = field(default=None, metadata=OPTIONAL)
    """The tid of the thread that holds the lock for which this thread waits."""


@dataclass(frozen=True, eq=False, repr=False)
class ThreadGroup(Record):
    """Threads with one call stack."""

    count: int
    """Number of threads."""
    threads: Sequence[int]
    """The kernel's numbers (tids) of the threads."""
    names: Sequence[Optional[str]]
    """The names of the threads, in the same order."""
    frames: Sequence[StackFrame]
    """The call stack, innermost frame first."""
    complete: bool
    """Whether the stack was unwound to its beginning."""
    incomplete: Optional[str] = field(default=None, metadata=OPTIONAL)
    """Why the outer frames of the stack are missing."""
    locks: Sequence[FrameLock] = field(default=(), metadata=OPTIONAL)
    """The locks of all of these threads, thread by thread. The frames of these threads have locks
    of the same kinds and types, but the objects may differ."""


@dataclass(frozen=True, eq=False, repr=False)
class UserThreadGroup(Record):
    """Threads that a managed runtime schedules itself: goroutines, tasks of asyncio. All of them
    have the same state and call stack."""

    runtime: str
    """The runtime's name."""
    kind: str
    """What the runtime calls such a thread: "goroutine", "asyncio task", "greenlet"."""
    count: int
    """Number of threads."""
    numbers: Sequence[int]
    """The runtime's numbers of the threads, in the order of their creation. Greenlets have none."""
    state: str
    """The state of the threads: "waiting"."""
    reason: Optional[str]
    """What the threads wait for: "chan receive", "waits for _asyncio.Future"."""
    waiting_seconds: Optional[float]
    """The longest wait in seconds; None if unknown."""
    stack_bytes: int
    """Bytes of the stacks of these threads; 0 for tasks of asyncio and for greenlets."""
    internal: bool
    """Whether the threads belong to the runtime itself."""
    creator: Optional[StackFrame]
    """The frame that created the threads."""
    frames: Sequence[StackFrame]
    """The call stack, innermost frame first."""


@dataclass(frozen=True, eq=False, repr=False)
class DeadlockedThread(Record):
    """A thread of a deadlock."""

    thread: int
    """The kernel's number (tid) of the thread."""
    name: Optional[str]
    """The name of the thread."""
    kind: str
    """How the thread waits: "waiting to lock", "parking to wait for"."""
    type: Optional[str]
    """The type of the object that the thread waits for."""
    address: int = field(metadata=ADDRESS)
    """The address of this object."""
    owner: int
    """The tid of the thread that holds the lock of this object."""


@dataclass(frozen=True, eq=False, repr=False)
class Deadlock(Record):
    """Threads in a cycle. Each thread waits for a lock that the next thread holds."""

    text: str
    """A sentence about all threads."""
    threads: Sequence[DeadlockedThread]
    """The threads. The last thread waits for a lock that the first thread holds."""


@dataclass(frozen=True, eq=False, repr=False)
class Stacks(Record):
    """The result of `stacks`."""

    threads: int
    """Number of threads of the process."""
    stacks: Sequence[ThreadGroup]
    """The threads by call stack, the largest groups first."""
    user_threads: int = field(default=0, metadata=OPTIONAL)
    """Number of threads that managed runtimes schedule themselves. Threads that belong to the
    runtimes are not counted."""
    user_stacks: Sequence[UserThreadGroup] = field(default=(), metadata=OPTIONAL)
    """The threads that runtimes schedule themselves, by state and call stack, the largest groups
    first."""
    deadlocks: Sequence[Deadlock] = field(default=(), metadata=OPTIONAL)
    """Cycles of threads. Each thread waits for a lock that the next thread of its cycle holds."""
