"""Determine which locks Java threads hold or wait for, and which threads hold these locks.

Sources: OpenJDK 8 to 25, src/hotspot/share/runtime: vframe.cpp (what `jcmd Thread.print` prints),
objectMonitor.hpp (the owner is a JavaThread, or the BasicLock on its stack; since JDK 24 it is the
number of the thread; 1 means that the monitor does not state the owner, and that the owner's list
has the object), lockStack.hpp (since JDK 21, a list of objects in each JavaThread; `_top` is the
offset of its end from the JavaThread); src/java.base/share/classes/java: lang/Thread.java
(`parkBlocker`, `threadStatus`), lang/VirtualThread.java (`state`),
util/concurrent/locks/AbstractOwnableSynchronizer.java (`exclusiveOwnerThread`) and
AbstractQueuedSynchronizer.java (`state`); src/hotspot/share/classfile/javaThreadStatus.hpp."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.runtimes.jvm.frames.monitors import Monitor
from findleaks.runtimes.jvm.java_classes import SUSPENDED, VIRTUAL_THREAD
from findleaks.runtimes.jvm.layout import ObjectLayout
from findleaks.runtimes.jvm.single_objects import SingleObjects
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.jvm.thread_names import kernel_thread
from findleaks.runtimes.jvm.threads import java_thread_stacks, java_threads, thread_object
from findleaks.unwind.frame_locks import ELIMINATED, LOCK, LOCKED, PARK, RELOCK, WAIT, FrameLock, LockWait

_WAITS = ("java.lang.Object.wait", "java.lang.Object.wait0")
_BLOCKED = 1 << 10  # JVMTI_THREAD_STATE_BLOCKED_ON_MONITOR_ENTER, a bit of the status of a thread
_PARKED, _TIMED = 1 << 9, 1 << 5  # JVMTI_THREAD_STATE_PARKED, …_WAITING_WITH_TIMEOUT: other bits
ANONYMOUS = 1  # ObjectMonitor::ANONYMOUS_OWNER
_MOST_LOCKS = 64  # of the list of a JavaThread
_MOST_MONITORS = 1 << 16
_MARK, _INFLATED = 3, 2  # bits of the first word of an object: markWord::lock_mask, monitor_value


class JavaLocks:
    """Locks of Java threads. `layout`: that of the objects."""

    def __init__(self, tables: Tables, layout: ObjectLayout) -> None:
        self.tables, self.layout, self._objects = tables, layout, SingleObjects(tables, layout)

    @cached_property
    def _threads(self) -> Mapping[int, int]:
        """The JavaThread of each thread, by the kernel's number (tid) of the thread."""
        return {tid: thread for thread in java_threads(self.tables) if (tid := kernel_thread(self.tables, thread))}

    @cached_property
    def _numbers(self) -> Mapping[int, int]:
        """The kernel's number (tid) of each thread, by the address of its JavaThread."""
        return {thread: tid for tid, thread in self._threads.items()}

    @cached_property
    def _numbers_of_objects(self) -> Mapping[int, int]:
        """The kernel's number (tid) of each thread, by the address of its java.lang.Thread object,
        and by that of the virtual thread that it carries."""
        return {one: tid for tid, thread in self._threads.items() for one in self._thread_objects(thread)}

    def of_thread(self, tid: int) -> ThreadLocks:
        """Return a reader of the locks of a thread's frames."""
        return ThreadLocks(self, self._threads.get(tid, 0))

    def waits(self) -> Iterator[LockWait]:
        """Yield the threads that wait without a timeout for a lock that another thread holds."""
        for tid, thread in self._threads.items():
            lock = self.pending(thread)
            if lock is None and not self._status(self._thread_object(thread)) & _TIMED:
                lock = self.find_parking_object(thread)
            if lock is not None and lock.owner:
                yield LockWait(tid, lock)

    def lock(self, kind: str, address: int, owner: int = 0) -> FrameLock:
        """Return the lock of an object."""
        return FrameLock(kind, self._objects.type_name(address), address, owner)

    def pending(self, thread: int) -> Optional[FrameLock]:
        """Return the lock for which a JavaThread waits, None if there is none."""
        monitor = self._monitor(thread, "_current_pending_monitor")
        address = self._object(monitor) if monitor else 0
        return self.lock(LOCK, address, self._owner(monitor, address)) if address else None

    def waiting(self, thread: int) -> Optional[FrameLock]:
        """Return the object for which a JavaThread waits in Object.wait(), None if there is
        none."""
        monitor = self._monitor(thread, "_current_waiting_monitor")
        address = self._object(monitor) if monitor else 0
        if not address:
            return None
        if self._status(self._thread_object(thread)) & _BLOCKED:
            return self.lock(RELOCK, address, self._owner(monitor, address))
        return self.lock(WAIT, address)

    def find_parking_object(self, thread: int) -> Optional[FrameLock]:
        """Return the object for which a JavaThread waits in LockSupport.park(), None if there is
        none. Only an AbstractOwnableSynchronizer has an owner."""
        found = (self._objects.reference(one, "parkBlocker") for one in self._thread_objects(thread))
        address = next(filter(None, found), 0)
        if not address:
            return None
        return self.lock(PARK, address, self._numbers_of_objects.get(self.find_holder(address), 0))

    def find_holder(self, lock: int) -> int:
        """Return the java.lang.Thread object that holds an AbstractOwnableSynchronizer, 0 if there
        is none. A class of a program may leave the last thread in the field after unlocking."""
        is_free = self._objects.place(lock, "state") and not self._objects.int32(lock, "state")
        return 0 if is_free else self._objects.reference(lock, "exclusiveOwnerThread")

    def find_wait(self, thread: int) -> Optional[LockWait]:
        """Return the lock that a thread waits for in LockSupport.park() without a timeout, None if
        there is none. The thread and the owner of the lock are java.lang.Thread objects."""
        address = self._objects.reference(thread, "parkBlocker")
        owner = self.find_holder(address) if address else 0
        return LockWait(thread, self.lock(PARK, address, owner)) if owner and self._is_parked(thread) else None

    def _is_parked(self, thread: int) -> bool:
        """Return whether a java.lang.Thread object is parked without a timeout. A virtual thread
        that was unparked, and waits for a carrier, is not."""
        klass = self._objects.klass(thread)
        if self._objects.class_name(thread) != VIRTUAL_THREAD:
            return self._status(thread) & (_PARKED | _TIMED) == _PARKED
        states = self._objects.constants(klass, SUSPENDED)
        # Early updates of JDK 21 have no states for waits with a timeout.
        is_known = "TIMED_PARKED" in states.values()
        return is_known and states.get(self._objects.int32(thread, "state") & ~SUSPENDED) in ("PARKED", "PINNED")

    def describe_thread_object(self, thread: int) -> tuple[int, str]:
        """Return the number of a java.lang.Thread object (`threadId()`), and its name."""
        return self._objects.int64(thread, "tid"), self._objects.text(self._objects.reference(thread, "name"))

    def list_pending(self) -> Iterator[tuple[int, int]]:
        """Yield the java.lang.Thread object of each JavaThread that waits for a monitor, and the
        object that has the monitor."""
        for tid, thread in self._threads.items():
            lock = self.pending(thread)
            if lock is not None:
                yield self.thread_object(tid), lock.address

    def list_monitors(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield the monitors that a thread holds, since JDK 24: the address of the monitor, its
        object, the number of the thread or 1 (see above), and the java.lang.Thread object of this
        thread, which is 0 if no JavaThread executes it."""
        tables = self.tables
        head, seen = tables.place("ObjectSynchronizer", "_in_use_list", 0), set[int]()
        if ("JavaThread", "_monitor_owner_id") not in tables.fields or not head:
            return
        monitor = tables.word("MonitorList", "_head", head) or 0
        while monitor and monitor not in seen and len(seen) < _MOST_MONITORS:
            seen.add(monitor)
            owner = tables.word("ObjectMonitor", "_owner", monitor) or 0
            address = self._object(monitor) if owner else 0
            if address:
                tid = self._owner(monitor, address)
                yield monitor, address, owner, self.thread_object(tid) if tid else 0
            monitor = tables.word("ObjectMonitor", "_next_om", monitor) or 0

    def is_held(self, lock: FrameLock, thread: int) -> bool:
        """Return whether a JavaThread already holds the lock for which it waited."""
        return lock.owner != 0 and lock.owner == self._numbers.get(thread)

    def is_contended(self, address: int, thread: int) -> bool:
        """Return whether an object has a monitor that this JavaThread does not hold."""
        mark = self.tables.memory.word(address) or 0
        # Since JDK 25, the address of the monitor may be in a table instead.
        if mark & _MARK != _INFLATED or not (mark & ~_MARK) or self._object(mark & ~_MARK) != address:
            return False
        return self._owner(mark & ~_MARK, address) != self._numbers.get(thread, 0)

    def thread_object(self, tid: int) -> int:
        """Return the java.lang.Thread object that a thread executes, 0 if it is unknown. This is
        the virtual thread that it carries, if there is one."""
        return self._thread_objects(self._threads.get(tid, 0))[0]

    def _thread_object(self, thread: int) -> int:
        return thread_object(self.tables, thread)

    def _thread_objects(self, thread: int) -> Sequence[int]:
        """Return the virtual thread that a JavaThread carries, if there is one, and the object of
        the JavaThread itself."""
        carried, own = self.tables.oop("JavaThread", "_vthread", thread), self._thread_object(thread)
        return (carried, own) if carried and carried != own else (own,)

    def _status(self, thread: int) -> int:
        """Return the status of a java.lang.Thread object that is not a virtual thread."""
        # Since JDK 19, the fields of platform threads are in a separate object, `holder`.
        return self._objects.int32(self._objects.reference(thread, "holder") or thread, "threadStatus")

    def _monitor(self, thread: int, field: str) -> int:
        # Up to JDK 11, `field` is in Thread. In later versions, it is in JavaThread.
        return next(filter(None, (self.tables.word(kind, field, thread) for kind in ("JavaThread", "Thread"))), 0)

    def _object(self, monitor: int) -> int:
        """Return the object of an ObjectMonitor, 0 if it is unknown."""
        address = self.tables.word("ObjectMonitor", "_object", monitor) or 0
        # Up to JDK 11, monitors are in blocks, and refer to the object itself. In later versions,
        # monitors refer to a handle of the object.
        if address and ("ObjectSynchronizer", "gBlockList") not in self.tables.fields:
            address = self.tables.decode_oop(self.tables.memory.word(address) or 0)
        return address if self._objects.class_name(address) else 0

    def _owner(self, monitor: int, address: int) -> int:
        """Return the kernel's number of the thread that holds the monitor of an object; 0 if no
        thread holds it, or if the thread is unknown."""
        owner = self.tables.word("ObjectMonitor", "_owner", monitor) or 0
        if owner == ANONYMOUS:
            return self._holders.get(address, 0)
        if ("JavaThread", "_monitor_owner_id") in self.tables.fields:
            return self._numbers_of_owners.get(owner, 0)
        if owner in self._numbers or not owner:
            return self._numbers.get(owner, 0)
        at = bisect_right(self._stacks, (owner + 1,)) - 1
        start, end, thread = self._stacks[at] if at >= 0 else (0, 0, 0)
        return self._numbers.get(thread, 0) if start <= owner < end else 0

    @cached_property
    def _holders(self) -> Mapping[int, int]:
        """For each object in the list of a JavaThread (lockStack.hpp), the kernel's number of the
        thread that holds it."""
        return {address: tid for tid, thread in self._threads.items() for address in self._held_objects(thread)}

    @cached_property
    def _numbers_of_owners(self) -> Mapping[int, int]:
        """The kernel's number of each thread, by the number with which monitors identify the thread
        as their owner (_monitor_owner_id)."""
        numbers = ((self.tables.word("JavaThread", "_monitor_owner_id", thread), tid) for tid, thread in self._threads.items())
        return {number: tid for number, tid in numbers if number}

    @cached_property
    def _stacks(self) -> Sequence[tuple[int, int, int]]:
        """Start and end of the stack of each JavaThread, and the address of the JavaThread,
        sorted."""
        return sorted((end - size, end, thread) for thread, end, size in java_thread_stacks(self.tables))

    def _held_objects(self, thread: int) -> Sequence[int]:
        """Return the objects in the list of a JavaThread (lockStack.hpp)."""
        tables = self.tables
        stack, first = tables.place("JavaThread", "_lock_stack", thread), tables.fields.get(("LockStack", "_base[0]"))
        top = tables.int32("LockStack", "_top", stack) if stack else None
        if first is None or top is None:
            return ()
        start = stack + first.offset
        count = (thread + top - start) // tables.memory.size
        return tables.memory.words(start, count) or () if 0 < count <= _MOST_LOCKS else ()


class ThreadLocks:
    """Reads the locks of a thread's frames, innermost frame first."""

    def __init__(self, locks: JavaLocks, thread: int) -> None:
        """`thread`: the JavaThread, 0 if there is none."""
        self._locks, self._thread, self._is_innermost = locks, thread, True

    def of_frame(self, method: str, monitors: Sequence[Monitor]) -> tuple[FrameLock, ...]:
        """Return the locks of the next frame. Only the innermost frame waits for a lock."""
        if not self._thread:
            return ()
        found, waits = list(self._waits(method)) if self._is_innermost else [], self._is_innermost
        self._is_innermost = False
        pending = self._locks.pending(self._thread) if waits and monitors else None
        for one in monitors:
            if one.is_eliminated:
                found.append(self._locks.lock(ELIMINATED, one.address))
                continue
            if waits and pending is not None and pending.address == one.address and not self._locks.is_held(pending, self._thread):
                found.append(pending)
            elif waits and self._locks.is_contended(one.address, self._thread):
                found.append(self._locks.lock(LOCK, one.address))
            else:
                found.append(self._locks.lock(LOCKED, one.address))
            waits = False
        return tuple(found)

    def _waits(self, method: str) -> Iterator[FrameLock]:
        found = self._locks.waiting(self._thread) if method in _WAITS else self._locks.find_parking_object(self._thread)
        if found is not None:
            yield found
