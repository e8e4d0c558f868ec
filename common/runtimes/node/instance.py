"""A Node.js runtime in a process."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO, Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.directory import Directory
from findleaks.allocators.memory import Memory
from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.engine.contract import Engine
from findleaks.engine.dominators import IGNORED, NO_ROOT
from findleaks.formatting import format_count, size
from findleaks.runtimes.attached_blocks import AttachedBlocks
from findleaks.runtimes.base import Count, Exclusions, Holders, ObjectTypes, Part, Type
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.garbage import GARBAGE_BYTES, GARBAGE_OBJECTS
from findleaks.runtimes.heap_dump import DumpableRuntime
from findleaks.runtimes.node import dead, shape, spaces
from findleaks.runtimes.node import heap as heaps
from findleaks.runtimes.node.addon_files import SUFFIX, list_libraries
from findleaks.runtimes.node.isolate_heaps import list_isolate_heaps
from findleaks.runtimes.node.mapped_buffers import MAPPED, find_mapped_buffers
from findleaks.runtimes.node.memory import parts
from findleaks.runtimes.node.objects import Objects, find_object_of_handle, objects
from findleaks.runtimes.node.spaces import Spaces
from findleaks.runtimes.node.spare_findings import add_spare_capacity
from findleaks.runtimes.node.verdict_findings import FINALIZE, find_large_heap, suggest_closing, suggest_deleting
from findleaks.runtimes.node.wrapped_objects import WrappedObjects, read_wrapped_objects
from findleaks.runtimes.v8 import globals as globals_
from findleaks.runtimes.v8.array_bytes import STORE, is_store
from findleaks.runtimes.v8.isolates import Isolate, isolates
from findleaks.runtimes.v8.layout import Layout, Underivable, derive
from findleaks.runtimes.v8.metadata import has_metadata
from findleaks.target.base import Module, Range, Target, Thread
from findleaks.target.ranges import intersection, merge_ranges, range_at, subtract
from findleaks.unwind.frames import Unwinder

if TYPE_CHECKING:
    from findleaks.runtimes.node.addon_structures import AddonStructures
    from findleaks.runtimes.node.external_values import Externals
    from findleaks.runtimes.node.javascript import JavaScript
    from findleaks.runtimes.object_graph import ObjectGraph

COLLECTS = ("v8::internal::Heap::PerformGarbageCollection(", "v8::internal::Heap::CollectGarbage(")
HEAP_IS_FULL, NO_MEMORY = "v8::internal::Heap::FatalProcessOutOfMemory(", "v8::internal::V8::FatalProcessOutOfMemory("
LEAST_COVERED = 1 << 20  # fewest bytes of ArrayBuffers for the remedy that views cover few of them
MOST = 1 << 30  # maximum bytes of a chunk in an entry of Holders, whose sizes have 32 bits


class Node(DumpableRuntime):
    """A Node.js runtime.

    `types` are JavaScript objects by constructor, the memory of ArrayBuffers, and the C++ classes
    whose objects JavaScript objects own."""

    name = "Node"
    version = ""
    maps_unreferenced_memory = True  # V8 computes the addresses of pages
    reports_objects = True
    dump_format = "heapsnapshot"

    def __init__(self, target: Target, engine: Engine, directory: Directory, module: Module) -> None:
        self.where = module.path.rsplit("/", 1)[-1]
        self.problems: list[Problem] = []
        self._target, self._engine, self._directory, self._module = target, engine, directory, module
        self._unwinder = Unwinder(target)
        self._heap: Optional[heaps.Heap] = None
        self._layout: Optional[Layout] = None
        self._isolates: list[Isolate] = []
        self._missing = ""
        try:
            self._heap = heaps.derive(target)
            if self._heap is None:
                self._problem("v8::Isolate::AdjustAmountOfExternalAllocatedMemory has unexpected code: V8's heap is not read")
            self._layout = derive(target)
            self._isolates = isolates(target, self._layout)
        except CapstoneMissing as error:
            self._missing = f"V8's heap and handles are not read: {error}"
            self._problem(self._missing)
        except Underivable as error:
            self._problem(f"isolates are not found: {error}")
        self._in_flux = any(self._collects(thread) for isolate in self._isolates for thread in isolate.threads)
        if self._in_flux:
            self._problem("V8 was stopped during a garbage collection: references of its objects may be inconsistent")

    def _problem(self, what: str) -> None:
        self.problems.append(Problem(self._module.start, f"{self.where}: {what}", False))

    def _collects(self, thread: Thread) -> bool:
        """Return whether a function of V8's garbage collection is on this thread's stack."""
        found = (self._target.symbolize(frame.pc) for frame in self._unwinder.trace(thread).frames)
        return any(symbol is not None and symbol.name.startswith(COLLECTS) for symbol in found)

    def fatal_message(self, thread: Thread, frames: Sequence[tuple[int, str, str]]) -> str:
        """Return the message if V8 ended the process for lack of memory; see Runtime. The heap is
        that of JavaScript objects, whose size V8 limits (--max-old-space-size)."""
        functions = [function for _, function, _ in frames]
        if any(one.startswith(HEAP_IS_FULL) for one in functions):
            return "fatal error: JavaScript heap out of memory"
        return "fatal error: out of memory" if any(one.startswith(NO_MEMORY) for one in functions) else ""

    def note(self) -> str:
        """Return a sentence that says why the heap could not be read, or ""."""
        return self._missing

    def counters(self) -> Mapping[str, Count]:
        """Return sums over all isolates, as in process.memoryUsage()."""
        found = {"isolates": Count(len(self._isolates))}
        if self._heap is not None:
            known = {"external": self._heap.external, "external memory reported to V8": self._heap.reported}
            found.update({name: Count(self._sum(offset), "bytes") for name, offset in known.items() if offset})
        found["memory of ArrayBuffers"] = Count(sum(self.objects.stored.values()), "bytes")
        found["handles"] = Count(sum(isolate.handles for isolate in self._isolates))
        nodes = globals_.derive(self._target) if not self._missing else None
        if nodes is not None:
            kept = [globals_.read(self._target, nodes, isolate.address) for isolate in self._isolates]
            found["global handles"] = Count(sum(one.handles for one in kept))
            found["global handles, weak"] = Count(sum(one.weak for one in kept))
        return found

    def _sum(self, offset: int) -> int:
        """Return the sum of a counter over all isolates."""
        memory = Memory(self._target)
        values = [memory.word(isolate.address + offset) or 0 for isolate in self._isolates] if offset else []
        return sum(value for value in values if not value >> 63)

    @cached_property
    def _chunks(self) -> list[Range]:
        if self._heap is None:
            return []
        others = [Range(owned.start, owned.end) for owned in self._directory.heaps]
        return heaps.chunks(self._target, frozenset(isolate.address + self._heap.heap for isolate in self._isolates), others)

    @cached_property
    def _shape(self) -> Optional[shape.Shape]:
        if self._heap is None or not self._chunks:
            return None
        found = shape.derive(self._target, self._heap.heap, [isolate.address for isolate in self._isolates])
        if found is None:
            self._problem("v8::Isolate::GetHeapSpaceStatistics has unexpected code: V8's spaces are not distinguished")
        return found

    @cached_property
    def _spaces(self) -> Optional[Spaces]:
        if self._shape is None:
            return None
        made = spaces.read(self._target, self._shape, [isolate.address for isolate in self._isolates], self._chunks)
        for problem in made.problems:
            self._problem(problem)
        return made

    def parts(self) -> Sequence[Part]:
        """Return chunks by isolate and space, the read-only space, and the rest of the code
        range."""
        return self._parts

    @cached_property
    def _parts(self) -> Sequence[Part]:
        made = parts(self._target, self._isolates, self._chunks, self._spaces)
        writable = [Range(one.start, one.end) for one in self._target.regions() if one.writable and not one.name]
        known = [*(one for part in made for one in part.ranges), *self._directory.ranges()]
        mapped = subtract(intersection(self.objects.mapped, writable), known)
        if not mapped:
            return made
        return [*made, Part(MAPPED, mapped, None, False, format_count(len(mapped), "mapping"))]

    @cached_property
    def objects(self) -> Objects:
        """C++ objects and ArrayBuffers' memory."""
        return objects(self._target, self._engine, self._directory)

    @property
    def lists_objects(self) -> bool:  # type: ignore[override]
        return self._spaces is not None and not self._in_flux and has_metadata(self._target)

    @cached_property
    def _javascript(self) -> Optional[JavaScript]:
        """The objects of V8's heap; None if they cannot be read."""
        if self._spaces is None or self._shape is None or self._in_flux or self._heap is None or self._layout is None:
            return None
        from findleaks.runtimes.node.javascript import JavaScript  # `find` needs no objects

        target, engine, directory = self._target, self._engine, self._directory
        heap, has_pairs = self._heap.heap, self._shape.has_pairs
        deferreds = self._structures.deferreds if self._structures is not None else None
        found = JavaScript(target, engine, directory, self._isolates, self._spaces, heap, has_pairs, self._layout, deferreds)
        if found.problem:
            self._problem(found.problem)
        return found

    def types(self) -> Sequence[Type]:
        """Return JavaScript objects by constructor, V8's other objects by category, C++ objects by
        class, and ArrayBuffers' memory; see Runtime."""
        return self._types

    @cached_property
    def _types(self) -> Sequence[Type]:
        found, unused = self._wrapped.objects, len(self._garbage_memory)
        made = [Type(name, count, found.bytes[name]) for name, count in found.counts.items()]
        if unused:
            # The bytes of `made` include those of garbage.
            own = {GARBAGE_OBJECTS: unused, GARBAGE_BYTES: 0}
            made = [one._replace(objects=one.objects - unused, own=own) if one.name == STORE else one for one in made]
        wrappers = self._externals.wrappers if self._externals is not None else ()
        if self._externals is not None and wrappers:
            made.append(Type(self._externals.name, len(wrappers), sum(map(self._directory.blocks.size, wrappers))))
        return [*made, *self._javascript_types]

    @cached_property
    def _javascript_types(self) -> Sequence[Type]:
        return list(self._javascript.types()) if self._javascript is not None else []

    def findings(self) -> Sequence[Finding]:
        if self._javascript is None:
            return []
        javascript, graph, spaces = self._javascript, self._javascript.graph, self._spaces
        divided = list_isolate_heaps(graph, self._isolates, spaces) if graph is not None and spaces is not None else ()
        found = list(find_large_heap(self._javascript_types, javascript.unread, graph, divided))
        found = add_spare_capacity(found, graph, self._javascript_types) if graph is not None else found
        mapped = next((part.ranges for part in self._parts if part.name == MAPPED), ())
        return [*found, *find_mapped_buffers(graph, mapped)] if mapped else found

    def object_graph(self, address: Optional[int] = None) -> Optional[ObjectGraph]:
        if address is not None and range_at(self._heap_ranges, address) is None:
            return None
        return self._javascript.graph if self._javascript is not None else None

    def write_heap_dump(self, out: BinaryIO, report: Callable[[float], None]) -> Optional[list[str]]:
        graph = self._javascript.graph if self._javascript is not None else None
        if graph is None:
            return None
        # Only `runtime -o` needs this.
        from findleaks.runtimes.v8.heap_snapshot import HeapSnapshotWriter

        writer = HeapSnapshotWriter(graph, report)
        writer.write(out)
        return writer.notes()

    @cached_property
    def _heap_ranges(self) -> list[Range]:
        spaces = self._spaces.spaces if self._spaces is not None else ()
        return merge_ranges(Range(*chunk) for space in spaces for chunk in space.chunks)

    def holders(self) -> Optional[Holders]:
        """Return objects that may refer to native memory; see Runtime.

        References of JavaScript objects are ignored. They also refer to the memory of their
        buffers, which only a backing store frees."""
        pieces = [(at, min(MOST, end - at)) for start, end in self._chunks for at in range(start, end, MOST)]
        addresses, sizes = array("Q", [at for at, _ in pieces]), array("I", [size for _, size in pieces])
        made, no_types = self._wrapped.objects, array("I", [NO_ROOT]) * len(pieces)
        blocks, names, live = made.blocks[:], made.names, made.memory
        for index in live:
            blocks[index] = IGNORED
        if self._externals is not None:
            names = [*names, self._externals.name]
            for index in self._externals.wrappers:
                blocks[index] = len(names) - 1
            for index in self._externals.finalized:
                blocks[index] = IGNORED
        data = [(0, live)]
        if self._garbage_memory:
            live = array("I", (index for index in live if index not in self._garbage_memory))
            data = [(0, live), (len(names), array("I", sorted(self._garbage_memory)))]
            names = [*names, STORE]
        garbage = len(names) - 1 if self._garbage_memory else 0
        owning = sum(map(is_store, made.names))  # they are the first types
        owned = list(made.foreign.items())
        return Holders(addresses, sizes, no_types, names, blocks, owning, owned=owned, data=data, garbage=garbage)

    def attached_blocks(self) -> Optional[AttachedBlocks]:
        return AttachedBlocks(self._wrapped.attached, "napi_wrap", FINALIZE) if self._wrapped.attached else None

    def allocation_sources(self) -> tuple[Sequence[str], Sequence[str]]:
        return list_libraries(self._target), ()

    @cached_property
    def _wrapped(self) -> WrappedObjects:
        """The C++ objects, with Node-API references divided by the constructor of their objects."""
        graph = self._javascript.graph if self._javascript is not None and self._has_addons else None
        if graph is None or graph.graph is None:
            return WrappedObjects(self.objects, {})
        return read_wrapped_objects(self._target, self._engine, self._directory, self.objects, graph)

    @cached_property
    def _externals(self) -> Optional[Externals]:
        """The objects that napi_create_external made; None if there are none."""
        graph = self._javascript.graph if self._javascript is not None and self._has_addons else None
        if graph is None:
            return None
        # `find` needs no objects.
        from findleaks.runtimes.node.external_values import find_externals

        return find_externals(self._target, self._engine, self._directory, self.objects, graph)

    @cached_property
    def _structures(self) -> Optional[AddonStructures]:
        """The structures that Node-API made for addons and that can leak; None if there are
        none."""
        if self._missing or self._in_flux or not self._has_addons or not has_metadata(self._target):
            return None
        nodes = globals_.derive(self._target)
        if nodes is None:
            return None
        # Most processes have no addon.
        from findleaks.runtimes.node.addon_structures import find_structures

        handles: dict[int, int] = {}
        for isolate in self._isolates:
            handles.update(zip(*globals_.strong_handles(self._target, nodes, isolate.address)))
        return find_structures(self._target, self._engine, self._directory, handles)

    def object_types(self) -> Optional[ObjectTypes]:
        """Return the types of the structures that Node-API made for addons and that can leak."""
        return self._structures.object_types(self.name) if self._structures is not None else None

    def excluded_words(self) -> Optional[Exclusions]:
        return self._structures.excluded_words() if self._structures is not None else None

    @property
    def _has_addons(self) -> bool:
        return any(module.path.endswith(SUFFIX) for module in self._target.modules())

    @cached_property
    def _garbage_memory(self) -> frozenset[int]:
        """The blocks of ArrayBuffers' memory to which only garbage refers; none if a part of the
        heap is unread, because objects there may refer to them, too."""
        is_whole = self._javascript is not None and not self._javascript.unread
        graph = self._javascript.graph if self._javascript is not None and is_whole and self.objects.memory else None
        if graph is None:
            return frozenset()
        # `find` needs no objects.
        from findleaks.runtimes.v8.buffer_memory import find_garbage_memory

        by_address = dict(zip(self._directory.blocks.columns_of(self.objects.memory).address, self.objects.memory))
        return frozenset(map(by_address.__getitem__, find_garbage_memory(graph, list(by_address))))

    def reference_chain(self, type_name: str) -> str:
        graph = self._javascript.graph if self._javascript is not None else None
        example = self.native_example(type_name)
        return graph.describe_example(example) if graph is not None and example is not None else ""

    def native_example(self, type_name: str) -> Optional[int]:
        """See Runtime. For objects of Node-API, return the JavaScript object to which one of them
        refers. For the memory of ArrayBuffers, return one of the size of which there is the most
        memory. Others may be buffers of Node itself."""
        if self._externals is not None and self._externals.wrappers and type_name == self._externals.name:
            return self._externals.objects[len(self._externals.objects) // 2]
        graph, number = self._javascript.graph if self._javascript is not None else None, self._wrapped.objects.numbers.get(type_name)
        if graph is not None and is_store(type_name) and number is not None:
            # `find` needs no objects.
            from findleaks.runtimes.v8.buffer_memory import find_buffer, list_main_size

            memory = self.objects.memory if type_name == STORE else self.objects.foreign.get(number, ())
            live = array("I", (index for index in memory if index not in self._garbage_memory))
            found = find_buffer(graph, list_main_size(self._directory.blocks, live))
            return found if found is not None else super().native_example(type_name)
        if graph is None or number not in self._wrapped.objects.addon_types:
            return super().native_example(type_name)
        return find_object_of_handle(self._target, self._directory, self._wrapped.objects.of_class(type_name), graph)

    def remedies(self, type_name: str) -> Sequence[str]:
        graph = self._javascript.graph if self._javascript is not None else None
        if graph is None or type_name != STORE:
            made = self._wrapped.objects
            chain = self.reference_chain(type_name) if made.numbers.get(type_name) in made.addon_types else ""
            return tuple(filter(None, [suggest_closing(type_name), suggest_deleting(type_name, chain)]))
        from findleaks.runtimes.v8.views import measure_views  # only `verdict` needs it

        views = measure_views(graph)
        if views.bytes < LEAST_COVERED or views.covered * 2 > views.bytes:
            return ()
        covered = f"Buffers and other views use {size(views.covered)} of the {size(views.bytes)} of their ArrayBuffers"
        return (f"copy the parts that are needed (Buffer.from(part)): {covered}, and each view keeps the whole ArrayBuffer",)

    def reported_bytes(self, name: str) -> Optional[int]:
        """Return the memory of ArrayBuffers for their type; None for others, because V8 counts only
        the sum of other reports."""
        return self.objects.stored[name] if is_store(name) else None

    def dead(self) -> Sequence[Range]:
        """Return unused parts of the new space, free lists, chunks that V8 has freed, and what
        malloc added to the memory of ArrayBuffers."""
        return merge_ranges([*self._dead, *self.objects.unused])

    @cached_property
    def _dead(self) -> list[Range]:
        if self._spaces is None or self._in_flux:
            return []
        stacks = [thread.sp for thread in self._target.threads()]
        others = [*stacks, *(owned.start for owned in self._directory.heaps)]
        return dead.dead(self._target, self._engine, self._spaces, others)

    def describe(self, address: int) -> str:
        """Return a phrase on the memory at this address; see Runtime."""
        part = next((part for part in self._parts if range_at(part.ranges, address)), None)
        if part is not None:
            unused = range_at(self._dead, address)
            return part.name + self._space(address) + (", unused part without objects" if unused else "")
        index = self._directory.blocks.find(address)
        number, names = self.objects.blocks[index] if index >= 0 else NO_ROOT, self.objects.names
        return f"of a JavaScript object: {names[number]}" if number < len(names) else ""

    def _space(self, address: int) -> str:
        """Return the space whose chunk contains this address, as a phrase; with its isolate if
        there are several."""
        if self._spaces is None:
            return ""
        for space in self._spaces.spaces:
            if space.isolate and range_at(space.chunks, address):
                return f", a chunk of {space.name}" + (f" of isolate {space.isolate:#x}" if len(self._isolates) > 1 else "")
        return ", a chunk that V8 freed but did not unmap" if range_at(self._spaces.freed, address) else ""
