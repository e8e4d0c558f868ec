"""Name what frames of V8's code execute in a process that runs between two readings.

V8 moves functions, their scripts and their code. A name that is known is found again by data that
stay the same: the number of the script, the positions of the function in it, and the bytecode."""

from __future__ import annotations

import struct
import time
from bisect import bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.libc.thread_specific import KEYS_OF_BLOCK, place_of_key
from findleaks.runtimes.v8.frames.builtins import is_interpreter
from findleaks.runtimes.v8.frames.frame_names import FP, NO_TABLE, FrameNames, Place
from findleaks.runtimes.v8.frames.heap import FrameHeap
from findleaks.runtimes.v8.frames.machine_code import OTHER
from findleaks.runtimes.v8.isolates import current
from findleaks.runtimes.v8.layout import Layout
from findleaks.target.base import Target
from findleaks.unwind.managed_frames import CallFrame, WalkFrame
from findleaks.unwind.stacks import NamedFrame

OWN_NAME = "the program has changed the name of the function, and recorded stacks do not have such names"
_JAVASCRIPT = 5  # kind of chain, as in stack_walk.S
VERSIONS = (7, 8), (14, 0)
"""The first version of V8 whose recorded stacks have names, and the first one after it whose layout
is unknown. Between them, the number of a function in its script follows the flags of its
SharedFunctionInfo (src/objects/shared-function-info.tq, function_literal_id)."""
_MOVING = "_ZN2v88internal4Heap14CollectGarbage", "_ZN2v88internal4Heap24PerformGarbageCollection"
"""Prefixes of the symbols of functions that V8's garbage collections execute."""

# Seconds after which the table of a function's lines is looked for again. V8 creates it late.
_TABLE_SECONDS = 1.0
_RETRY_SECONDS = 1.0  # after which an isolate that was not readable is read again
_PLAIN_MARKS = (9, 5)  # version of V8 since which baseline code has a mark


