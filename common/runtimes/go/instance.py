"""The Go runtime in a process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.directory import Directory
from findleaks.allocators.images import find_images
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine, Graph
from findleaks.formatting import size
from findleaks.runtimes.base import Count, FatalPlace, Holders, Part, Runtime, Site, Type, UserThread
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.garbage import type_with_garbage
from findleaks.runtimes.go import buildinfo
from findleaks.runtimes.go.blocked import find_blocked
from findleaks.runtimes.go.code_frames import GoCode
from findleaks.runtimes.go.fatal_places import find_failed, find_program_frame, find_value_type
from findleaks.runtimes.go.finalizer_cycles import find_finalizer_cycles
from findleaks.runtimes.go.goroutines import CallFrame, Goroutines
from findleaks.runtimes.go.heap import ARENA, MANUAL, OBJECTS, TABLE, Heap, anonymous, heap, total_bytes
from findleaks.runtimes.go.holders import find_free_slots, find_holders
from findleaks.runtimes.go.mappings import NativeMemory, find_mappings, list_native_memory, list_unknown_memory
from findleaks.runtimes.go.memstats import MemStats, mem_stats
from findleaks.runtimes.go.metadata import Metadata, metadata
from findleaks.runtimes.go.moduledata import Program, program
from findleaks.runtimes.go.native_owners import FREE, NativeOwners, list_allocating_calls
from findleaks.runtimes.go.object_graph import GoGraph
from findleaks.runtimes.go.objects import HeapObjects
from findleaks.runtimes.go.panics import PANIC, find_fatal_message
from findleaks.runtimes.go.processors import Processors, find_processors, list_buffers
from findleaks.runtimes.go.root_groups import group_goroutines
from findleaks.runtimes.go.sliced_arrays import find_sliced_arrays, find_unused_elements
from findleaks.runtimes.go.span_table import Span
from findleaks.runtimes.go.stack_roots import StackRoots, list_used_stacks, live_stacks
from findleaks.runtimes.go.unused_memory import find_free_memory, find_unused_memory
from findleaks.runtimes.go.verdict_findings import (
    TIMERS,
    add_remedy,
    add_site,
    find_queued_finalizers,
    find_small_retainer,
    find_sparse_maps,
    find_timers,
)
from findleaks.runtimes.go.waiting import GoHeap, find_waiting_goroutines
from findleaks.runtimes.object_graph import ObjectGraph
from findleaks.runtimes.retained_findings import find_large_types, find_retainer
from findleaks.target.arch import AARCH64, X86_64
from findleaks.target.base import Module, Range, Target, Thread
from findleaks.target.ranges import intersection, merge_ranges, range_at, subtract
from findleaks.unwind.frames import Frame, Unwinder


class Go(Runtime):
    """The Go runtime: its heap, counters, goroutines."""

    name, user_thread = "Go", "goroutine"
    names_roots = reports_objects = True
    maps_unreferenced_memory = True  # the page allocator computes the addresses of its bitmaps
    garbage_remedy = "free it before the last reference is dropped, or with runtime.AddCleanup: Go's collector does not free memory of C"
    garbage_cause = "Go's collector does not know the size of native memory, and runs only when Go's own heap has grown"
    shares_module = True  # if the program calls C, the module also has C code

    def __init__(self, target: Target, engine: Engine, module: Module, directory: Optional[Directory] = None) -> None:
        self.where = os.path.basename(module.path)
        self.problems: list[Problem] = []
        self._directory = directory
        self._target, self._engine, self._module, self._memory = target, engine, module, Memory(target)
        self._data = [part for image in find_images(target) if image.module == module for part in image.data]
        self.version = next(filter(None, (buildinfo.version(target, part) for part in self._data)), "")
        if self._heap is None:
            self._add_problem(module.start, "Go's heap was not found: it counts as unattributed memory, goroutines' stacks included")
        elif not len(self._heap.spans):
            self._add_problem(self._heap.table, "the spans of Go's heap cannot be read, so its objects are unknown")

    def _add_problem(self, address: int, what: str) -> None:
        self.problems.append(Problem(address, f"{self.where}: {what}", False))

    @cached_property
    def _heap(self) -> Optional[Heap]:
        return heap(self._target, self._engine, self._data)

    @cached_property
    def program(self) -> Optional[Program]:
        """The program's modules and types; None if they cannot be read."""
        found = program(self._target, self._engine, self._module, self._data)
        if found is None and self._heap is not None:
            what = f"the tables of functions and types of Go {self.version} cannot be read"
            self._add_problem(self._module.start, f"{what}, so goroutines and objects are unknown")
        return found

    @cached_property
    def variables_memory(self) -> list[Range]:
        """Go's variables, without those of C code."""
        modules = self.program.modules if self.program is not None else ()
        return [part for one in modules for part in (one.noptrdata, one.data, one.bss, one.noptrbss)]

    @cached_property
    def mem_stats(self) -> Optional[MemStats]:
        """The values that runtime.MemStats would have; None if they are unknown."""
        objects, manual = (total_bytes(self._of(state)) for state in (OBJECTS, MANUAL))
        old = self.version.startswith("1.18")
        return mem_stats(self._memory, self.variables_memory, objects, manual, old) if objects else None

    @cached_property
    def _processors(self) -> Optional[Processors]:
        if self.program is None or self.goroutines is None:
            return None
        return find_processors(self._memory, self.program.types, self.goroutines.tables)

    @cached_property
    def _metadata(self) -> Metadata:
        if self._heap is None:
            return Metadata([], [], [])
        return metadata(self._memory, self._engine, self._heap, self.variables_memory)

    @cached_property
    def _objects(self) -> Optional[HeapObjects]:
        """The objects of the heap; None if they cannot be read."""
        if self._heap is None or self.program is None or self.goroutines is None or not self._has_spans:
            return None
        stacks = StackRoots(self._memory, self._engine, self.program.types, self.goroutines, self.user_threads)
        found = HeapObjects(self._memory, self._engine, self._heap, self.program, self._metadata.persistent, stacks, self._processors)
        return found if len(found.spans) else None

    @cached_property
    def _graph(self) -> Optional[Graph]:
        return self._objects.mark() if self._objects is not None else None

    def object_graph(self, address: Optional[int] = None) -> Optional[ObjectGraph]:
        span = self._span_at(address) if address is not None else None
        return self._object_graph if address is None or (span is not None and span.state == OBJECTS) else None

    @cached_property
    def _object_graph(self) -> Optional[GoGraph]:
        if self._objects is None or self._graph is None or self.program is None:
            return None
        return GoGraph(self._target, self._engine, self._objects, self._graph, self.program.types, self.goroutines)

    def _span_at(self, address: int) -> Optional[Span]:
        """Return the span in use that contains an address, or None."""
        return self._heap.spans.at(address) if self._heap is not None else None

    def _stack_span_at(self, address: int) -> Optional[Range]:
        found = self._span_at(address)
        return Range(found.start, found.end) if found is not None and found.state == MANUAL else None

    @property
    def lists_objects(self) -> bool:  # type: ignore[override]
        return self._objects is not None

    def types(self) -> Sequence[Type]:
        return self._types

    @cached_property
    def _types(self) -> Sequence[Type]:
        if self._objects is None or self._graph is None:
            return []
        found = [type_with_garbage(*one) for one in self._objects.by_type(self._graph)]
        self.problems += [Problem(self._module.start, f"{self.where}: {what}", False) for what in self._objects.problems]
        return found

    @property
    def _has_spans(self) -> bool:
        return self._heap is not None and len(self._heap.spans) > 0

    @cached_property
    def _ranges(self) -> list[Range]:
        """Readable and writable parts of the arenas."""
        regions = merge_ranges(Range(region.start, region.end) for region in anonymous(self._target.regions()))
        return intersection(regions, self.list_reserved())

    def _of(self, state: int) -> list[Range]:
        """Return the memory of spans in a state."""
        return self._spans_by_state.get(state, [])

    @cached_property
    def _spans_by_state(self) -> dict[int, list[Range]]:
        return {state: self._heap.spans.ranges(state) for state in (OBJECTS, MANUAL)} if self._heap is not None else {}

    def fatal_message(self, thread: Thread, frames: Sequence[tuple[int, str, str]]) -> str:
        if self._target.arch.name not in (X86_64.name, AARCH64.name):
            return ""
        code = merge_ranges(Range(region.start, region.end) for region in self._target.regions() if region.executable)
        calls = self._calls(find_failed(self.user_threads(), thread))
        frames = [*frames, *((one.sp, one.function.name, "") for one in calls)]
        return find_fatal_message(Memory(self._target), code, thread, frames, self._name_type, self._name_function)

    def fatal_place(self, thread: Thread, message: str) -> FatalPlace:
        one = find_failed(self.user_threads(), thread, message)
        type_ = find_value_type(self._memory, self._calls(one), self._name_type) if message.startswith(PANIC) else ""
        return FatalPlace(find_program_frame(one.frames) if one is not None else None, "" if type_ in message else type_)

    def _calls(self, one: Optional[UserThread]) -> Iterable[CallFrame]:
        """Return the frames of a goroutine, innermost first."""
        return self.goroutines.walk(one.pc, one.sp, one.stack) if one is not None and self.goroutines is not None else ()

    def _name_function(self, address: int) -> str:
        table = self.goroutines.table_at(address) if self.goroutines is not None else None
        found = table.find(address) if table is not None else None
        return found.name if found is not None and found.entry == address else ""

    def _name_type(self, address: int) -> str:
        found = self.program.types.at(address) if self.program is not None else None
        return found.name if found is not None else ""

    def is_own_name(self, symbol: str) -> bool:
        """Return whether this is a name of Go, which has a package ("runtime.mheap_"). A C name has
        a dot only before a number."""
        head, dot, tail = symbol.rpartition(".")
        return bool(dot) and not (tail.isdigit() and "." not in head)

    def parts(self) -> Sequence[Part]:
        return self._parts

    @cached_property
    def _parts(self) -> Sequence[Part]:
        if self._heap is None:
            return []
        count = len(self._heap.arenas)
        detail = f"{count:,} arena{'' if count == 1 else 's'} of {ARENA >> 20} MiB"
        place = [Range(self._heap.table, self._heap.table + TABLE)]
        table = Part("table of arenas", place, None, detail=f"an entry for each {ARENA >> 20} MiB of addresses")
        if not self._has_spans:
            return [Part("heap", self._ranges, None, False, detail), table]
        objects, stacks = (intersection(self._ranges, self._of(state)) for state in (OBJECTS, MANUAL))
        free = subtract(self._ranges, [*objects, *stacks])
        parts = [
            Part("objects", objects, total_bytes(objects)),
            Part("stacks of goroutines", stacks, total_bytes(stacks)),
            Part("free pages", free, 0),
        ]
        stats, idle = self.mem_stats, ""
        if stats is not None:
            idle = f"free {size(stats.value('HeapIdle') - stats.value('HeapReleased'))}, returned {size(stats.value('HeapReleased'))}; "
        detail = f"objects {size(total_bytes(objects))}, goroutines' stacks {size(total_bytes(stacks))}, {idle}{detail}"
        whole = Part("heap", self._ranges, total_bytes(objects) + total_bytes(stacks), False, detail, parts)
        own = Part("metadata", self._metadata.ranges, None, detail="descriptors of spans, bitmaps, and what the runtime never frees")
        return [whole, table, *([own] if own.ranges else [])]

    def counters(self) -> Mapping[str, Count]:
        """Return the figures of runtime.MemStats, the numbers of spans, and the numbers of stack
        frames and of parts of objects without a map of pointers. Each word of these frames and
        parts counts as a pointer. The spans of stacks include the collector's buffers."""
        if self._heap is None or not self._has_spans:
            return {}
        spans = {
            "spans of objects": Count(self._heap.spans.states.count(OBJECTS)),
            "spans of stacks and collector data": Count(self._heap.spans.states.count(MANUAL)),
        }
        if self._objects is not None:
            spans["stack frames without a stack map"] = Count(self._objects.stacks.count_conservative())
            spans["objects without a map of pointers"] = Count(self._objects.unmapped if self._graph is not None else 0)
        stats = self.mem_stats
        if stats is None:
            return {"HeapInuse": Count(total_bytes(self._of(OBJECTS)), "bytes"), **spans}
        settings = {"GOGC": Count(stats.percent)} if stats.percent is not None else {}
        settings.update({"GOMEMLIMIT": Count(stats.limit, "bytes")} if stats.limit else {})
        return {**stats.counters, **settings, **spans}

    @cached_property
    def goroutines(self) -> Optional[Goroutines]:
        """The goroutines and the program's functions; None if they cannot be read."""
        if self.program is None:
            return None
        return Goroutines(self._target, self._engine, self.program, self.variables_memory, self._module)

    def sites(self) -> Sequence[Site]:
        return self._sites

    @cached_property
    def _sites(self) -> Sequence[Site]:
        if self._heap is None or self.goroutines is None:
            return ()
        from findleaks.runtimes.go.memory_profile import read_memory_profile  # few commands need it

        persistent, tables = self._metadata.persistent, self.goroutines.tables
        found = read_memory_profile(self._memory, self.variables_memory, persistent, tables, self.where)
        if found is None:
            return ()
        return found.sites(self._objects.live_samples(self._graph, found.buckets) if self._objects and self._graph else None)

    def code_table(self) -> Optional[GoCode]:
        return GoCode(self._target.arch, self.goroutines) if self.goroutines is not None else None

    def user_threads(self) -> Sequence[UserThread]:
        return self._user_threads

    def stack_roots(self) -> Mapping[str, Sequence[Range]]:
        return {name: live_stacks(threads) for name, threads in group_goroutines(self._user_threads).items()}

    @cached_property
    def _user_threads(self) -> Sequence[UserThread]:
        code = self.code_table()
        if self.goroutines is None or code is None:
            return ()
        unwinder, traced = Unwinder(self._target, [code]), set[int]()

        def trace(thread: Thread) -> Sequence[Frame]:
            if thread.tid in traced:  # a damaged core: a thread runs one goroutine
                return ()
            traced.add(thread.tid)
            return unwinder.trace(thread).frames

        return self.goroutines.list(trace)

    @cached_property
    def _blocked(self) -> Optional[frozenset[int]]:
        """The numbers of goroutines that are blocked for good; None if they are unknown."""
        if self._objects is None or self._graph is None or self.goroutines is None or self.program is None:
            return None
        known = self._objects, self._graph, self.goroutines.structures, self.goroutines.addresses
        return find_blocked(self._memory, self._engine, self.program.types, *known, self._other_memory)

    def holders(self) -> Optional[Holders]:
        """Return the objects that refer to native memory. They include garbage."""
        return self._owners.holders if self._owners is not None else None

    @cached_property
    def _owners(self) -> Optional[NativeOwners]:
        native = self._directory.ranges() if self._directory is not None else []
        if not native or self._directory is None or self._objects is None or self._graph is None:
            return None
        return NativeOwners(find_holders(self._objects, self._engine, self._graph, native), self._memory, self._directory.blocks)

    def native_example(self, type_name: str) -> Optional[int]:
        return (self._owners.find_example(type_name) if self._owners is not None else None) or super().native_example(type_name)

    def reference_chain(self, type_name: str) -> str:
        address, graph = self.native_example(type_name), self._object_graph
        return self._owners.describe(graph, address) if address is not None and graph is not None and self._owners is not None else ""

    def remedies(self, type_name: str) -> Sequence[str]:
        return (FREE,)

    def allocating_calls(self, is_text: bool, type_name: str = "", has_parts: bool = False) -> Sequence[str]:
        return list_allocating_calls(self._target, self.goroutines.tables, is_text, type_name, has_parts) if self.goroutines else ()

    @property
    def _known_heap(self) -> Optional[GoHeap]:
        graph, types = self._object_graph, self.program.types if self.program is not None else None
        if graph is None or types is None or self._objects is None or self._graph is None or self.goroutines is None:
            return None
        return GoHeap(self._memory, self._engine, types, self._objects, self._graph, graph, self.goroutines)

    def findings(self) -> Sequence[Finding]:
        used = sum(part.used or 0 for part in self._parts)
        many = find_waiting_goroutines(self._known_heap, self._user_threads, self._blocked, used)
        found = [*find_free_memory(self._target, self.mem_stats, self._parts), *many]
        if self._object_graph is None or self._objects is None or self._graph is None:
            return found
        found += find_mappings(self._memory, self._objects, self._engine, self._graph, *self._other_memory())
        maps, live = [*find_sparse_maps(self._target, self._objects, self._object_graph)], sum(one.bytes for one in self._types)
        about = self._memory, self._objects, self._engine, self._object_graph, live
        known = [*maps, *find_sliced_arrays(*about), *find_unused_elements(*about)]
        found += known
        about_live = self._object_graph, self.name, self._types, [*many, *known]
        held = list(find_retainer(*about_live))
        is_other = bool(held) and held[0].facts["type"] not in TIMERS
        queued = [*find_queued_finalizers(self._object_graph, 0 if is_other else live, self._user_threads, self._objects)]
        if not is_other:
            timers, cycles = find_timers(self._object_graph, live), find_finalizer_cycles(self._object_graph, self._objects, live)
            held = [*timers, *(one for one in queued if 2 * one.bytes >= live), *cycles] or held
        held = held or [*find_large_types(*about_live)] or [*find_small_retainer(*about_live)]
        held += [one for one in queued if one not in held]
        found += find_unused_memory(self._objects, self._object_graph, self._types, self.mem_stats)
        return [*found, *(add_site(add_remedy(one), self._sites) for one in held)]

    def _other_memory(self) -> tuple[list[Range], NativeMemory]:
        """Return memory of unknown use, and that of C code."""
        own, of = [*self.list_reserved(), *self._metadata.ranges, *self.bookkeeping()], (self._target, self._directory)
        return list_unknown_memory(*of, own), list_native_memory(*of, [*own, *self.variables_memory])

    def list_reserved(self) -> Sequence[Range]:
        """Return the arenas; see Runtime."""
        return merge_ranges(Range(base, base + ARENA) for base in self._heap.arenas) if self._heap is not None else []

    def stack_memory(self) -> Sequence[Range]:
        return self._ranges if self._heap is not None else []

    def dead(self) -> Sequence[Range]:
        """Return pages that belong to no span, the unused parts of stacks, and free slots that
        refer to native memory."""
        native = self._directory.ranges() if self._directory is not None else []
        slots = find_free_slots(self._objects, self._engine, native) if native and self._objects is not None else []
        stacks = self._of(MANUAL)
        if self._user_threads and self.goroutines is not None and self.goroutines.is_complete:
            stacks = list_used_stacks(self._target, self._user_threads, self._stack_span_at)
        pages = subtract(self._ranges, merge_ranges([*self._of(OBJECTS), *stacks])) if self._has_spans else []
        return merge_ranges([*pages, *slots])

    def bookkeeping(self) -> Sequence[Range]:
        found = self._processors
        buffers = list_buffers(self._memory, self.program.types, found.addresses) if self.program is not None and found is not None else []
        return [*self._metadata.lengths, *buffers]

    def note(self) -> str:
        if self._heap is None or (self._directory is not None and not self._directory.ranges()):
            return ""  # a program without cgo has no heap of malloc
        garbage = ", garbage included," if self.lists_objects else ""
        return (
            f"memory that C code allocates with malloc (cgo) counts as reachable if anything in Go's heap{garbage} "
            "refers to it, and as leaked otherwise"
        )

    def describe(self, address: int) -> str:
        if self._heap is None or range_at(self._ranges, address) is None:
            return ""
        span = self._span_at(address)
        if span is None:
            return "Go's heap" + (", free pages" if self._has_spans else "")
        if span.state == OBJECTS:
            return "Go's heap, a free slot" if self._object_graph is not None else "Go's heap, objects"
        stack = self.goroutines.describe_stack(self._user_threads, address) if self.goroutines is not None else ""
        return "Go's heap, " + (stack or "a goroutine's stack or collector data")
