"""Java threads, including the compilers'; the collector's are ordinary threads.

Source: OpenJDK 17 to 25, src/hotspot/share/runtime/threadSMR.hpp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from findleaks.runtimes.jvm.tables import Tables

MAX_THREADS = 1 << 16


def java_threads(tables: Tables) -> Sequence[int]:
    """Return the addresses of the JavaThreads."""
    listed = tables.word("ThreadsSMRSupport", "_java_thread_list")
    count = tables.int32("ThreadsList", "_length", listed or 0)
    array = tables.word("ThreadsList", "_threads", listed or 0)
    if not listed or not count or not array or count > MAX_THREADS:
        return ()
    return tables.memory.words(array, count) or ()


def java_stacks(tables: Tables) -> Iterator[tuple[int, int]]:
    """Yield (upper end, size) of each Java thread's stack."""
    for thread in java_threads(tables):
        base = size = None
        # Versions differ in which of these types has the fields
        for kind in ("JavaThread", "Thread"):
            base = base or tables.word(kind, "_stack_base", thread)
            size = size or tables.word(kind, "_stack_size", thread)
        if base and size and size < base and size < 1 << 40:
            yield base, size
