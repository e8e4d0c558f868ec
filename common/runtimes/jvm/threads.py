"""List Java threads, including those of the compilers. Threads of the collector are ordinary
threads.

Sources: OpenJDK 17 to 25, src/hotspot/share/runtime/threadSMR.hpp; 8 and 11, runtime/thread.hpp,
where each thread refers to the next one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Optional

from findleaks.engine.contract import Blocks
from findleaks.runtimes.jvm.tables import NMT_HEADERS, Tables
from findleaks.target.base import Range
from findleaks.target.interruptible import interruptible

MAX_THREADS = 1 << 16
_MOST_BYTES = 1 << 14  # of a JavaThread; real ones have about 1,500
_EVENT = 256  # bytes to which events of threads are aligned
_LOOK = 1 << 10  # threads and events between two checks for Ctrl-C
_WORDS = 24  # of a java.lang.Thread that are searched for the address of its JavaThread


def java_threads(tables: Tables) -> Sequence[int]:
    """Return the addresses of the JavaThreads."""
    if ("Threads", "_thread_list") in tables.fields:
        return list(_linked_threads(tables))
    listed = tables.word("ThreadsSMRSupport", "_java_thread_list")
    count = tables.int32("ThreadsList", "_length", listed or 0)
    array = tables.word("ThreadsList", "_threads", listed or 0)
    if not listed or not count or not array or count > MAX_THREADS:
        return ()
    return tables.memory.words(array, count) or ()


def _linked_threads(tables: Tables) -> Iterator[int]:
    """Yield the threads of a list, at most MAX_THREADS."""
    thread = tables.word("Threads", "_thread_list")
    for _ in range(MAX_THREADS):
        if not thread:
            return
        yield thread
        thread = tables.word("JavaThread", "_next", thread)


def list_thread_blocks(tables: Tables, blocks: Blocks) -> list[int]:
    """Return the starts of the blocks that contain JavaThreads after their start: with biased
    locking (JDK 8 to 17), the address of a thread is a multiple of 2,048, and nothing refers to the
    start of its block."""
    looked_up = ((thread, blocks.lookup(thread)) for thread in java_threads(tables))
    found = ((thread, one[1]) for thread, one in looked_up if one is not None)
    return [block for thread, block in found if block != thread]


def list_event_blocks(tables: Tables, blocks: Blocks, variables: Iterable[int]) -> Iterator[int]:
    """Yield the starts of the blocks with events on which threads wait. The JVM aligns an event by
    itself, so only an address after the start of its block is stored: a multiple of 256. A thread
    refers to its events. When it ends, they join a list, whose head is one of the words in
    `variables` of libjvm. Raises Interrupted.

    Source: OpenJDK 8 to 21, src/hotspot/share/runtime/park.cpp (ParkEvent, operator new)"""
    events, seen = list[int](), set[int]()
    places = chain(java_threads(tables), events)  # the loop adds events
    lists = chain((variables,), (_list_words(tables, blocks, place) for place in places))
    for words in interruptible(tables.target, lists, _LOOK):
        for word in {one for one in words if one and one % _EVENT == 0} - seen:
            event = blocks.lookup(word)
            if event is not None and any((event[1] + header) // _EVENT * _EVENT + _EVENT == word for header in NMT_HEADERS):
                events.append(word)
                seen.add(word)
                yield event[1]


def _list_words(tables: Tables, blocks: Blocks, address: int) -> Sequence[int]:
    """Return the words from an address to the end of its block."""
    found = blocks.lookup(address)
    size = found[1] + blocks.size(found[0]) - address if found is not None else 0
    return tables.memory.words(address, min(size, _MOST_BYTES) // tables.memory.size) or ()


def thread_object(tables: Tables, thread: int) -> int:
    """Return the java.lang.Thread object of a JavaThread, 0 if it is unknown."""
    return tables.oop("JavaThread", "_threadObj", thread)


def list_thread_words(tables: Tables) -> list[Range]:
    """Return the words of java.lang.Thread objects that refer to their JavaThreads (the field
    `eetop`), one for each thread. The tables of most versions lack the field, but no other word of
    the object has this value."""
    memory, found = tables.memory, list[Range]()
    for thread in java_threads(tables):
        start = thread_object(tables, thread)
        words = memory.words(start, _WORDS) if start else None
        if words and thread in words:
            place = start + memory.size * words.index(thread)
            found.append(Range(place, place + memory.size))
    return sorted(found)


def stack_of(tables: Tables, thread: int) -> Optional[tuple[int, int]]:
    """Return (upper end, size) of a Java thread's stack; None if it cannot be read."""
    base = size = None
    # Versions differ in which of these types has the fields
    for kind in ("JavaThread", "Thread"):
        base = base or tables.word(kind, "_stack_base", thread)
        size = size or tables.word(kind, "_stack_size", thread)
    return (base, size) if base and size and size < base and size < 1 << 40 else None


def java_stacks(tables: Tables) -> Iterator[tuple[int, int]]:
    """Yield (upper end, size) of each Java thread's stack."""
    return ((base, size) for _, base, size in java_thread_stacks(tables))


def java_thread_stacks(tables: Tables) -> Iterator[tuple[int, int, int]]:
    """Yield each JavaThread's address, and the upper end and size of its stack."""
    for thread in java_threads(tables):
        found = stack_of(tables, thread)
        if found is not None:
            yield thread, *found
