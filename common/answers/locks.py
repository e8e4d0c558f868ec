"""Convert locks of threads, and deadlocks, to results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from findleaks.results.stacks import Deadlock, DeadlockedThread, FrameLock
from findleaks.target.base import Target
from findleaks.unwind.frame_locks import LockWait, describe_deadlock, find_deadlocks
from findleaks.unwind.managed_frames import ManagedFrames
from findleaks.unwind.mutex_waits import find_lock_waits
from findleaks.unwind.stacks import Stack


def list_locks(stack: Stack) -> list[FrameLock]:
    """Return the locks of the threads that have this call stack."""
    return [
        FrameLock(tid, at, lock.kind, lock.type or None, lock.address or None, lock.owner or None)
        for tid, locks in zip(stack.threads, stack.locks)
        for at, lock in locks
    ]


def list_deadlocks(readers: Iterable[ManagedFrames]) -> list[Deadlock]:
    """Return the deadlocks of all runtimes."""
    return [_deadlock(cycle, reader.thread_names()) for reader in readers for cycle in reader.deadlocks()]


def list_mutex_deadlocks(target: Target) -> list[Deadlock]:
    """Return the deadlocks of libc's mutexes."""
    cycles = find_deadlocks(find_lock_waits(target))
    names = target.thread_names() if cycles else {}
    return [_deadlock(cycle, names) for cycle in cycles]


def _deadlock(cycle: Sequence[LockWait], names: Mapping[int, str]) -> Deadlock:
    threads = [DeadlockedThread(tid, names.get(tid), lock.kind, lock.type or None, lock.address, lock.owner) for tid, lock in cycle]
    return Deadlock(describe_deadlock(cycle, names), threads)
