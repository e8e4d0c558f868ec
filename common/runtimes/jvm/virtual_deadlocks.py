"""Find deadlocks of virtual threads that no thread carries.

Such threads have no JavaThread, so that frames/locks.py cannot read what they wait for. A virtual
thread that waits for a java.util.concurrent lock has the lock in the field `parkBlocker`, and the
lock has the thread that holds it in the field `exclusiveOwnerThread`. Since JDK 24, such a thread
may also wait for the monitor of an object; such waits are not read, because the list of the
monitors that a virtual thread holds is in its StackChunk, in fields that no table describes.

Sources: OpenJDK 21 and 25, java/lang/Thread.java, java/lang/VirtualThread.java and
java/util/concurrent/locks/AbstractOwnableSynchronizer.java."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from findleaks.formatting import format_count, to_sentence
from findleaks.runtimes.base import Type
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.jvm.java_classes import VIRTUAL_THREAD
from findleaks.target.interruptible import interruptible
from findleaks.unwind.frame_locks import PARK, FrameLock, LockWait, describe_deadlock, find_deadlocks

if TYPE_CHECKING:
    from findleaks.runtimes.jvm.object_graph import JavaGraph

_SYNCHRONIZER, _THREAD = "java.util.concurrent.locks.AbstractOwnableSynchronizer", "java.lang.Thread"
_MOST = 1 << 16  # locks and threads that are examined
_FEW = 1 << 8  # of these between two checks for Ctrl-C
_REMEDY = "lock these objects in the same order in all threads"


def find_virtual_deadlocks(graph: JavaGraph, types: Sequence[Type]) -> Iterator[Finding]:
    """Yield a finding for each cycle of threads with a virtual thread that no thread carries.
    Cycles of other threads are reported by `JavaFrames.deadlocks`. `types`: the live objects by
    type. Raises Interrupted."""
    if not any(one.name == VIRTUAL_THREAD for one in types):
        return
    waits = _list_waits(graph)
    for cycle in find_deadlocks(waits.values()):
        if any(_is_unmounted(graph, one.thread) for one in cycle):
            yield _report(graph, cycle)


def _list_waits(graph: JavaGraph) -> dict[int, LockWait]:
    """Return what threads wait for, by the index of the thread, which also identifies owners."""
    waits, locks = dict[int, LockWait](), graph.locks
    synchronizers = graph.instances(_SYNCHRONIZER)
    holders = {
        lock: thread
        for lock in interruptible(graph.target, islice(synchronizers, _MOST), _FEW)
        if (thread := graph.reference(lock, "exclusiveOwnerThread")) >= 0
    }
    if not any(graph.type_of(thread) == VIRTUAL_THREAD for thread in holders.values()):
        return {}
    for wait in locks.waits():
        thread, owner = (graph.blocks.find(locks.thread_object(tid)) for tid in (wait.thread, wait.lock.owner))
        if thread >= 0 and owner >= 0:
            waits[thread] = LockWait(thread, FrameLock(wait.lock.kind, wait.lock.type, wait.lock.address, owner))
    for thread in interruptible(graph.target, islice(graph.instances(_THREAD), _MOST), _FEW):
        lock = graph.reference(thread, "parkBlocker")
        if lock in holders and thread not in waits and graph.is_live(thread):
            waits[thread] = LockWait(thread, FrameLock(PARK, graph.type_of(lock), graph.blocks.address(lock), holders[lock]))
    return waits


def _is_unmounted(graph: JavaGraph, thread: int) -> bool:
    return graph.type_of(thread) == VIRTUAL_THREAD and graph.reference(thread, "carrierThread") < 0


def _number(graph: JavaGraph, thread: int) -> int:
    return next((one.value for one in graph.fields_of(thread, 0) if one.name == ".tid"), 0)


def _report(graph: JavaGraph, cycle: list[LockWait]) -> Finding:
    numbers = {one.thread: _number(graph, one.thread) for one in cycle}
    names = {numbers[thread]: graph.text_field(thread, "name") for thread in numbers}
    known = [LockWait(numbers[thread], FrameLock(lock.kind, lock.type, lock.address, numbers[lock.owner])) for thread, lock in cycle]
    title = f"{format_count(len(cycle), 'thread')} cannot continue, because they wait for locks of each other: a deadlock."
    cause = to_sentence(describe_deadlock(known, names)) + " The numbers are those of java.lang.Thread.threadId()."
    facts = [
        {
            "thread": thread,
            "name": names[thread] or None,
            "kind": lock.kind,
            "type": lock.type,
            "address": hex(lock.address),
            "owner": lock.owner,
        }
        for thread, lock in known
    ]
    return Finding("deadlock", 0, title, cause, (_REMEDY,), ("stacks",), {"java_threads": facts}, 0)
