"""One HotSpot in a process."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import BinaryIO, Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.directory import Directory
from findleaks.allocators.sites import Recording
from findleaks.engine.contract import Engine
from findleaks.engine.terms import Kind, State
from findleaks.formatting import format_count, size
from findleaks.runtimes.base import Count, Holders, Part, Site, Type
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.garbage import add_types, type_with_garbage
from findleaks.runtimes.heap_dump import DumpableRuntime
from findleaks.runtimes.jvm import parts, permanent_blocks, spaces, tracked_blocks, tracking
from findleaks.runtimes.jvm.arena_chunks import list_arena_chunks
from findleaks.runtimes.jvm.classes import ClassCounts, count_classes
from findleaks.runtimes.jvm.cleaning import is_cleaned
from findleaks.runtimes.jvm.concurrent import ConcurrentHeap, concurrent_heap
from findleaks.runtimes.jvm.concurrent_spaces import concurrent_spaces
from findleaks.runtimes.jvm.holders import BUFFER, find_buffer, find_example, find_holders
from findleaks.runtimes.jvm.java_classes import ClassReader
from findleaks.runtimes.jvm.jni_libraries import list_allocating_functions, list_loaded_libraries
from findleaks.runtimes.jvm.layout import ObjectLayout, read_layout
from findleaks.runtimes.jvm.loaders import count_loader_types
from findleaks.runtimes.jvm.native_roots import NativeRoots
from findleaks.runtimes.jvm.object_graph import JavaGraph
from findleaks.runtimes.jvm.objects import JavaObjects, read_objects
from findleaks.runtimes.jvm.reachability import Reachability
from findleaks.runtimes.jvm.remedies import find_remedies
from findleaks.runtimes.jvm.spaces import Dead, ObjectRange, Space
from findleaks.runtimes.jvm.stale_words import list_stale_words
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.jvm.threads import java_stacks
from findleaks.runtimes.jvm.tracking import Tracking
from findleaks.runtimes.jvm.verdict_findings import find_in_graph, find_unused_heap
from findleaks.runtimes.object_graph import GARBAGE, ObjectGraph, ObjectRoot
from findleaks.target.base import Module, Range, Target, Thread
from findleaks.target.ranges import merge_ranges, subtract

TRIM = "System.trim_native_heap"
_REPORT = "VMError::report"  # the JVM's functions that report a fatal error
_MOST_MESSAGE = 1 << 10  # bytes
HEAP_PART = "Java heap"
_UNREAD = "Java objects cannot be read: the heap is damaged, or its collector is not supported"
_COLLECTING = (
    "Java objects are counted with garbage, and paths to them may be missing: the JVM was stopped "
    "in the middle of a collection; a core that is written at another time has the paths"
)
LOADERS_OF_TYPE = "class loaders of type "
"""The beginning of the names of counters that count class loaders of one type."""
# A type gets a counter if it has this many loaders; maximum number of such counters
MANY_LOADERS, MOST_LOADER_TYPES = 10, 3


class HotSpot(DumpableRuntime):
    """See Runtime."""

    name = "JVM"
    garbage_cause = "a collection (jcmd PID GC.run) frees this memory, but the JVM collects only when the Java heap fills up"
    garbage_remedy = (
        "free native memory before the last reference to its Java object is dropped, or by a Cleaner: these objects have no Cleaner"
    )
    maps_unreferenced_memory = True  # it computes the addresses of card tables and bitmaps

    def __init__(self, target: Target, engine: Engine, directory: Directory, module: Module) -> None:
        self.where = os.path.basename(module.path)
        self.problems: list[Problem] = []
        self._target, self._module = target, module
        self._engine, self._directory = engine, directory
        self._tables = Tables(target, module)
        if not self._tables.fields:
            self.problems.append(
                Problem(module.start, f"{self.where}: its table of structures cannot be read, so nothing about the JVM is known", False)
            )
        self.version = self._version()

    def _version(self) -> str:
        """The version, such as "17.0.15+6-Debian-1deb12u1"."""
        text = self._tables.word("Abstract_VM_Version", "_s_vm_release")
        release = self._tables.text(text) if text else ""
        if release:
            return release
        major = self._tables.int32("Abstract_VM_Version", "_vm_major_version")
        return str(major) if major else ""

    @cached_property
    def _parts(self) -> list[Part]:
        return parts.parts(self._tables, self._spaces, self._concurrent)

    @cached_property
    def _concurrent(self) -> Optional[ConcurrentHeap]:
        return concurrent_heap(self._tables)

    @cached_property
    def _spaces(self) -> list[Space]:
        return spaces.spaces(self._tables, self._engine)

    @cached_property
    def _dead(self) -> list[Dead]:
        if self._concurrent is None:
            return spaces.dead(self._tables, self._engine, self._spaces)
        heap = [part for one in self._parts if one.name == HEAP_PART for part in one.ranges]
        return [Dead(start, end, "a part without objects") for start, end in subtract(heap, self._used)] if self._used else []

    @cached_property
    def _used(self) -> list[Range]:
        """The parts of a concurrent collector's heap that may contain objects. ZGC may compact a
        page in place. During this time, there are objects above the top of the page, too."""
        if self._is_zgc:
            return merge_ranges(Range(space.bottom, space.end) for space in self._object_spaces)
        return merge_ranges(Range(one.start, one.end) for one in self._object_ranges)

    @property
    def _is_zgc(self) -> bool:
        return self._concurrent is not None and self._concurrent.collector == "ZGC"

    @cached_property
    def _layout(self) -> Optional[ObjectLayout]:
        return read_layout(self._tables)

    @cached_property
    def _objects(self) -> Optional[JavaObjects]:
        """The objects of the Java heap; None if they cannot be read."""
        if self._layout is None or not self._object_spaces:
            return None
        has_moves = bool(self._concurrent) and not self._is_zgc and not spaces.collecting(self._tables)
        return read_objects(self._tables, self._engine, self._layout, self._object_ranges, has_moves)

    @cached_property
    def _object_spaces(self) -> Sequence[Space]:
        if self._concurrent is None:
            return self._spaces
        return concurrent_spaces(self._tables, self._engine, self._concurrent)

    @cached_property
    def _object_ranges(self) -> Sequence[ObjectRange]:
        return spaces.object_ranges(self._tables, self._engine, self._object_spaces)

    @cached_property
    def _separates_garbage(self) -> bool:
        """Whether garbage can be distinguished from live objects. It cannot if objects are moving,
        or if a part of the heap is missing.

        This property reads no objects, because `find` uses it, too."""
        if not self.lists_objects or spaces.collecting(self._tables) != 0:
            return False
        if self._tables.relocation is not None and not self._tables.relocation.is_known:
            return False
        readable = [Range(one.start, one.end) for one in self._target.regions() if one.readable]
        return not subtract(merge_ranges(Range(one.start, one.end) for one in self._object_ranges), readable)

    @cached_property
    def _reach(self) -> Optional[Reachability]:
        """The graph of the objects; None if garbage cannot be distinguished from live objects."""
        objects = self._objects if self._separates_garbage else None
        return Reachability(self._tables, self._engine, objects, self._native_roots(objects)) if objects is not None else None

    def _native_roots(self, objects: JavaObjects) -> NativeRoots:
        bounds = {place for one in self._object_spaces for place in (one.bottom, one.end)}
        return NativeRoots(self._tables, self._engine, self._directory, self._module, objects.blocks, objects.layout.references, bounds)

    def write_heap_dump(self, out: BinaryIO, report: Callable[[float], None]) -> Optional[list[str]]:
        """Write a heap dump; see DumpableRuntime."""
        objects = self._objects
        if objects is None:
            return None
        # Only `runtime -o` needs this, so it is imported here.
        from findleaks.runtimes.jvm.heap_dump.writer import HeapDumpWriter

        writer = HeapDumpWriter(self._tables, self._engine, objects, self._native_roots(objects), self._may_be_live, report)
        writer.write(out)
        return writer.notes()

    @cached_property
    def _kinds(self) -> Optional[memoryview]:
        return self._reach.graph.kinds() if self._reach is not None else None

    def _may_be_live(self, index: int) -> bool:
        return self._kinds is None or self._kinds[index] == Kind.REACHABLE

    def object_graph(self, address: Optional[int] = None) -> Optional[ObjectGraph]:
        is_known = self.lists_objects and (address is None or self._is_in_heap(address))
        return self._object_graph if is_known else None

    def named_roots(self) -> Sequence[ObjectRoot]:
        from findleaks.runtimes.jvm.named_roots import list_named_roots

        graph = self._object_graph if self.lists_objects else None
        return list_named_roots(graph) if graph is not None else ()

    @cached_property
    def _object_graph(self) -> Optional[JavaGraph]:
        if self._objects is None:
            return None
        return JavaGraph(self._tables, self._engine, self._objects, self._reach)

    def _is_in_heap(self, address: int) -> bool:
        return any(start <= address < end for part in self._parts if part.name == HEAP_PART for start, end in part.ranges)

    @property
    def lists_objects(self) -> bool:  # type: ignore[override]
        return self._layout is not None and bool(self._object_spaces)

    @property
    def counts_garbage(self) -> bool:  # type: ignore[override]
        return self.lists_objects and not self._separates_garbage

    def types(self) -> Sequence[Type]:
        """See Runtime. Live objects and garbage together are the objects that `jcmd PID
        GC.class_histogram -all` counts."""
        return self._types

    @cached_property
    def _types(self) -> Sequence[Type]:
        objects = self._objects
        if objects is None:
            return []
        if objects.unread:
            what = f"{size(objects.unread)} of the Java heap cannot be read as objects: the numbers of objects are too low"
            self.problems.append(Problem(self._object_spaces[0].bottom, what, False))
        if self._reach is None:
            return add_types(Type(one.java_class.name, one.objects, one.bytes) for one in objects.by_class())
        return add_types(type_with_garbage(one.java_class.name, one.live, one.garbage) for one in self._reach.by_class())

    def reference_chain(self, type_name: str) -> str:
        """See Runtime. The path leads to the object that `native_example` returns."""
        graph, address = self._object_graph, self.native_example(type_name)
        found = graph.find(address) if graph is not None and address is not None else None
        return graph.describe_chain(self._reach.path_to(found.block)) if graph and found and self._reach else ""

    def native_example(self, type_name: str) -> Optional[int]:
        if (holders := self._holders) is None or (objects := self._objects) is None:
            return super().native_example(type_name)
        is_buffer, blocks = type_name == BUFFER, self._directory.blocks
        found = find_buffer(holders, objects, self._tables.memory, blocks) if is_buffer else find_example(holders, type_name)
        return found or super().native_example(type_name)

    def allocation_sources(self) -> tuple[Sequence[str], Sequence[str]]:
        return list_loaded_libraries(self._target, self._module), list_allocating_functions(self._tables)

    def remedies(self, type_name: str) -> Sequence[str]:
        klasses = {one.name: one.klass for one in (self._objects.classes if self._objects is not None else ())}
        graph, path = self._object_graph if type_name == BUFFER else None, self.reference_chain(type_name)
        plain = graph is not None and graph.refers_to_nothing(self.native_example(type_name) or 0)
        return list(find_remedies(self._tables, ClassReader(self._tables), klasses, self._live, type_name, path, not plain))

    def native_classes(self, native: str, about: str, size: int, is_alike: bool = False) -> Sequence[tuple[str, int, int]]:
        from findleaks.runtimes.jvm.native_classes import NativeClasses  # `find` does not need it

        classes = NativeClasses(self._tables, self._objects, self._kinds, self._directory.blocks, self._live)
        return classes.find(native, about, size, is_alike)

    @property
    def _live(self) -> Mapping[str, int]:
        return {one.name: one.objects for one in self._types}

    def frees_garbage(self, type_name: str) -> bool:
        return is_cleaned(self._tables, self._engine, self._objects, self._reach, type_name)

    def holders(self) -> Optional[Holders]:
        """See Runtime. The result includes garbage, which retains native memory until it is
        collected."""
        return self._holders

    @cached_property
    def _holders(self) -> Optional[Holders]:
        if self._objects is None:
            return None
        unused = subtract(self._used, self._objects.ranges) if self._concurrent is not None else []
        return find_holders(self._objects, self._engine, self._target, self._directory.ranges(), self._kinds, unused)

    def fatal_message(self, thread: Thread, frames: Sequence[tuple[int, str, str]]) -> str:
        """See Runtime. After a signal there is no message."""
        if not any(function.startswith(_REPORT) for _, function, _ in frames):
            return ""
        text, detail = (self._tables.symbol(f"_ZN7VMError{name}E") for name in ("8_message", "11_detail_msg"))
        parts = [self._tables.text(self._tables.memory.word(text) or 0) if text else ""]
        parts.append(self._tables.memory.c_string(detail, _MOST_MESSAGE).decode("utf-8", "replace") if detail else "")
        return ": ".join(filter(None, parts))

    def findings(self) -> Sequence[Finding]:
        heap = next((part for part in self._parts if part.name == HEAP_PART), None)
        if heap is None or self._reach is None:
            return []
        collector = "G1" if self._spaces and self._spaces[0].name == spaces.REGION else ""
        found = list(find_unused_heap(self._target, heap, self._types, collector))
        return [*found, *(find_in_graph(self._object_graph, self._types) if self._object_graph is not None else ())]

    @cached_property
    def _loader_types(self) -> Mapping[str, int]:
        return count_loader_types(self._tables, self._layout) if self._layout else {}

    def note(self) -> str:
        if not self.lists_objects:
            return _UNREAD if self._tables.fields else "Java objects cannot be read"
        if not self.counts_garbage:
            return ""
        return _COLLECTING if spaces.collecting(self._tables) else "Java objects are counted with garbage, which is not collected yet"

    def types_note(self) -> str:
        """See Runtime. If two threads of ZGC move an object at the same time, one copy is not used.
        Such a copy looks like an object that became garbage after ZGC had moved it."""
        count = self._moved_garbage if self._is_zgc and self._reach is not None else 0
        where = f"{format_count(count, 'garbage object')} on pages to which ZGC moves objects"
        return f"{where}: some of these may be unused copies of live objects" if count else self.note()

    @property
    def _moved_garbage(self) -> int:
        """The number of garbage objects that ZGC may have made as copies of other objects."""
        if self._objects is None or self._kinds is None:
            return 0
        count = 0
        for space in self._object_spaces:
            if space.name != spaces.EDEN:
                first, last = (self._objects.blocks.at_or_after(address) for address in (space.bottom, space.top))
                kinds = bytes(self._kinds[first:last])
                count += sum(kinds.count(kind) for kind in GARBAGE)
        return count

    @cached_property
    def classes(self) -> Optional[ClassCounts]:
        """The number of class loaders and classes; None if it is unknown."""
        return count_classes(self._tables)

    @cached_property
    def tracked(self) -> Optional[Tracking]:
        """The counts of NMT; None if it is off or cannot be read."""
        return tracking.tracking(self._tables)

    def parts(self) -> Sequence[Part]:
        return self._parts

    def permanent_blocks(self) -> Sequence[int]:
        return permanent_blocks.list_permanent_blocks(self._tables, self._engine, self._directory, self._module)

    def bookkeeping(self) -> Sequence[Range]:
        return list_stale_words(self._tables, self._engine, self._directory, self._module)

    def temporary_blocks(self) -> array[int]:
        return list_arena_chunks(self._tables, self._engine, self._directory.blocks)

    def list_reserved(self) -> Sequence[Range]:
        return parts.list_reserved(self._tables, self._concurrent)

    def counters(self) -> Mapping[str, Count]:
        """See Runtime. If NMT is on, the counters are those that `jcmd PID VM.native_memory
        scale=b` prints."""
        found: dict[str, Count] = {}
        heap = self._tables.word("Universe", "_collectedHeap")
        collections = self._tables.int32("CollectedHeap", "_total_collections", heap or 0)
        # Shenandoah counts its collections in another structure.
        if collections is not None and (self._concurrent is None or self._is_zgc):
            found["collections"] = Count(collections)
        active = spaces.collecting(self._tables)
        if active and not self.problems:
            self.problems.append(
                Problem(active, "the JVM was stopped in the middle of a collection: the list of objects in use may be incomplete", False)
            )
        if self.classes is not None:
            found["class loaders"] = Count(self.classes.loaders)
            many = [(name, count) for name, count in self._loader_types.items() if count >= MANY_LOADERS]
            found.update((f"{LOADERS_OF_TYPE}{name}", Count(count)) for name, count in many[:MOST_LOADER_TYPES])
            found["classes"] = Count(self.classes.classes)
        found["Java threads"] = Count(sum(1 for _ in java_stacks(self._tables)))
        blocks = self._directory.blocks
        used = blocks.totals(State.IN_USE).bytes
        found["malloc: in use"] = Count(used, "bytes")
        found["malloc: free and not returned"] = Count(blocks.totals(State.FREE).bytes + blocks.totals(State.CACHED).bytes, "bytes")
        found.update(self.tracked.counters(used) if self.tracked is not None else {})
        return found

    def sites(self) -> Sequence[Site]:
        """See Runtime: NMT's sites, if it records them."""
        return tracking.sites(self._tables) if self.recorded else []

    @property
    def recorded(self) -> bool:
        return self.tracked is not None and self.tracked.detailed

    def recordings(self) -> Sequence[Recording]:
        """See Runtime: NMT's recordings, if it has any."""
        if not self.recorded:
            return []
        found = tracked_blocks.read_recording(self._tables, self._engine, self._directory.blocks)
        return [found] if found is not None else []

    def release_command(self, call: str) -> str:
        """See Runtime: a command of jcmd, since JDK 17.0.9 and 21.0.1 (JDK-8293114)."""
        return f"jcmd {self._target.pid or 'PID'} {TRIM}" if call == "malloc_trim(0)" and self._can_trim else ""

    @cached_property
    def _can_trim(self) -> bool:
        """Whether the JVM's library contains the name of the command."""
        regions = [region for region in self._target.regions() if region.readable and not region.writable]
        mine = [region for region in regions if self._module.start <= region.start < self._module.end]
        pieces = (piece for region in mine for piece in self._target.pieces(region.start, region.end))
        return any(TRIM.encode() in bytes(piece.data) for piece in pieces)

    def describe(self, address: int) -> str:
        part = next((part for part in self._parts if any(start <= address < end for start, end in part.ranges)), None)
        if part is None:
            return ""
        at = bisect_right(self._dead, (address, self._tables.memory.arch.mask, "")) - 1
        if at >= 0 and address < self._dead[at].end:
            return f"{part.name} of the JVM, in {self._dead[at].what}: dead"
        return f"{part.name} of the JVM"

    def dead(self) -> Sequence[Range]:
        """See Runtime: parts of the Java heap. ZGC without generations maps its heap at three
        addresses. Two of these mappings are included, because the third one is scanned."""
        again = self._concurrent.again if self._concurrent is not None and self._object_spaces else ()
        return merge_ranges([*(Range(part.start, part.end) for part in self._dead), *again])
