"""Read the names that a Java program gave to its threads.

Source: OpenJDK 8 to 25, src/java.base/share/classes/java/lang/Thread.java (`name`; an array of
characters in early versions of 8)."""

from __future__ import annotations

from collections.abc import Mapping

from findleaks.runtimes.jvm.layout import read_layout
from findleaks.runtimes.jvm.single_objects import SingleObjects
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.jvm.threads import java_threads, thread_object


def java_thread_names(tables: Tables) -> Mapping[int, str]:
    """Return the names of Java threads by the kernel's number of the thread. Threads whose names
    cannot be read are left out."""
    layout = read_layout(tables)
    if layout is None:
        return {}
    objects = SingleObjects(tables, layout)
    names = {
        kernel_thread(tables, thread): objects.text(objects.reference(thread_object(tables, thread), "name"))
        for thread in java_threads(tables)
    }
    return {tid: name for tid, name in names.items() if tid and name}


def kernel_thread(tables: Tables, thread: int) -> int:
    """Return the kernel's number of a JavaThread, 0 if it is unknown."""
    system = tables.word("JavaThread", "_osthread", thread) or tables.word("Thread", "_osthread", thread) or 0
    return tables.int32("OSThread", "_thread_id", system) or 0
