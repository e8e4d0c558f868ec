"""Read what goroutines wait for: channels, mutexes, WaitGroups and condition variables.

A goroutine that waits has a record (runtime.sudog) for each object. Records of channels are in a
list that begins in the g structure. Records of the package sync are in a table of the runtime;
since 1.26, the g structure refers to them, too. Up to 1.25, they are found by their first word,
which is the address of the g structure. Records that are no longer used may have the same first
word, so several records may be found for one goroutine. The record of a mutex contains the address
of the mutex; an unused record does not.

Sources: Go 1.18 to 1.26, src/runtime: runtime2.go (g.waiting, sudog, waitReasonStrings), chan.go,
select.go, sema.go (semaRoot.queue, notifyListWait). Since 1.26, `c` and `elem` are a pointer that
may be 0, and its address (maybeTraceablePtr)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Optional

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.base import UserThread
from findleaks.runtimes.go.objects import HeapObjects
from findleaks.runtimes.go.types import Types
from findleaks.value_classes import NamedTuple

NEVER = ("chan send (nil chan)", "chan receive (nil chan)", "select (no cases)")
"""Reasons of goroutines that can never continue."""

_CHANNELS = ("chan send", "chan receive", "select")
_CONDITION = "sync.Cond.Wait"
# "semacquire": all of the package sync up to 1.19, except conditions; WaitGroups up to 1.23.
_SYNC = ("semacquire", "sync.Mutex.Lock", "sync.RWMutex.Lock", "sync.RWMutex.RLock", "sync.WaitGroup.Wait", _CONDITION)


class Wait(NamedTuple):
    """What a goroutine waits for. `objects`: addresses; the goroutine can continue only if one of
    these is reached. There are none if all channels of a select are nil. `records`: the sudogs
    through which the runtime's table refers to these objects."""

    objects: Sequence[int]
    records: Sequence[int]


def is_readable(one: UserThread) -> bool:
    """Whether it can be read what a goroutine waits for."""
    return one.state == "waiting" and one.reason in (*_CHANNELS, *_SYNC) and not one.is_internal


class _Layout(NamedTuple):
    """Bytes of a g and of a sudog; offsets in them; words of the fields `c` and `elem`."""

    size: int
    record: int
    first: int
    elem: int
    channel: int
    next: int
    words: int


def _find_layout(types: Types) -> Optional[_Layout]:
    g, record = types.find("runtime.g"), types.find("runtime.sudog")
    if g is None or record is None:
        return None
    sizes = [types.at(address) for address in (g, record)]
    first, own = types.field(g, "waiting"), types.field(record, "g")
    elem, channel, following = (types.field(record, name) for name in ("elem", "c", "waitlink"))
    kind = types.at(elem.type) if elem is not None else None
    if sizes[0] is None or sizes[1] is None or kind is None or first is None or own is None or own.offset:
        return None
    if elem is None or channel is None or following is None:
        return None
    return _Layout(sizes[0].size, sizes[1].size, first.offset, elem.offset, channel.offset, following.offset, kind.size // 8)


class WaitReader:
    """Reads what goroutines wait for. `size`: bytes of a g; 0 if the layout is unknown."""

    def __init__(self, memory: Memory, engine: Engine, types: Types, objects: HeapObjects) -> None:
        self._memory, self._engine, self._objects = memory, engine, objects
        self._seen: set[int] = set()
        self._layout = _find_layout(types)
        self.size = self._layout.size if self._layout is not None else 0

    def read(self, threads: Sequence[UserThread], structures: Mapping[int, int]) -> dict[int, Wait]:
        """Return what these goroutines wait for, by number. Goroutines for which it is unknown are
        left out. `structures`: the addresses of the g structures, by number."""
        layout = self._layout
        found: dict[int, Wait] = {}
        others: dict[int, UserThread] = {}
        if layout is None:
            return found
        for one in threads:
            structure = structures.get(one.number) if is_readable(one) else None
            if structure is None:
                continue
            is_channel = one.reason in _CHANNELS
            records = self._list_records(layout, structure, is_channel)
            if records is None:
                continue
            objects = [self._object(layout, record, layout.channel if is_channel else layout.elem) for record in records]
            if objects and all(objects):
                found[one.number] = Wait(objects, () if is_channel else records)
            elif not records and one.reason == "select" and self._memory.word(structure + layout.first) == 0:
                found[one.number] = Wait((), ())
            elif not is_channel:
                others[structure] = one
        for structure, records in self._search(layout, others).items():
            one = others[structure]
            used = {record: address for record in records if (address := self._object(layout, record, layout.elem))}
            if one.reason == _CONDITION:
                # The condition variable refers to its records.
                found[one.number] = Wait(records, ())
            elif used:
                found[one.number] = Wait(list(used.values()), list(used))
        return found

    def _list_records(self, layout: _Layout, structure: int, is_channel: bool) -> Optional[list[int]]:
        """Return the records to which a g structure refers; None if the list is damaged. The first
        record of the package sync may lead to those of other goroutines, which wait for the same
        lock (semaRoot.queue)."""
        found: list[int] = []
        record = self._memory.word(structure + layout.first)
        while record:
            if record in self._seen:  # a record belongs to one goroutine
                return None
            self._seen.add(record)
            found.append(record)
            record = self._memory.word(record + layout.next) if is_channel else 0
        return found

    def _object(self, layout: _Layout, record: int, offset: int) -> int:
        """Return the address in a field of a record; 0 if there is none."""
        words = self._memory.words(record + offset, layout.words)
        return next(filter(None, words), 0) if words is not None else 0

    def _search(self, layout: _Layout, structures: Mapping[int, object]) -> dict[int, list[int]]:
        """Return, by first word, the objects of the size of a record whose first word is one of
        these addresses."""
        found: dict[int, list[int]] = {}
        slots = self._objects.spans.with_pointers(layout.record)[1] if structures else ()
        places = array("Q", chain.from_iterable(slots))
        data, _ = read_records(self._memory.target, self._engine, places, 8)
        for place, value in zip(places, self._memory.arch.words(data)):
            if value in structures and self._objects.is_in_use(place):
                found.setdefault(value, []).append(place)
        return found


def record_indices(objects: HeapObjects, every: Mapping[int, Wait]) -> Iterator[int]:
    """Yield the blocks of the records through which the runtime's table refers to objects."""
    addresses = array("Q", [record for wait in every.values() for record in wait.records])
    return (index for index in objects.blocks.find_all(addresses)[0] if index < len(objects.blocks))


def object_indices(objects: HeapObjects, wait: Wait) -> Optional[Sequence[int]]:
    """Return the blocks of the objects for which a goroutine waits; None if one of them is no
    block: a variable."""
    indices = objects.blocks.find_all(array("Q", wait.objects))[0]
    return indices if len(indices) and all(index < len(objects.blocks) for index in indices) else None
