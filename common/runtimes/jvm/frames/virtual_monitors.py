"""Find the monitors of objects (`synchronized`) that virtual threads hold or wait for while no
thread carries them. Since JDK 24, a virtual thread leaves its carrier although it holds a monitor,
and also while it waits for one.

- A thread that waits has the state BLOCKED, and an ObjectWaiter. No table describes this structure;
  one of its first words is the address of the monitor.
- A monitor has the number of the thread that holds it (`threadId()`), or 1. In the latter case, the
  list of the thread has the object. The list is at the start of the stack of the thread's innermost
  StackChunk. The collector may replace an address there by a compressed reference.

Sources: OpenJDK 25, src/hotspot/share: runtime/objectMonitor.hpp (ObjectWaiter), classfile/
javaClasses.hpp (the injected fields `objectWaiter` and `lockStackSize`), oops/
stackChunkOop.inline.hpp (iterate_lockstack); src/java.base: java/lang/VirtualThread.java."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Optional

from findleaks.runtimes.jvm.frames.locks import ANONYMOUS
from findleaks.runtimes.jvm.java_classes import STACK_CHUNK, SUSPENDED, VIRTUAL_THREAD, ClassReader
from findleaks.runtimes.jvm.object_fields import ObjectFields
from findleaks.target.interruptible import interruptible
from findleaks.unwind.frame_locks import LOCK, LockWait

if TYPE_CHECKING:
    from findleaks.runtimes.jvm.object_graph import JavaGraph

_WAITER_WORDS = 8  # of an ObjectWaiter
_CAPACITY = 8  # LockStack::CAPACITY
_MOST = 1 << 18  # objects of a class that are examined
_FEW = 1 << 8  # of these between two checks for Ctrl-C


class _ChunkFields(NamedTuple):
    """Offsets in a StackChunk: of the number of objects in the list, of the reference to the
    continuation, and of the words of the stack."""

    length: int
    continuation: int
    size: int


class VirtualMonitors:
    """The monitors that threads hold."""

    def __init__(self, graph: JavaGraph) -> None:
        self._graph, self._tables, self._locks = graph, graph.locks.tables, graph.locks
        self._fields, self._memory = ObjectFields(self._tables, self._locks.layout), self._tables.memory
        monitors = list(self._locks.list_monitors())
        self._objects = {monitor: address for monitor, address, _, _ in monitors}
        self._owners = {address: thread for _, address, _, thread in monitors if thread}
        self._find_owners({address: number for _, address, number, thread in monitors if not thread})

    @property
    def owners(self) -> Mapping[int, int]:
        """The java.lang.Thread object that holds the monitor of an object, by object."""
        return self._owners

    def waits(self) -> Iterator[LockWait]:
        """Yield what JavaThreads wait for, if the owner of the monitor is known. Threads and owners
        are java.lang.Thread objects."""
        for thread, address in self._locks.list_pending():
            owner = self._owners.get(address, 0)
            if thread and owner and owner != thread:
                yield LockWait(thread, self._locks.lock(LOCK, address, owner))

    def find_wait(self, thread: int) -> Optional[LockWait]:
        """Return the monitor that a virtual thread waits for, None if there is none."""
        fields = self._fields
        klass = fields.klass(thread)
        if self._state(thread, klass) != "BLOCKED" or fields.reference(thread, "carrierThread"):
            return None
        place = fields.reader.read_injected(klass).get("objectWaiter")
        waiter = self._memory.word(thread + place) if place else 0
        words = self._memory.words(waiter, _WAITER_WORDS) if waiter else ()
        address = next((self._objects[word] for word in words or () if word in self._objects), 0)
        owner = self._owners.get(address, 0)
        return LockWait(thread, self._locks.lock(LOCK, address, owner)) if owner and owner != thread else None

    def _state(self, thread: int, klass: int) -> str:
        return self._fields.constants(klass, SUSPENDED).get(self._fields.int32(thread, "state") & ~SUSPENDED, "")

    def _find_owners(self, unknown: Mapping[int, int]) -> None:
        """Find the virtual threads that hold objects. `unknown`: the number of the thread, or 1, by
        object."""
        fields = self._fields
        anonymous = {address for address, number in unknown.items() if number == ANONYMOUS}
        held = dict(self._list_held(anonymous)) if anonymous else {}
        numbers: dict[int, list[int]] = {}
        for address, number in unknown.items():
            numbers.setdefault(number, []).append(address)
        if not held and not numbers.keys() - {ANONYMOUS}:
            return
        for thread in self._addresses(VIRTUAL_THREAD):
            number = fields.int64(thread, "tid")
            found = held.get(fields.reference(thread, "cont"), []) if held else []
            for address in (*found, *(numbers.get(number, ()) if number != ANONYMOUS else ())):
                self._owners[address] = thread

    def _list_held(self, wanted: set[int]) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the continuation of each StackChunk whose list has some of the objects `wanted`,
        with these objects."""
        decode, memory = self._fields.decode, self._memory
        fields: Optional[_ChunkFields] = None
        for chunk in self._addresses(STACK_CHUNK):
            fields = fields or self._read_chunk_fields(chunk)
            if fields is None:
                return
            count = memory.read(chunk + fields.length, 1)
            words = memory.words(chunk + fields.size, count[0]) if count and 0 < count[0] <= _CAPACITY else ()
            places = (chunk + fields.size + at * memory.size for at in range(len(words or ())))
            found = [one for word, place in zip(words or (), places) for one in {word, decode(place)} if one in wanted]
            continuation = decode(chunk + fields.continuation) if found else 0
            # A copy that a collector has left behind may have a list of an earlier time.
            if found and self._fields.reference(continuation, "tail") == chunk:
                yield continuation, found

    def _read_chunk_fields(self, chunk: int) -> Optional[_ChunkFields]:
        klass = self._fields.klass(chunk)
        found, injected = ClassReader(self._tables).read(klass), self._fields.reader.read_injected(klass)
        if found is None or not {"lockStackSize", "cont"} <= injected.keys():
            return None
        return _ChunkFields(injected["lockStackSize"], injected["cont"], found.size)

    def _addresses(self, name: str) -> Iterator[int]:
        graph = self._graph
        some = islice(graph.instances(name), _MOST)
        return (graph.blocks.address(one) for one in interruptible(graph.target, some, _FEW))