class RecordedCalls:
    """Names frames of a stopped thread, which may be in any isolate. `layout`: where a thread's
    isolate is found. `chain_settings`: see ManagedFrames."""

    def __init__(self, target: Target, engine: Engine, layout: Layout) -> None:
        self._target, self._engine, self._layout = target, engine, layout
        self._memory = Memory(target)
        self._isolates: dict[int, Optional[IsolateCalls]] = {}
        self._retries: dict[int, float] = {}  # times to read isolates again that were not readable
        self.chain_settings: Sequence[int] = ()

    def read_again(self, memory: Memory) -> None:
        """Drop what was read of objects. `memory`: the memory of the process as it is now."""
        self._memory = memory

    def walk(self, thread_pointer: int) -> Optional[WalkFrame]:
        """See ManagedFrames.walk. None if the thread is in no isolate that can be read."""
        isolate = self._isolate(thread_pointer)
        calls = self._of(isolate) if isolate else None
        if calls is None:
            return None
        is_moving = False

        def name(pc: int, fp: int) -> Sequence[NamedFrame]:
            nonlocal is_moving
            is_moving = is_moving or self.is_moving(pc)
            return calls.frames(pc, fp) if not is_moving else ()

        return name

    def _isolate(self, thread_pointer: int) -> int:
        memory = self._memory
        return current(lambda address: memory.word(address) or 0, memory.arch.mask, self._layout, thread_pointer, self._key())

    def see_threads(self, thread_pointers: Sequence[int]) -> None:
        """See ManagedFrames."""
        key = self._key()
        for calls in map(self._of, filter(None, map(self._isolate, thread_pointers))):
            # Without the collector's symbols, a stub would read objects while they are moved.
            if calls is not None and self._collectors and not self.chain_settings and (self._layout.tls or key < KEYS_OF_BLOCK):
                self.chain_settings = calls.chain_settings(self._layout.tls or place_of_key(key))

    @property
    def has_isolates(self) -> bool:
        """Whether a thread was seen in an isolate that can be read."""
        return any(self._readable())

    def code_distance(self, pc: int) -> Optional[int]:
        """See ManagedFrames."""
        known = (calls.code_distance(pc) for calls in self._readable())
        return next((distance for distance in known if distance is not None), None)

    def call_frame(self, pc: int) -> Optional[CallFrame]:
        """See ManagedFrames. None if the code is neither a copy of a builtin nor WebAssembly."""
        known = (calls.named_code(pc) for calls in self._readable())
        found = next(filter(None, known), ())
        return CallFrame(tuple(found), called_by_native=True) if found else None

    def _readable(self) -> Iterator[IsolateCalls]:
        """Yield the isolates that were seen, and that can be read."""
        return (calls for calls in map(self._of, tuple(self._isolates)) if calls is not None)

    def functions(self, isolate: int, pc: int, fp: int) -> Sequence[NamedFrame]:
        """See ManagedFrames.call_functions."""
        calls = self._of(isolate) if isolate else None
        return calls.functions(pc, fp) if calls is not None else ()

    def inherit(self, before: RecordedCalls) -> None:
        """Read the isolates that `before` knows."""
        self._memory, self.chain_settings = before._memory, before.chain_settings
        for isolate in before._isolates:
            self._of(isolate)

    def _key(self) -> int:
        """Return the key of isolates in thread-specific data; 0 if V8 has not created it yet."""
        return (self._memory.int32(self._layout.key) or 0) if self._layout.key else 0

    def _of(self, isolate: int) -> Optional[IsolateCalls]:
        """Return the IsolateCalls of an isolate; None if the isolate's objects cannot be read. Data
        of an earlier isolate at the same address are dropped."""
        known = self._isolates.get(isolate)
        if known is not None and known.read_again(self._memory):
            return known
        if known is None and time.monotonic() < self._retries.get(isolate, 0.0):
            return None
        # A thread enters a new isolate before V8 has created the isolate's objects.
        self._retries[isolate] = time.monotonic() + _RETRY_SECONDS
        heap = FrameHeap(self._target, self._engine, [isolate], self._memory)
        known = self._isolates[isolate] = IsolateCalls(FrameNames(heap)) if heap.is_readable else None
        return known

    @cached_property
    def _collectors(self) -> Mapping[int, int]:
        """The ends of the functions that garbage collections execute, by start address."""
        found = (symbol for name in _MOVING for symbol in self._target.symbols_starting(name))
        return {one.address: one.address + one.size for one in sorted(found, key=lambda one: one.address)}

    @cached_property
    def _starts(self) -> Sequence[int]:
        return list(self._collectors)

    def is_moving(self, pc: int) -> bool:
        """Whether the function with this return address collects garbage and may move objects."""
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
        builtins, and if the frame is damaged."""
        return self._name_all(self._names.places(pc, fp, {}), pc, fp)

    def _name_all(self, places: Sequence[Place], pc: int, fp: int) -> Sequence[NamedFrame]:
        """Return the names of the places of a frame; see `frames`."""
        if places:
            return [self._name(place) for place in places]
        return list(self._names.names(pc, False, {FP: fp}, {})) if self._names.builtins.find(pc) is None else ()

    def named_code(self, pc: int) -> Sequence[NamedFrame]:
        """Return the names of the code at a return address, innermost first. This is only possible
        for code whose frames contain no function: a copy of a builtin, which has no symbol, or
        WebAssembly. Returns () for other code."""
        found = self._names.builtins.find(pc)
        if found is None:
            code = self._names.webassembly.find(pc - 1)
            return list(self._names.webassembly.names(code, pc, exact=False)) if code is not None else ()
        return [NamedFrame(pc, found.name, pc - found.start, found.module)] if found.distance else ()

    def code_distance(self, pc: int) -> Optional[int]:
        """See ManagedFrames."""
        builtin = self._names.builtins.find(pc)
        if builtin is not None:
            return 0 if is_interpreter(builtin.name) else None
        code = self._names.code_at(pc)
        if code is None or (code.kind == OTHER and self._names.heap.version >= _PLAIN_MARKS):
            return None
        return pc - code.header

    def functions(self, pc: int, fp: int) -> Sequence[NamedFrame]:
        """See ManagedFrames.call_functions. Some functions differ only in the value of the property
        `name`. A stub distinguishes these only if V8 created them with this property."""
        places, heap = self._names.places(pc, fp, {}), self._names.heap
        frames = self._name_all(places, pc, fp)
        own = places[-1].function if places and heap.own_name(places[-1].shared, places[-1].function) is not None else 0
        if own and not heap.is_name_hashed(own):
            return (*frames[:-1], frames[-1]._replace(function="", reason=OWN_NAME))
        return frames

    def chain_settings(self, place: int) -> Sequence[int]:
        """See ManagedFrames and stack_walk.S. `place`: offset of the isolate from the thread
        pointer."""
        heap = self._names.heap
        offset, types = heap.metadata.offset, heap.maps.types
        script = offset("SharedFunctionInfo", "script", "raw_script", "script_or_debug_info")
        shared, flags, number = offset("JSFunction", "shared"), offset("SharedFunctionInfo", "flags"), heap.functions.script_number
        kinds = types.get("shared_function_info"), types.get("script")
        functions = heap.maps.functions
        no_string = heap.metadata.constant("FirstNonstringType")
        if None in (script, shared, flags, number, no_string, *kinds) or not functions or not VERSIONS[0] <= heap.version < VERSIONS[1]:
            return ()
        sorts = functions[0], len(functions) - 1, *(kind or 0 for kind in kinds)
        if not all(0 <= one < 1 << 16 for one in sorts):
            return ()
        packed = struct.pack("<4H", *sorts)
        words = place, shared, script, flags, number, self._names.offset_in_frame, int.from_bytes(packed, "little"), no_string
        return [_JAVASCRIPT, *((word or 0) & (1 << 64) - 1 for word in words)]

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
