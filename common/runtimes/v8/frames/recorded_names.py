"""Name what frames of V8's code execute in a process that runs between two readings.

V8 moves functions, their scripts and their code. A name that is known is found again by data that
stay the same: the number of the script, the positions of the function in it, and the bytecode."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property

from findleaks.allocators.memory import Memory
from findleaks.runtimes.v8.frames.frame_names import FP, NO_TABLE, FrameNames, Place
from findleaks.target.base import Target
from findleaks.unwind.stacks import NamedFrame

_MOVING = "_ZN2v88internal4Heap14CollectGarbage", "_ZN2v88internal4Heap24PerformGarbageCollection"
"""Beginnings of the symbols of functions that V8's garbage collections execute."""

# Seconds after which the table of a function's lines is looked for again. V8 creates it late.
_TABLE_SECONDS = 1.0


class RecordedNames:
    """Names frames of a thread. Call `read_again` first, each time that the process has run."""

    def __init__(self, target: Target, names: FrameNames) -> None:
        self._target, self._names = target, names
        self._known: dict[Hashable, NamedFrame] = {}
        self._expiries: dict[Hashable, float] = {}

    def read_again(self, memory: Memory) -> None:
        """Drop what was read of objects. `memory`: the memory of the process as it is now."""
        self._names.read_again(memory)

    def walk(self, isolate: int) -> Callable[[int, int], Sequence[NamedFrame]]:
        """Return a function that names the frames of one stack of a thread in this isolate; see
        ManagedFrames.walk."""
        is_moving = False

        def names(pc: int, fp: int) -> Sequence[NamedFrame]:
            nonlocal is_moving
            is_moving = is_moving or self._is_collecting(pc)
            return self._frame(isolate, pc, fp) if not is_moving else ()

        return names

    def _frame(self, isolate: int, pc: int, fp: int) -> Sequence[NamedFrame]:
        places = self._names.places(pc, fp, {})
        if places:
            return [self._name(isolate, place) for place in places]
        return list(self._names.names(pc, False, {FP: fp}, {})) if self._names.is_copied_or_generated(pc) else ()

    def _name(self, isolate: int, place: Place) -> NamedFrame:
        heap, now = self._names.heap, time.monotonic()
        own = heap.own_name(place.shared, place.function)
        key = isolate, own, heap.functions.identity(place.shared), place.offset, place.reason
        if key not in self._known or self._expiries.get(key, now) < now:
            known = self._known[key] = self._names.name(place)
            self._expiries.pop(key, None)
            if known.reason.startswith(NO_TABLE):
                self._expiries[key] = now + _TABLE_SECONDS
        return self._known[key]

    @cached_property
    def _collectors(self) -> Mapping[int, int]:
        """The ends of the functions of garbage collections, by their starts."""
        found = (symbol for name in _MOVING for symbol in self._target.symbols_starting(name))
        return {one.address: one.address + one.size for one in sorted(found, key=lambda one: one.address)}

    @cached_property
    def _starts(self) -> Sequence[int]:
        return list(self._collectors)

    def _is_collecting(self, pc: int) -> bool:
        """Whether the function with this return address collects garbage: V8 is moving objects."""
        at = bisect_right(self._starts, pc - 1) - 1
        return at >= 0 and pc <= self._collectors[self._starts[at]]
