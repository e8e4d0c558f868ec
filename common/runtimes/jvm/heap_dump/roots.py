"""Find the roots of a heap dump.

The roots are the classes of the JVM's own loader, threads, JNI references, words of Java threads'
stacks and registers, frames of virtual threads in the heap, and monitors. All other native memory
that refers to objects (native_roots.py) has the kind "unknown". The frame of a word on a stack is
unknown.

Sources: OpenJDK 8, 11, 17, 21 and 25, src/hotspot/share/runtime: jniHandles.hpp, objectMonitor.hpp,
synchronizer.hpp (17 and later: a list of all monitors in use)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes.jvm.heap_dump import format as hprof
from findleaks.runtimes.jvm.heap_dump.classes import DumpClasses
from findleaks.runtimes.jvm.java_classes import STACK_CHUNK, VIRTUAL_THREAD
from findleaks.runtimes.jvm.jni_handles import active_handles, handles
from findleaks.runtimes.jvm.loaders import read_loaders
from findleaks.runtimes.jvm.native_roots import NativeRoots, RootKind
from findleaks.runtimes.jvm.object_fields import ObjectFields
from findleaks.runtimes.jvm.objects import JavaObjects
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.jvm.threads import java_threads, stack_of, thread_object
from findleaks.target.base import Range
from findleaks.target.interruptible import interruptible

_MOST_MONITORS = 1 << 22
_MOST_CHUNKS, _MOST_WORDS = 1 << 10, 1 << 20  # StackChunks of a virtual thread; words of one


class DumpThread(NamedTuple):
    """A Java thread. `thread`: the address of the JavaThread, 0 for a virtual thread. `identifier`:
    the thread's object. `stack`: the upper end of its stack."""

    number: int
    thread: int
    identifier: int
    stack: int


class DumpRoots:
    """Finds the roots of the objects."""

    def __init__(
        self, tables: Tables, objects: JavaObjects, classes: DumpClasses, native: NativeRoots, is_live: Callable[[int], bool]
    ) -> None:
        """`is_live`: returns whether the object with this index may be live."""
        self._tables, self._objects, self._classes, self._native, self._is_live = tables, objects, classes, native, is_live
        self._fields = ObjectFields(tables, objects.layout)
        addresses = list(java_threads(tables))
        self.threads = [
            DumpThread(number, thread, thread_object(tables, thread), (stack_of(tables, thread) or (0, 0))[0])
            for number, thread in enumerate(addresses, 1)
        ]
        self.threads += self._virtual_threads()

    def _live(self, name: str) -> Iterator[int]:
        """Yield the addresses of the live objects of a class."""
        objects = self._objects
        indices = objects.of_classes(number for number, one in enumerate(objects.classes) if one.name == name)
        return (objects.blocks.address(index) for index in interruptible(self._tables.target, indices) if self._is_live(index))

    def _virtual_threads(self) -> Iterator[DumpThread]:
        """Yield the virtual threads that run or wait. The JVM's dumps have the same threads. Other
        virtual threads have no carrier thread and no frames."""
        carried = (one for one in self._live(VIRTUAL_THREAD) if self._fields.reference(one, "carrierThread") or self._chunks_of(one))
        return (DumpThread(number, 0, identifier, 0) for number, identifier in enumerate(carried, len(self.threads) + 1))

    def _chunks_of(self, thread: int) -> Sequence[int]:
        """Return the StackChunk objects that contain the frames of a virtual thread."""
        found: list[int] = []
        chunk = self._fields.reference(self._fields.reference(thread, "cont"), "tail")
        while self._is_object(chunk) and chunk not in found and len(found) < _MOST_CHUNKS:
            found.append(chunk)
            chunk = self._fields.reference(chunk, "parent")
        return [one for one in found if self._fields.int32(one, "sp") < self._fields.int32(one, "size")]

    def _frames(self) -> Iterator[tuple[int, int]]:
        """Yield the objects to which frames in the heap refer. Each object comes with the number of
        the thread that has the frames, or 0 if no thread has them. The JVM's dump also has these
        roots as Java frames."""
        owners = {chunk: thread.number for thread in self.threads if not thread.thread for chunk in self._chunks_of(thread.identifier)}
        for chunk in self._live(STACK_CHUNK):
            found = self._objects.classes[self._objects.numbers[self._objects.index_of(chunk)]]
            used, count = self._fields.int32(chunk, "sp"), self._fields.int32(chunk, "size")
            first = chunk + found.size
            if used < count <= _MOST_WORDS:
                words = Range(first + used * self._tables.memory.size, first + count * self._tables.memory.size)
                yield from ((one, owners.get(chunk, 0)) for some in self._native.words_in(words) for one in some)

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
        for address, owner in self._frames():
            if not owner:
                unknown.add(address)
            elif (address, owner) not in seen:
                seen.add((address, owner))
                known.add(address)
                file.root(hprof.JAVA_FRAME, address, owner, hprof.NO_FRAME)
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
            if not thread.thread:
                continue
            for _, identifier in handles(tables, active_handles(tables, thread.thread)):
                yield hprof.JNI_LOCAL, identifier, thread.number, hprof.NO_FRAME
        # JDK 8 has a list of blocks with global handles; later versions have an OopStorage.
        for handle, identifier in handles(tables, tables.word("JNIHandles", "_global_handles") if tables.is_jdk8 else 0):
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
            yield tables.decode_oop(tables.memory.word(handle) or 0) if handle else 0
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
