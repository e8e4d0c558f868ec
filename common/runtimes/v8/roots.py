"""Collect the roots of V8's heap: words outside of it that keep objects alive.

- The table of root objects of an isolate, without the table of strings, whose references are weak,
  and other words of the isolate before its heap: the current context, pending exceptions.
- Handles in handle scopes, strong global handles, and eternal handles.
- The queue of microtasks: callbacks of promises that have not run yet.
- Stacks and registers of threads that use an isolate. A word there may be stale.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/heap/heap.cc (Heap::IterateRoots), src/handles/
global-handles.h (EternalHandles), src/execution/microtask-queue.h."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes.object_graph import ObjectWord
from findleaks.runtimes.v8 import globals as globals_
from findleaks.runtimes.v8.heap_objects import HeapObjects
from findleaks.runtimes.v8.isolates import Isolate
from findleaks.runtimes.v8.layout import Layout
from findleaks.runtimes.v8.metadata import TABLE_WITHIN, TAG, TAG_MASK, Metadata
from findleaks.target.base import Piece, Range, Target, Thread

QUEUE = "_ZTVN2v88internal14MicrotaskQueueE"
_WEAK_ROOTS = ("string_table",)
_BLOCK = 256  # eternal handles of a block
_MOST_ETERNAL = 1 << 20
_MOST_TASKS = 1 << 24
_QUEUE_WORDS = 12
_LEAST_ADDRESS = 1 << 16
GLOBAL_HANDLE, HANDLE, ETERNAL, MICROTASK = "global handle", "handle in a handle scope", "eternal handle", "microtask that has not run yet"
STACK = "stack"


@dataclass
class RootSet:
    """Roots of one sort. `places` are the addresses of the words, or 0 for registers; `objects` are
    the addresses of the objects ("Q"). `name_place` returns the name of the root at a place."""

    sort: str
    places: array[int]
    objects: array[int]
    name_place: Callable[[int], str]
    thread: Optional[Thread] = None

    def words_to(self, engine: Engine, low: int, high: int) -> Iterator[ObjectWord]:
        """Yield the roots that refer to an address in [low, high)."""
        for at in engine.search(Piece(0, memoryview(self.objects).cast("B")), low, high):
            place = self.places[at // 8]
            if place or self.thread is None:
                yield ObjectWord(place, self.objects[at // 8], self.name_place(place))
            else:
                value = self.objects[at // 8]
                names = (name for name, word in zip(self.thread.names, self.thread.words) if word in (value, value + TAG))
                yield ObjectWord(0, value, "", next(names, "vector"), self.thread.tid)


class Roots:
    """The roots of the heaps of these isolates. `objects` are the objects of the heaps, `heap` is
    the offset of the heap in an isolate. `stack_of` returns the memory of a thread's stack in use,
    `name_handle` the name of a global handle by its address."""

    def __init__(
        self,
        target: Target,
        engine: Engine,
        metadata: Metadata,
        objects: HeapObjects,
        layout: Layout,
        isolates: Sequence[Isolate],
        heap: int,
        stack_of: Callable[[Thread], Range],
        name_handle: Callable[[int], str],
    ) -> None:
        self._target, self._engine, self._metadata, self._objects = target, engine, metadata, objects
        self._layout, self._heap, self._memory, self._stack_of = layout, heap, Memory(target), stack_of
        self._globals, self._name_handle = globals_.derive(target), name_handle
        self.sets = [found for one in isolates for found in self._of_isolate(one) if found.objects]

    def _of_isolate(self, isolate: Isolate) -> Iterator[RootSet]:
        words = self._words(isolate.address, TABLE_WITHIN * 2)
        table = self._root_table(isolate.address)
        names = dict(zip(table, self._metadata.root_names))
        weak = {place for place, name in names.items() if name in _WEAK_ROOTS}
        end = isolate.address + self._heap if self._heap < 8 * len(words) else table.stop
        own = ((place, word) for place, word in enumerate_words(isolate.address, words) if place < end and place not in weak)
        yield self._set("isolate", own, lambda place: f"V8's root {names[place]}" if place in names else "V8's isolate")
        yield self._set(HANDLE, self._handles(isolate), lambda place: HANDLE)
        if self._globals is not None:
            places, values = globals_.strong_handles(self._target, self._globals, isolate.address)
            yield self._set(GLOBAL_HANDLE, zip(places, values), self._name_handle)
        yield self._set(ETERNAL, self._eternal(words), lambda place: ETERNAL)
        yield self._set(MICROTASK, self._microtasks(words), lambda place: MICROTASK)
        for thread in isolate.threads:
            start, end = self._stack_of(thread)
            name = f"stack of thread {thread.tid}"
            yield self._set(STACK, self._conservative(start, end), lambda place, name=name: name)  # type: ignore[misc]
            registers = self._set(STACK, ((0, word | TAG) for word in thread.words if word <= 1 << 63), lambda place: "")
            registers.thread = thread
            yield registers

    def _set(self, sort: str, words: Iterator[tuple[int, int]], name_place: Callable[[int], str]) -> RootSet:
        """Return the words that have the tagged address of an object."""
        pairs = [(place, word - TAG) for place, word in words if word & TAG_MASK == TAG]
        indices = self._objects.indices_of([value for _, value in pairs])
        known = [pair for pair, index in zip(pairs, indices) if index != NO_BLOCK]
        return RootSet(sort, array("Q", [place for place, _ in known]), array("Q", [value for _, value in known]), name_place)

    def _words(self, address: int, most: int) -> Sequence[int]:
        """Return up to `most` words, fewer at the end of memory."""
        while most > 64:
            words = self._memory.words(address, most)
            if words is not None:
                return words
            most -= 64
        return ()

    def _root_table(self, isolate: int) -> range:
        """Return the addresses of the words of an isolate's table of root objects."""
        first = self._metadata.table_start(isolate)
        return range(first, first + 8 * len(self._metadata.root_names), 8) if first else range(0)

    def _handles(self, isolate: Isolate) -> Iterator[tuple[int, int]]:
        count = self._layout.handles
        for at, value in enumerate(isolate.values):
            if at // count < len(isolate.blocks):
                yield isolate.blocks[at // count] + 8 * (at % count), value

    def _eternal(self, isolate: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the eternal handles. An isolate refers to {number of handles, vector of blocks};
        each block has 256 handles."""
        for address in dict.fromkeys(isolate):
            known = self._memory.words(address, 3) if _LEAST_ADDRESS < address < 1 << 47 and address % 8 == 0 else None
            count, start, end = known if known is not None else (0, 0, 0)
            count &= 0xFFFFFFFF
            if not 0 < count <= _MOST_ETERNAL or end - start != 8 * -(-count // _BLOCK) or start % 8:
                continue
            blocks = self._memory.words(start, (end - start) // 8) or ()
            parts = [(block, self._memory.words(block, min(_BLOCK, count - _BLOCK * at))) for at, block in enumerate(blocks)]
            pairs = [pair for block, words in parts for pair in enumerate_words(block, words or ())]
            if len(pairs) == count and NO_BLOCK not in self._objects.indices_of([word & ~TAG_MASK for _, word in pairs]):
                yield from pairs
                return

    def _microtasks(self, isolate: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the entries of queues of microtasks. A queue has a vtable, later its size, its
        capacity, the first entry, and the address of a ring buffer."""
        table = self._target.symbol(QUEUE)
        vtable = table.address + 16 if table is not None else 0
        for address in dict.fromkeys(isolate) if vtable else ():
            words = self._memory.words(address, _QUEUE_WORDS) if _LEAST_ADDRESS < address < 1 << 47 and address % 8 == 0 else None
            if words is not None and words[0] == vtable:
                yield from self._ring(words)

    def _ring(self, words: Sequence[int]) -> Iterator[tuple[int, int]]:
        for at in range(1, len(words) - 3):
            count, room, first, ring = words[at : at + 4]
            if 0 < count <= room <= _MOST_TASKS and first < room and ring % 8 == 0 and room & room - 1 == 0:
                entries = self._memory.words(ring, room) or ()
                for number in range(count if entries else 0):
                    place = (first + number) % room
                    yield ring + 8 * place, entries[place]
                return

    def _conservative(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        for piece in self._target.pieces(start, end) if start < end else ():
            yield from enumerate_words(piece.address, self._memory.arch.words(piece.data))

    def exact_addresses(self, excluded: Collection[int] = ()) -> array[int]:
        """Return the addresses of all objects to which roots refer ("Q"), without stacks and
        registers, and without the global handles at the addresses `excluded`."""
        found = array("Q")
        for one in self.sets:
            if one.sort == GLOBAL_HANDLE and excluded:
                found.extend(value for place, value in zip(one.places, one.objects) if place not in excluded)
            elif one.sort != STACK:
                found += one.objects
        return found

    def global_handles(self) -> Iterator[tuple[int, int]]:
        """Yield the address of each strong global handle, and of its object."""
        yield from chain.from_iterable(zip(one.places, one.objects) for one in self.sets if one.sort == GLOBAL_HANDLE)

    def stack_addresses(self) -> array[int]:
        """Return the addresses of objects to which words of stacks and registers refer ("Q")."""
        return array("Q", chain.from_iterable(one.objects for one in self.sets if one.sort == STACK))


def enumerate_words(address: int, words: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the address and the value of successive words of 8 bytes."""
    return zip(range(address, address + 8 * len(words), 8), words)
