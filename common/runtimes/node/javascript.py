"""JavaScript objects of V8's heap by the name of their constructor, and V8's other objects by
category."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.directory import Directory
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.engine.terms import Totals
from findleaks.formatting import size
from findleaks.libc.stacks import thread_stacks
from findleaks.runtimes.base import Type
from findleaks.runtimes.garbage import type_with_garbage
from findleaks.runtimes.node.deferreds import Deferreds
from findleaks.runtimes.node.handle_owners import HandleOwners
from findleaks.runtimes.node.object_areas import object_areas
from findleaks.runtimes.node.spaces import Spaces
from findleaks.runtimes.object_graph import GARBAGE, LIVE
from findleaks.runtimes.v8.array_bytes import ARRAY_BYTES
from findleaks.runtimes.v8.handle_groups import HandleGroup
from findleaks.runtimes.v8.heap_objects import HeapObjects
from findleaks.runtimes.v8.isolates import Isolate
from findleaks.runtimes.v8.layout import Layout
from findleaks.runtimes.v8.maps import Maps
from findleaks.runtimes.v8.metadata import Metadata
from findleaks.runtimes.v8.names import Names
from findleaks.runtimes.v8.object_graph import V8Graph
from findleaks.runtimes.v8.reachability import Reachability
from findleaks.runtimes.v8.roots import Roots
from findleaks.target.base import Range, Target, Thread
from findleaks.target.ranges import merge_ranges, region_at

UNREADABLE = "V8's constants for debuggers (v8dbg_…) or its table of roots were not found: JavaScript objects are not read"


class JavaScript:
    """The objects of the heaps of these isolates. `heap` is the offset of the heap in an isolate,
    `has_pairs`: see object_areas. `deferreds`: see HandleOwners. `problem` says what could not be
    read, or is "". `unread` is the number of bytes whose objects are unknown."""

    def __init__(
        self,
        target: Target,
        engine: Engine,
        directory: Directory,
        isolates: Sequence[Isolate],
        spaces: Spaces,
        heap: int,
        has_pairs: bool,
        layout: Layout,
        deferreds: Optional[Deferreds],
    ) -> None:
        self._target, self._engine, self._memory, self._isolates = target, engine, Memory(target), isolates
        self._directory, self._deferreds = directory, deferreds
        self._heap, self._layout = heap, layout
        self.problem, self.unread = "", 0
        self._objects: Optional[HeapObjects] = None
        self._metadata = metadata = Metadata(target)
        roots = [found for found in (metadata.roots(one.address) for one in isolates) if found]
        chunks = merge_ranges(Range(*chunk) for space in spaces.spaces for chunk in space.chunks)
        self._maps = Maps(target, engine, metadata, roots, chunks)
        if len(roots) < len(isolates) or not self._maps.is_readable:
            self.problem = UNREADABLE
            return
        areas, unknown = object_areas(self._memory, spaces, [one.address + heap for one in isolates], has_pairs)
        only = [chunk for space in spaces.spaces if not space.isolate for chunk in space.chunks]
        shared = Range(min(start for start, _ in only), max(end for _, end in only)) if only else Range(0, 0)
        headers = {placed.chunk.start: placed.key for space in spaces.spaces for placed in space.placed}
        self._objects = HeapObjects(target, engine, self._maps, areas, shared, headers)
        self.unread = sum(part.end - part.start for part in [*self._objects.unread, *unknown])
        if self.unread:
            what = f"{size(self.unread)} of V8's heap cannot be read as objects"
            self.problem = f"{what}: the numbers of JavaScript objects are too low, and live objects may count as garbage"

    @cached_property
    def graph(self) -> Optional[V8Graph]:
        """The objects as a marked graph; None if they were not read."""
        if self._objects is None:
            return None
        stacks = thread_stacks(self._target)
        owners: list[HandleOwners] = []
        roots = Roots(
            self._target,
            self._engine,
            self._metadata,
            self._objects,
            self._layout,
            self._isolates,
            self._heap,
            lambda thread: self._stack_of(thread, stacks.get(thread.tid)),
            lambda place: owners[0].name(place),
        )
        objects = dict(roots.global_handles())
        addresses = [one.address for one in self._isolates]
        owners.append(HandleOwners(self._target, self._engine, self._directory, array("Q", objects), addresses, self._deferreds))
        groups = [HandleGroup(*one, array("Q", map(objects.__getitem__, one.places))) for one in owners[0].groups]
        reach = Reachability(self._target, self._engine, self._maps, self._objects, roots)
        return V8Graph(self._target, self._engine, self._maps, Names(self._memory, self._maps), reach, groups)

    def _stack_of(self, thread: Thread, stack: Optional[Range]) -> Range:
        """Return the part of a thread's stack in use."""
        region = region_at(self._target.regions(), thread.sp)
        end = stack.end if stack is not None and stack.start <= thread.sp < stack.end else region.end if region is not None else 0
        return Range(thread.sp & -8, max(end, thread.sp & -8))

    def types(self) -> Iterator[Type]:
        """Yield the live objects by name, with garbage as the type's own counts. Free memory is
        left out. `own` also has the bytes of arrays that each belong to one object of the type;
        they are bytes of the type "(array)", too."""
        graph = self.graph
        if graph is None or graph.graph is None or self._objects is None:
            return
        _, names = graph.labels()
        live, garbage = (graph.graph.label_totals(kinds) for kinds in (LIVE, GARBAGE))
        arrays = self._objects.array_bytes()
        numbers: dict[str, list[int]] = {}
        for number, name in enumerate(names):
            if live[number].blocks or garbage[number].blocks:
                numbers.setdefault(name, []).append(number)
        for name, its in numbers.items():
            totals = (Totals.sum_of(kinds[number] for number in its) for kinds in (live, garbage))
            found, owned = type_with_garbage(name, *totals), sum(arrays[number] for number in its)
            yield found._replace(own={**found.own, ARRAY_BYTES: owned}) if owned else found
