"""One Node.js in a process."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.directory import Directory
from findleaks.allocators.memory import Memory
from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.engine.contract import Engine
from findleaks.engine.dominators import NO_ROOT
from findleaks.runtimes.base import Count, Holders, Part, Runtime, Type
from findleaks.runtimes.node import dead, shape, spaces
from findleaks.runtimes.node import heap as heaps
from findleaks.runtimes.node.memory import parts
from findleaks.runtimes.node.objects import STORE, Objects, objects
from findleaks.runtimes.node.spaces import Spaces
from findleaks.runtimes.v8 import globals as globals_
from findleaks.runtimes.v8.isolates import Isolate, isolates
from findleaks.runtimes.v8.layout import Underivable, derive
from findleaks.target.base import Module, Range, Target, Thread
from findleaks.target.ranges import range_at
from findleaks.unwind.frames import Unwinder

COLLECTS = ("v8::internal::Heap::PerformGarbageCollection(", "v8::internal::Heap::CollectGarbage(")
OWNING = 1  # number of types that own memory: the stores
MOST = 1 << 30  # bytes of a chunk for each entry of Holders: sizes have 32 bits


class Node(Runtime):
    """See runtimes.base.Runtime. `types` are ArrayBuffers' memory and the C++ classes whose objects
    JavaScript objects own; JavaScript objects are not counted."""

    name = "Node"
    version = ""

    def __init__(self, target: Target, engine: Engine, directory: Directory, module: Module) -> None:
        self.where = module.path.rsplit("/", 1)[-1]
        self.problems: list[Problem] = []
        self._target, self._engine, self._directory, self._module = target, engine, directory, module
        self._unwinder = Unwinder(target)
        self._heap: Optional[heaps.Heap] = None
        self._isolates: list[Isolate] = []
        self._missing = ""
        try:
            self._heap = heaps.derive(target)
            if self._heap is None:
                self._problem("v8::Isolate::AdjustAmountOfExternalAllocatedMemory is not the code that was expected: V8's heap is not read")
            self._isolates = isolates(target, derive(target))
        except CapstoneMissing as error:
            self._missing = f"V8's heap and handles are not read: {error}"
            self._problem(self._missing)
        except Underivable as error:
            self._problem(f"isolates are not found: {error}")
        self._in_flux = any(self._collects(thread) for isolate in self._isolates for thread in isolate.threads)
        if self._in_flux:
            self._problem("V8 was stopped in the middle of a collection: what its objects keep is in flux")

    def _problem(self, what: str) -> None:
        self.problems.append(Problem(self._module.start, f"{self.where}: {what}", False))

    def _collects(self, thread: Thread) -> bool:
        """Whether a function of V8's garbage collection is on this thread's stack."""
        found = (self._target.symbolize(frame.pc) for frame in self._unwinder.trace(thread).frames)
        return any(symbol is not None and symbol.name.startswith(COLLECTS) for symbol in found)

    def note(self) -> str:
        """See Runtime: what is missing to read the heap."""
        return self._missing

    def counters(self) -> Mapping[str, Count]:
        """See Runtime: sums over all isolates, as in process.memoryUsage()."""
        found = {"isolates": Count(len(self._isolates))}
        if self._heap is not None:
            found["external"] = Count(self._sum(self._heap.external), "bytes")
            found["external memory reported to V8"] = Count(self._sum(self._heap.reported), "bytes")
        found["memory of ArrayBuffers"] = Count(self.objects.stored, "bytes")
        found["handles"] = Count(sum(isolate.handles for isolate in self._isolates))
        nodes = globals_.derive(self._target) if not self._missing else None
        if nodes is not None:
            kept = [globals_.read(self._target, nodes, isolate.address) for isolate in self._isolates]
            found["global handles"] = Count(sum(one.handles for one in kept))
            found["global handles, weak"] = Count(sum(one.weak for one in kept))
        return found

    def _sum(self, offset: int) -> int:
        """The sum of a counter over all isolates."""
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
    def _spaces(self) -> Optional[Spaces]:
        addresses = [isolate.address for isolate in self._isolates]
        if self._heap is None or not self._chunks:
            return None
        found = shape.derive(self._target, self._heap.heap, addresses)
        if found is None:
            code = "v8::Isolate::GetHeapSpaceStatistics is not the code that was expected"
            self._problem(f"{code}: V8's spaces are not distinguished")
            return None
        made = spaces.read(self._target, found, addresses, self._chunks)
        for problem in made.problems:
            self._problem(problem)
        return made

    def parts(self) -> Sequence[Part]:
        """See Runtime: chunks by isolate and space, the read-only space, the code range's rest."""
        return self._parts

    @cached_property
    def _parts(self) -> Sequence[Part]:
        return parts(self._target, self._isolates, self._chunks, self._spaces)

    @cached_property
    def objects(self) -> Objects:
        """C++ objects and ArrayBuffers' memory."""
        return objects(self._target, self._engine, self._directory)

    def types(self) -> Sequence[Type]:
        """See Runtime."""
        found = self.objects
        return [Type(name, count, found.bytes[name]) for name, count in found.counts.items()]

    def holders(self) -> Optional[Holders]:
        """See Runtime. References of V8's own objects are ignored: they refer to the memory of
        their buffers, too, which only a store frees."""
        pieces = [(at, min(MOST, end - at)) for start, end in self._chunks for at in range(start, end, MOST)]
        addresses, sizes = array("Q", [at for at, _ in pieces]), array("I", [size for _, size in pieces])
        made, no_types = self.objects, array("I", [NO_ROOT]) * len(pieces)
        return Holders(addresses, sizes, no_types, made.names, made.blocks, OWNING, owned=[(0, made.memory)])

    def reported_bytes(self, name: str) -> Optional[int]:
        """See Runtime. V8 counts its ArrayBuffers' memory; of other reports it has only the sum."""
        return self.objects.stored if name == STORE else None

    def dead(self) -> Sequence[Range]:
        """See Runtime: unused parts of the new space, free lists, and chunks that V8 has freed."""
        return self._dead

    @cached_property
    def _dead(self) -> list[Range]:
        if self._spaces is None or self._in_flux:
            return []
        stacks = [thread.sp for thread in self._target.threads()]
        others = [*stacks, *(owned.start for owned in self._directory.heaps)]
        return dead.dead(self._target, self._engine, self._spaces, others)

    def describe(self, address: int) -> str:
        """See Runtime."""
        part = next((part for part in self._parts if range_at(part.ranges, address)), None)
        if part is not None:
            unused = range_at(self._dead, address)
            return part.name + self._space(address) + (", where no object is: dead" if unused else "")
        index = self._directory.blocks.find(address)
        number, names = self.objects.blocks[index] if index >= 0 else NO_ROOT, self.objects.names
        return f"of a JavaScript object: {names[number]}" if number < len(names) else ""

    def _space(self, address: int) -> str:
        """The space whose chunk has this address, as a phrase; its isolate if there are several."""
        if self._spaces is None:
            return ""
        for space in self._spaces.spaces:
            if space.isolate and range_at(space.chunks, address):
                return f", a chunk of {space.name}" + (f" of isolate {space.isolate:#x}" if len(self._isolates) > 1 else "")
        return ", a chunk freed and not given back" if range_at(self._spaces.freed, address) else ""
