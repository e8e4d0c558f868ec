"""Find words that refer to an instance of GObject and that its reference count does not include.

- Each signal handler refers to its instance, which owns the handler. A table refers to all
  instances with handlers.
- The data of an instance has records of its weak references, watched closures and toggle
  references. Each record begins with the address of the instance.
- The data of an instance lists the places of its GWeakRefs, each of which has the address of the
  instance.

Source: gobject/gobject.c (WeakRefStack, CArray, ToggleRefStack, weak_locations, WeakRefData),
gsignal.c (struct _Handler), glib/gdataset.c (struct _GData) of GLib 2.74 and 2.84, 64-bit
targets."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.glib.signals import DATA, INSTANCE, Signals
from findleaks.target.base import Module, Range
from findleaks.target.interruptible import interruptible

QDATA = 16  # offset of `qdata` in a GObject
FLAGS = 7  # mask of the flags in the low bits of the address of a GData
DATUM = 24  # bytes of a GDataElt: key, data, function that destroys the data
MOST_DATA = 1 << 8  # most elements of a GData that is read
CHECKED = 1 << 10  # handlers or GDatas between two checks for Ctrl-C


def find_handler_words(memory: Memory, signals: Signals) -> Iterator[Range]:
    """Yield the words of handlers and of their closures that refer to the handler's instance.
    Raises Interrupted."""
    for one in interruptible(memory.target, signals.handlers, CHECKED):
        yield Range(one.address + INSTANCE, one.address + INSTANCE + 8)
        if memory.word(one.closure + DATA) == one.instance:
            yield Range(one.closure + DATA, one.closure + DATA + 8)


def find_record_words(memory: Memory, engine: Engine, instances: Sequence[int], library: Module) -> Iterator[Range]:
    """Yield the first word of each record in an instance's data if this word refers to the
    instance. `instances`: the addresses of GObjects, ascending. `library`: libgobject, which has
    the functions that destroy such records. Raises Interrupted."""
    target = memory.target
    records, _ = read_records(target, engine, array("Q", instances), QDATA + 8)
    data = memory.arch.words(records)[QDATA // 8 :: QDATA // 8 + 1]
    lists = sorted((word & ~FLAGS, instance) for word, instance in zip(data, instances) if word & ~FLAGS)
    counts, _ = read_records(target, engine, array("Q", (at for at, _ in lists)), 4)
    end = 0  # of the previous list; in damaged memory, lists may overlap, and are read only once
    for (at, instance), count in interruptible(target, zip(lists, memory.arch.words32(counts)), CHECKED):
        words = memory.words(at + 8, DATUM // 8 * count) if at >= end and 0 < count <= MOST_DATA else None
        if words is None:
            continue
        end = at + 8 + DATUM * count
        for record, destroy in zip(words[1::3], words[2::3]):
            # A list that a program attached mostly has no function that destroys it.
            yield from _weak_locations(memory, record, instance) if record and destroy else ()
            if record and library.start <= destroy < library.end and memory.word(record) == instance:
                yield Range(record, record + 8)


def _weak_locations(memory: Memory, record: int, instance: int) -> Iterator[Range]:
    """Yield the GWeakRefs that refer to an instance, if one of its data is the list of them: up to
    GLib 2.78, the address of a GSList; later, a count and then a place, or the address of several
    places. The lowest bit of a GWeakRef is a lock."""
    words = memory.words(record, 2)
    if words is None:
        return
    count = words[0] >> 32 & 0xFFFF
    places = [words[1]] if count == 1 else memory.words(words[1], count) if 1 < count <= MOST_DATA and words[1] else None
    if not places or not _is_weak(memory, places[0], instance):
        places, at = [], words[0]
        while at and len(places) < MOST_DATA:
            place, at = memory.words(at, 2) or (0, 0)
            if not _is_weak(memory, place, instance):
                return
            places.append(place)
    yield from (Range(place, place + 8) for place in places if _is_weak(memory, place, instance))


def _is_weak(memory: Memory, place: int, instance: int) -> bool:
    return bool(place) and (memory.word(place) or 0) & ~1 == instance
