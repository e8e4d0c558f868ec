"""Report threads that wait for each other's locks, and threads that wait for a mutex that no other
thread can unlock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from findleaks.formatting import format_count, printable, to_sentence
from findleaks.runtimes.directory import find_frames
from findleaks.runtimes.finding import Finding
from findleaks.target.base import Target
from findleaks.unwind.frame_locks import LockWait, describe_deadlock, describe_thread, find_deadlocks
from findleaks.unwind.mutex_waits import find_lock_waits, group_by_lock

_MOST_MUTEXES = 4  # mutexes that no thread can unlock, each of which has a finding
_MOST_LABEL = 256  # characters of the name of a mutex
_OBJECTS = "lock these objects in the same order in all threads"
_MUTEXES = "lock these mutexes in the same order in all threads"
_TWICE = "do not lock a mutex again in the thread that holds it, or initialise it as PTHREAD_MUTEX_RECURSIVE"
_ORPHANED = (
    "unlock each mutex before its thread ends; after fork() in a program with threads, call only exec() or functions that lock nothing"
)


def find_deadlocked_threads(target: Target) -> Iterator[Finding]:
    """Yield a finding for each deadlock of a managed runtime or of mutexes of libc. Also yield one
    for the mutex with the most waiting threads among those that a thread locked twice, and among
    those that no thread of this process locked."""
    for reader in find_frames(target):
        for cycle in reader.deadlocks():
            yield _report_cycle(cycle, reader.thread_names(), _OBJECTS)
    waits = find_lock_waits(target)
    names = target.thread_names() if waits else {}
    for cycle in find_deadlocks(waits):
        yield _report_cycle(cycle, names, _MUTEXES)
    threads = {thread.tid for thread in target.threads()} if waits else set()
    stuck = {one.lock.address for one in waits if one.lock.owner == one.thread or one.lock.owner not in threads}
    by_mutex = group_by_lock(one for one in waits if one.lock.address in stuck)
    for _, alike in sorted(by_mutex.items(), key=lambda pair: (-len(pair[1]), pair[0]))[:_MOST_MUTEXES]:
        yield _report_mutex(alike, names)


def _report_cycle(cycle: Sequence[LockWait], names: Mapping[int, str], remedy: str) -> Finding:
    title = f"{format_count(len(cycle), 'thread')} cannot continue, because they wait for locks of each other: a deadlock."
    cause = to_sentence(describe_deadlock(cycle, names))
    return Finding("deadlock", 0, title, cause, (remedy,), ("stacks",), {"threads": _facts(cycle, names)}, 0)


def _report_mutex(waits: Sequence[LockWait], names: Mapping[int, str]) -> Finding:
    """Return the finding about threads that wait for one mutex that no other thread can unlock."""
    first, owner, label = waits[0], waits[0].lock.owner, printable(waits[0].lock.label(), _MOST_LABEL)
    if any(one.thread == owner for one in waits):
        cause = f"{describe_thread(owner, names)} is {label}, which it holds already"
        more = len(waits) - 1
        cause += f". {format_count(more, 'more thread')} {'waits' if more == 1 else 'wait'} for it, too" if more else ""
        remedy = _TWICE
    else:
        others = f" and {format_count(len(waits) - 1, 'more thread')} are" if len(waits) > 1 else " is"
        cause = f"{describe_thread(first.thread, names)}{others} {label}, which thread {owner} locked. This process has no such "
        cause += "thread: the thread ended without unlocking the mutex, or the process was forked while the thread held the mutex"
        remedy = _ORPHANED
    title = f"{format_count(len(waits), 'thread')} cannot continue, because no other thread can unlock a mutex: a deadlock."
    return Finding("deadlock", 0, title, to_sentence(cause), (remedy,), ("stacks",), {"threads": _facts(waits, names)}, 0)


def _facts(waits: Sequence[LockWait], names: Mapping[int, str]) -> list[dict[str, object]]:
    return [
        {
            "thread": tid,
            "name": names.get(tid),
            "kind": lock.kind,
            "type": lock.type,
            "lock": lock.name or None,
            "address": hex(lock.address),
            "owner": lock.owner,
        }
        for tid, lock in waits
    ]
