"""Find the roots of a heap dump.

The roots are the classes of the JVM's own loader, threads, JNI references, words of Java threads'
stacks and registers, and monitors. All other native memory that refers to objects (native_roots.py)
has the kind "unknown". The frame of a word on a stack is unknown.

Sources: OpenJDK 8, 11, 17, 21 and 25, src/hotspot/share/runtime: jniHandles.hpp, objectMonitor.hpp,
synchronizer.hpp (17 and later: a list of all monitors in use)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes.jvm.heap_dump import format as hprof
from findleaks.runtimes.jvm.heap_dump.classes import DumpClasses
from findleaks.runtimes.jvm.loaders import read_loaders
from findleaks.runtimes.jvm.native_roots import NativeRoots, RootKind, handles
from findleaks.runtimes.jvm.objects import JavaObjects
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.jvm.threads import java_threads, stack_of

_MOST_MONITORS = 1 << 22


class DumpThread(NamedTuple):
    """A Java thread. `thread`: the address of the JavaThread. `identifier`: the thread's object.
    `stack`: the upper end of its stack."""

    number: int
    thread: int
    identifier: int
    stack: int


class DumpRoots:
    """Finds the roots of the objects."""

    def __init__(self, tables: Tables, objects: JavaObjects, classes: DumpClasses, native: NativeRoots) -> None:
        self._tables, self._objects, self._classes, self._native = tables, objects, classes, native
        addresses = list(java_threads(tables))
        self.threads = [
            DumpThread(number, thread, tables.oop("JavaThread", "_threadObj", thread), (stack_of(tables, thread) or (0, 0))[0])
            for number, thread in enumerate(addresses, 1)
        ]

    def write(self, file: hprof.HprofFile) -> None:
        """Write a record for each root. If a more precise root of an object is known, no unknown
        root is written for this object."""
        known: set[int] = set()
        for tag, identifier, *numbers in self._precise():
            if self._is_object(identifier):
                known.add(identifier)
                file.root(tag, identifier, *numbers)
        boot = self._boot_classes()
        for identifier in boot:
            file.root(hprof.STICKY_CLASS, identifier)
        known.update(boot)
        numbers_of = {thread.stack: thread.number for thread in self.threads if thread.stack}
        chunks, handles = self._loader_handles()
        unknown = set(handles)
        seen: set[tuple[int, int]] = set()
        for found in self._native.find_by_kind(chunks, self._objects.unread_ranges):
            number = numbers_of.get(found.stack)
            if found.kind == RootKind.JNI_GLOBAL:
                known.update(found.addresses)
                for address in found.addresses:
                    file.root(hprof.JNI_GLOBAL, address, address)
            elif number is not None:
                for address in found.addresses:
                    if (address, number) not in seen:
                        seen.add((address, number))
                        file.root(hprof.JAVA_FRAME, address, number, hprof.NO_FRAME)
                known.update(found.addresses)
            else:
                unknown.update(found.addresses)
        for address in sorted(unknown - known):
            file.root(hprof.UNKNOWN, address)

    def _is_object(self, address: int) -> bool:
        return self._objects.index_of(address) != NO_BLOCK

    def _precise(self) -> Iterator[tuple[int, ...]]:
        """Yield the roots that structures of the JVM describe: tag, object and numbers of each."""
        tables = self._tables
        for thread in self.threads:
            if thread.identifier:
                yield hprof.THREAD, thread.identifier, thread.number, thread.number + 1
            block = tables.word("JavaThread", "_active_handles", thread.thread) or tables.word("Thread", "_active_handles", thread.thread)
            for _, identifier in handles(tables, block):
                yield hprof.JNI_LOCAL, identifier, thread.number, hprof.NO_FRAME
        # JDK 8 has a list of blocks with global handles.
        for handle, identifier in handles(tables, tables.word("JNIHandles", "_global_handles")):
            yield hprof.JNI_GLOBAL, identifier, handle
        for monitor in self._monitors():
            yield hprof.MONITOR, monitor

    def _monitors(self) -> Iterator[int]:
        """Yield the objects of the monitors in use."""
        tables = self._tables
        monitor = tables.word("MonitorList", "_head", tables.place("ObjectSynchronizer", "_in_use_list"))
        for _ in range(_MOST_MONITORS):
            if not monitor:
                return
            handle = tables.word("ObjectMonitor", "_object", monitor)
            yield (tables.memory.word(handle) or 0) if handle else 0
            monitor = tables.word("ObjectMonitor", "_next_om", monitor)

    def _boot_classes(self) -> list[int]:
        """Return the identifiers of the classes of the JVM's own loader."""
        return [one.identifier for one in self._classes.by_klass.values() if not self._classes.loader_of(one.klass)]

    def _loader_handles(self) -> tuple[list[int], list[int]]:
        """Return the addresses of the memory that contains handles of class loaders, and the
        objects that the handles of the JVM's own loader refer to."""
        chunks: list[int] = []
        objects: list[int] = []
        for loader in read_loaders(self._tables, self._objects.reader, self._objects.bounds):
            chunks += loader.chunks
            if not loader.holder:
                objects += self._native.starts(loader.objects)
        return chunks, objects
