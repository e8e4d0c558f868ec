"""Locks that frames of managed functions hold or wait for, and deadlocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from findleaks.formatting import printable
from findleaks.value_classes import NamedTuple

_MOST_NAME, _MOST_LABEL = 64, 256  # characters of a thread's name, and of a lock
_MOST_DESCRIBED = 8  # threads of a deadlock

LOCKED, ELIMINATED = "locked", "eliminated"
"""Kinds of locks that a frame holds. "eliminated": a compiler has removed the lock."""

LOCK, RELOCK = "waiting to lock", "waiting to re-lock in wait()"
WAIT, PARK = "waiting on", "parking to wait for"
"""Kinds of locks that a frame waits for. The names of all kinds are the phrases that the JVM
prints."""


class FrameLock:
    """A lock that a frame holds or waits for. `kind`: one of the constants above. `type`: the type
    of the locked object, or "". `address`: the address of the object; 0 if unknown. `owner`: if the
    frame waits for the lock, the kernel's number of the thread that holds it; 0 if there is no such
    thread, or if it is unknown. `name`: the variable that is the lock, or "".

    Two locks are equal if their kinds and types are equal. Therefore threads that lock different
    objects of one type in the same functions have equal frames."""

    __slots__ = ("address", "kind", "name", "owner", "type")

    def __init__(self, kind: str, type_name: str, address: int = 0, owner: int = 0, name: str = "") -> None:
        self.kind, self.type, self.address, self.owner, self.name = kind, type_name, address, owner, name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrameLock) and (self.kind, self.type) == (other.kind, other.type)

    def __hash__(self) -> int:
        return hash((self.kind, self.type))

    def label(self, has_address: bool = True) -> str:
        """Return a phrase such as "locked <0xf1a0> (a java.lang.Object)". If a lock is eliminated,
        the compiler may also have removed the object. In this case, there is no address."""
        address = f" <{self.address:#x}>" if has_address and self.address else ""
        address = address or (" <object was not allocated>" if not self.address and self.kind == ELIMINATED else "")
        return f"{self.kind}{f' {self.name}' if self.name else ''}{address}{f' (a {self.type})' if self.type else ''}"


class PlacedLock(NamedTuple):
    """A lock, and the index of the stack frame to which it belongs."""

    frame: int
    lock: FrameLock


class LockWait(NamedTuple):
    """A thread (its kernel ID) that waits for a lock, and this lock, which another thread holds."""

    thread: int
    lock: FrameLock


def find_deadlocks(waits: Iterable[LockWait]) -> list[list[LockWait]]:
    """Return the cycles of threads: each thread waits for a lock that the next thread in the cycle
    holds. A thread waits for only one lock. A cycle begins with the thread that has the lowest
    kernel ID."""
    # A thread may still be marked as waiting for a lock that it has just acquired.
    waiting = {one.thread: one for one in waits if one.lock.owner not in (0, one.thread)}
    found: list[list[LockWait]] = []
    seen: set[int] = set()
    for first in sorted(waiting):
        path: dict[int, None] = {}
        thread = first
        while thread in waiting and thread not in seen:
            seen.add(thread)
            path[thread] = None
            thread = waiting[thread].lock.owner
        if thread in path:
            numbers = list(path)
            cycle = numbers[numbers.index(thread) :]
            lowest = cycle.index(min(cycle))
            found.append([waiting[one] for one in cycle[lowest:] + cycle[:lowest]])
    return found


def describe_deadlock(cycle: Sequence[LockWait], names: Mapping[int, str]) -> str:
    """Return "thread 12 (A) is waiting to lock <0xf1a0> (a java.lang.Object), which thread 13 (B)
    holds; …". `names`: the names of the threads, by kernel ID."""
    sentences = (
        f"{describe_thread(tid, names)} is {printable(lock.label(), _MOST_LABEL)}, which {describe_thread(lock.owner, names)} holds"
        for tid, lock in cycle[:_MOST_DESCRIBED]
    )
    return "; ".join(sentences) + ("; …" if len(cycle) > _MOST_DESCRIBED else "")


def describe_thread(thread: int, names: Mapping[int, str]) -> str:
    """Return "thread 12 (worker)"."""
    name = printable(names.get(thread, ""), _MOST_NAME)
    return f"thread {thread} ({name})" if name else f"thread {thread}"
