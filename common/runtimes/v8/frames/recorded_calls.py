"""Name what frames of V8's code execute in a process that runs between two readings.

V8 moves functions, their scripts and their code. A name that is known is found again by data that
stay the same: the number of the script, the positions of the function in it, and the bytecode."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.v8.frames.frame_names import FP, NO_TABLE, FrameNames, Place
from findleaks.runtimes.v8.frames.heap import FrameHeap
from findleaks.runtimes.v8.isolates import current, key_of
from findleaks.runtimes.v8.layout import Layout
from findleaks.target.base import Target
from findleaks.unwind.managed_frames import WalkFrame
from findleaks.unwind.stacks import NamedFrame

_MOVING = "_ZN2v88internal4Heap14CollectGarbage", "_ZN2v88internal4Heap24PerformGarbageCollection"
"""Beginnings of the symbols of functions that V8's garbage collections execute."""

# Seconds after which the table of a function's lines is looked for again. V8 creates it late.
_TABLE_SECONDS = 1.0


class RecordedCalls:
    """Names frames of a stopped thread, of any isolate. `layout`: where threads' isolates are."""

    def __init__(self, target: Target, engine: Engine, layout: Layout) -> None:
        self._target, self._engine, self._layout = target, engine, layout
        self._memory = Memory(target)
        self._isolates: dict[int, Optional[IsolateCalls]] = {}

    def read_again(self, memory: Memory) -> None:
        """Drop what was read of objects. `memory`: the memory of the process as it is now."""
        self._memory = memory

    def walk(self, thread_pointer: int) -> Optional[WalkFrame]:
        """See ManagedFrames.walk. None: the thread is in no isolate."""
        memory = self._memory
        isolate = current(lambda address: memory.word(address) or 0, memory.arch.mask, self._layout, thread_pointer, self._key)
        calls = self._of(isolate) if isolate else None
        if calls is None:
            return None
        is_moving = False

        def name(pc: int, fp: int) -> Sequence[NamedFrame]:
            nonlocal is_moving
            is_moving = is_moving or self.is_moving(pc)
            return calls.frames(pc, fp) if not is_moving else ()

        return name

    @cached_property
    def _key(self) -> int:
        return key_of(self._target, self._layout)

    def _of(self, isolate: int) -> Optional[IsolateCalls]:
        """Return the frames of an isolate; None if its objects cannot be read. Another isolate may
        have been at the same address before."""
        known = self._isolates.get(isolate)
        if isolate not in self._isolates or (known is not None and not known.read_again(self._memory)):
            heap = FrameHeap(self._target, self._engine, [isolate], self._memory)
            known = self._isolates[isolate] = IsolateCalls(FrameNames(heap)) if heap.is_readable else None
        return known

    @cached_property
    def _collectors(self) -> Mapping[int, int]:
        """The ends of the functions of garbage collections, by their starts."""
        found = (symbol for name in _MOVING for symbol in self._target.symbols_starting(name))
        return {one.address: one.address + one.size for one in sorted(found, key=lambda one: one.address)}

    @cached_property
    def _starts(self) -> Sequence[int]:
        return list(self._collectors)

    def is_moving(self, pc: int) -> bool:
        """Whether the function with this return address collects garbage: V8 is moving objects."""
        at = bisect_right(self._starts, pc - 1) - 1
        return at >= 0 and pc <= self._collectors[self._starts[at]]


class IsolateCalls:
    """Names frames of the threads that are in one isolate."""

    def __init__(self, names: FrameNames) -> None:
        self._names = names
        self._memory = names.heap.memory
        self._known: dict[Hashable, NamedFrame] = {}
        self._expiries: dict[Hashable, float] = {}

    def read_again(self, memory: Memory) -> bool:
        """Drop what was read of objects, which V8 may have moved. Return whether the isolate is
        still the same one. `memory`: the memory of the process as it is now."""
        if memory is not self._memory:
            self._memory = memory
            self._names.read_again(memory)
        anchors = {**self._names.heap.anchors, **self._names.builtins.anchors}
        return all(memory.word(address) == word for address, word in anchors.items())

    def frames(self, pc: int, fp: int) -> Sequence[NamedFrame]:
        """Return the names of what a frame executes at a return address, innermost first; () for
        code that symbols name, and if the frame is damaged."""
        places = self._names.places(pc, fp, {})
        if places:
            return [self._name(place) for place in places]
        return list(self._names.names(pc, False, {FP: fp}, {})) if self._names.is_copied_or_generated(pc) else ()

    def _name(self, place: Place) -> NamedFrame:
        heap, now = self._names.heap, time.monotonic()
        own = heap.own_name(place.shared, place.function)
        key = own, heap.functions.identity(place.shared), place.offset, place.reason
        if key not in self._known or self._expiries.get(key, now) < now:
            known = self._known[key] = self._names.name(place)
            self._expiries.pop(key, None)
            if known.reason.startswith(NO_TABLE):
                self._expiries[key] = now + _TABLE_SECONDS
        return self._known[key]
