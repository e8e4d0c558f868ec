"""Find the words of JavaThreads that do not refer to objects.

- The class Thread, from which JavaThread is derived, has one field with a reference, the pending
  exception. Its other fields include addresses in the thread's buffer (TLAB) and in the parts of it
  that are sampled. An object may begin there by chance.
- Since JDK 21, a thread has a stack with the objects that it has locked (LockStack). Entries above
  its top are stale.

Sources: OpenJDK 8, 11, 17, 21 and 25, runtime/thread.hpp, utilities/exceptions.hpp (ThreadShadow);
21 and 25, runtime/lockStack.hpp (`_top` is the offset of the next entry in the JavaThread; 8
entries)."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.jvm.threads import java_threads
from findleaks.target.base import Range

_LOCKS = 8  # LockStack::CAPACITY
_MOST_SIZE = 1 << 14  # bytes of a Thread


def words_without_objects(tables: Tables) -> Iterator[Range]:
    """Yield the parts of each JavaThread whose words are not references."""
    exception, size = tables.fields.get(("ThreadShadow", "_pending_exception")), tables.sizes.get("Thread", 0)
    first = exception.offset + tables.memory.size if exception is not None else size
    for thread in java_threads(tables):
        if first < size <= _MOST_SIZE:
            yield Range(thread + first, thread + size)
        yield from _unused_locks(tables, thread)


def _unused_locks(tables: Tables, thread: int) -> Iterator[Range]:
    stack = tables.place("JavaThread", "_lock_stack", thread)
    top = tables.int32("LockStack", "_top", stack) if stack else None
    first = tables.place("LockStack", "_base[0]", stack) if stack else None
    if top is not None and first:
        end = first + _LOCKS * tables.memory.size
        if first <= thread + top < end:
            yield Range(thread + top, end)
