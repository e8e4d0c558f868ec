"""Find deadlocks of virtual threads that no thread carries.

Such threads have no JavaThread, so that frames/locks.py cannot read what they wait for. A virtual
thread that waits for a java.util.concurrent lock has the lock in the field `parkBlocker`, and the
lock has the thread that holds it in the field `exclusiveOwnerThread`. Since JDK 24, such a thread
may also hold the monitor of an object, or wait for one; see frames/virtual_monitors.py.
A wait with a timeout, as in tryLock(), ends by itself: it is not part of a deadlock.

Sources: OpenJDK 21 and 25, java/lang/Thread.java, java/lang/VirtualThread.java and
java/util/concurrent/locks/AbstractOwnableSynchronizer.java."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from findleaks.formatting import format_count, to_sentence
from findleaks.runtimes.base import Type
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.jvm.frames.virtual_monitors import VirtualMonitors
from findleaks.runtimes.jvm.java_classes import VIRTUAL_THREAD
from findleaks.target.interruptible import interruptible
from findleaks.unwind.frame_locks import FrameLock, LockWait, describe_deadlock, find_deadlocks

if TYPE_CHECKING:
    from findleaks.runtimes.jvm.object_graph import JavaGraph

_SYNCHRONIZER = "java.util.concurrent.locks.AbstractOwnableSynchronizer"
_MOST = 1 << 18  # locks that are examined
_FEW = 1 << 8  # of these between two checks for Ctrl-C
_REMEDY = "lock these objects in the same order in all threads"


def find_virtual_deadlocks(graph: JavaGraph, types: Sequence[Type]) -> Iterator[Finding]:
    """Yield a finding for each cycle of threads with a virtual thread that no thread carries.
    Cycles of other threads are reported by `JavaFrames.deadlocks`. `types`: the live objects by
    type. Raises Interrupted."""
    if not any(one.name == VIRTUAL_THREAD for one in types):
        return
    for cycle in find_deadlocks(_list_waits(graph)):
        if any(_is_unmounted(graph, one.thread) for one in cycle):
            yield _report(graph, cycle)


def _list_waits(graph: JavaGraph) -> Iterable[LockWait]:
    """Return what threads wait for. Threads and owners are addresses of java.lang.Thread objects.
    Each thread of a cycle holds a lock, therefore the locks are examined, and not all threads."""
    waits, locks, monitors = dict[int, LockWait](), graph.locks, VirtualMonitors(graph)
    for thread in _list_holders(graph, monitors):
        index = graph.blocks.find(thread) if thread and thread not in waits else -1
        wait = (locks.find_wait(thread) or monitors.find_wait(thread)) if index >= 0 and graph.is_live(index) else None
        if wait is not None:
            waits[thread] = wait
    if not any(_is_unmounted(graph, thread) for thread in waits):
        return ()
    for one in locks.waits():  # for monitors, too
        thread, owner = locks.thread_object(one.thread), locks.thread_object(one.lock.owner)
        if thread and owner:
            waits[thread] = LockWait(thread, FrameLock(one.lock.kind, one.lock.type, one.lock.address, owner))
    for one in monitors.waits():  # of owners without a thread of the kernel, too
        waits[one.thread] = one
    return waits.values()


def _list_holders(graph: JavaGraph, monitors: VirtualMonitors) -> Iterator[int]:
    """Yield the java.lang.Thread objects that hold a lock; 0 for a lock that no thread holds."""
    synchronizers = islice(graph.instances(_SYNCHRONIZER), _MOST)
    for lock in interruptible(graph.target, synchronizers, _FEW):
        yield graph.locks.find_holder(graph.blocks.address(lock))
    yield from monitors.owners.values()


def _is_unmounted(graph: JavaGraph, thread: int) -> bool:
    index = graph.blocks.find(thread)
    return index >= 0 and graph.type_of(index) == VIRTUAL_THREAD and graph.reference(index, "carrierThread") < 0


def _report(graph: JavaGraph, cycle: list[LockWait]) -> Finding:
    known = {one.thread: graph.locks.describe_thread_object(one.thread) for one in cycle}
    numbers = {thread: number for thread, (number, _) in known.items()}
    names = dict(known.values())
    lowest = min(range(len(cycle)), key=lambda at: numbers[cycle[at].thread])
    cycle = cycle[lowest:] + cycle[:lowest]
    waits = [LockWait(numbers[thread], FrameLock(lock.kind, lock.type, lock.address, numbers[lock.owner])) for thread, lock in cycle]
    title = f"{format_count(len(cycle), 'thread')} cannot continue, because they wait for locks of each other: a deadlock."
    cause = to_sentence(describe_deadlock(waits, names)) + " The numbers are those of java.lang.Thread.threadId()."
    facts = [
        {
            "thread": thread,
            "name": names[thread] or None,
            "kind": lock.kind,
            "type": lock.type,
            "address": hex(lock.address),
            "owner": lock.owner,
        }
        for thread, lock in waits
    ]
    return Finding("deadlock", 0, title, cause, (_REMEDY,), ("stacks",), {"java_threads": facts}, 0)
