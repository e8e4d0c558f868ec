"""Find words that refer to an instance of GObject and that its reference count does not include.

- Each signal handler refers to its instance, which owns the handler. A table refers to all
  instances with handlers.
- The data of an instance has records of its weak references, watched closures and toggle
  references. Each record begins with the address of the instance.
- The data of an instance lists the places of its GWeakRefs, each of which has the address of the
  instance.

Source: gobject/gobject.c (WeakRefStack, CArray, ToggleRefStack, weak_locations, WeakRefData),
gsignal.c (struct _Handler, HandlerList), gbsearcharray.h, gclosure.h (struct _GClosure),
gclosure.c (CLOSURE_N_NOTIFIERS), glib/gdataset.c (struct _GData) of GLib 2.74 and 2.84, 64-bit
targets."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.runtimes.glib.signals import CALLBACK, DATA, HANDLER_BYTES, INSTANCE, LIST_ENTRY, LIST_HEADER, Signals
from findleaks.target.base import Module, Range
from findleaks.target.interruptible import interruptible

QDATA = 16  # offset of `qdata` in a GObject
NOTIFIERS = 24  # offset of `notifiers` in a GClosure
COUNTS = (16, 1), (17, 3), (19, 0xFF)
"""Shift and mask of n_guards, n_fnotifiers and n_inotifiers in the first word of a GClosure. A
guard has two notifiers."""
WATCHING = ("object_remove_closure", "invalid_closure_notify")
"""Static functions of libgobject that watch an instance: see g_object_watch_closure (gobject.c)
and add_invalid_closure_notify (gsignal.c). A stripped library has no names of static functions."""
FLAGS = 7  # mask of the flags in the low bits of the address of a GData
DATUM = 24  # bytes of a GDataElt: key, data, function that destroys the data
MOST_DATA = 1 << 8  # most elements of a GData that is read
RECORD_HEADER, RECORD_ENTRY = 16, 16
"""Bytes of the instance and the count at the start of a record, and at most those of an entry: a
function and its data."""
TOGGLES = "GObject-toggle-references"  # key of the record of toggle references
CHECKED = 1 << 10  # handlers or GDatas between two checks for Ctrl-C


def find_handler_words(memory: Memory, blocks: Blocks, signals: Signals, library: Module) -> Iterator[Range]:
    """Yield the words of handlers and of their closures that refer to an instance, but not on
    behalf of a reference that it counts. These are the instance of the handler, and the instance
    with which GLib invalidates the closure (g_signal_connect_object). Also yield the words after
    the handlers, their lists and the arrays of closures, which may be stale. `library`: libgobject.
    Raises Interrupted."""
    for address in signals.lists.values():
        yield from _rest_of_block(blocks, address, LIST_HEADER + LIST_ENTRY * (memory.int32(address) or 0))
    watching: dict[int, bool] = {}
    for one in interruptible(memory.target, signals.handlers, CHECKED):
        yield Range(one.address + INSTANCE, one.address + INSTANCE + 8)
        yield from _rest_of_block(blocks, one.address, HANDLER_BYTES)
        words = memory.words(one.closure, CALLBACK // 8) or (0,) * (CALLBACK // 8)
        flags, data, notifiers = words[0], words[DATA // 8], words[NOTIFIERS // 8]
        counts = [flags >> shift & mask for shift, mask in COUNTS]
        guards, owning, ending = counts[0] * 2, counts[1], counts[2]
        found = memory.words(notifiers, 2 * (guards + owning + ending)) if notifiers and owning + ending else None
        places = list(zip(range(notifiers, notifiers + (1 << 16), 16), (found or ())[::2], (found or ())[1::2]))
        watched, owned = set[int](), {value for _, value, _ in places[guards : guards + owning]}
        for _, value, function in places[guards + owning :]:
            if function not in watching:
                watching[function] = _is_watching(memory, function, library)
            (watched if watching[function] else owned).add(value)
        if data and data not in owned and (data == one.instance or data in watched):
            yield Range(one.closure + DATA, one.closure + DATA + 8)
        # The array of notifiers repeats the address of the data. If one of them frees the data, the
        # word in the closure counts as the reference, and the repetition does not.
        unowned = (watched - owned) | {data}
        yield from (Range(place, place + 8) for place, value, _ in places if value in unowned)
        yield from _rest_of_block(blocks, notifiers, 16 * len(places))


def _is_watching(memory: Memory, function: int, library: Module) -> bool:
    """Whether a function that is called when a closure becomes invalid is one with which GObject
    watches an instance. Other functions, such as g_object_unref, free the data that they get."""
    symbol = memory.target.symbolize(function) if library.start <= function < library.end else None
    name = symbol.name.split(".")[0] if symbol is not None and symbol.address == function else ""
    return library.start <= function < library.end and (not name or name in WATCHING)


def _rest_of_block(blocks: Blocks, address: int, used: int) -> Iterator[Range]:
    """Yield the words of the block at `address` after the first `used` bytes, if there are any."""
    index = blocks.find(address) if used else -1
    if index >= 0 and blocks.address(index) == address and blocks.size(index) > used:
        yield Range(address + used, address + blocks.size(index))


def _read_data(memory: Memory, engine: Engine, instances: Sequence[int]) -> Sequence[int]:
    """Return the word of each instance with the address of its data, and flags in the low bits."""
    records, _ = read_records(memory.target, engine, array("Q", instances), QDATA + 8)
    return memory.arch.words(records)[QDATA // 8 :: QDATA // 8 + 1]


def find_tagged_sizes(memory: Memory, engine: Engine, blocks: Blocks, instances: Sequence[int]) -> set[tuple[int, int]]:
    """Return (usable size, flags) of the blocks with the data of instances that have flags. The
    flags make the pointer to such a block an interior one."""
    words = array("Q", (word for word in _read_data(memory, engine, instances) if word & FLAGS))
    starts = blocks.columns_of(blocks.find_all(words)[0])
    rows = zip(words, starts.address, starts.size)
    return {(size, word & FLAGS) for word, start, size in rows if start == word & ~FLAGS and 0 < size <= 2 * DATUM * MOST_DATA}


def find_record_words(
    memory: Memory, engine: Engine, blocks: Blocks, instances: Sequence[int], library: Module, quark: Callable[[int], str]
) -> Iterator[Range]:
    """Yield words that do not count as references. They are in the data of instances:

    - the first word of a record, if it refers to the instance;
    - the words after a record in its block, which may be stale;
    - words in unused elements of the data that refer to instances: they are stale.

    `instances`: the addresses of GObjects, ascending. `library`: libgobject. A record belongs to
    GObject if a function of libgobject destroys it, or if it has toggle references, which g_free()
    destroys. `quark` returns the text of a quark. Raises Interrupted."""
    target = memory.target
    data = _read_data(memory, engine, instances)
    lists = sorted((word & ~FLAGS, instance) for word, instance in zip(data, instances) if word & ~FLAGS)
    counts, _ = read_records(target, engine, array("Q", (at for at, _ in lists)), 4)
    known = frozenset(instances)
    end = 0  # of the previous list; in damaged memory, lists may overlap, and are read only once
    for (at, instance), count in interruptible(target, zip(lists, memory.arch.words32(counts)), CHECKED):
        words = memory.words(at + 8, DATUM // 8 * count) if at >= end and 0 < count <= MOST_DATA else None
        if words is None:
            continue
        end = at + 8 + DATUM * count
        for low, high in _rest_of_block(blocks, at, end - at):
            unused = memory.words(low, min(high - low, DATUM * MOST_DATA) // 8) or ()
            yield from (Range(place, place + 8) for place, word in zip(range(low, high, 8), unused) if word in known)
        for key, record, destroy in zip(words[::3], words[1::3], words[2::3]):
            # A list that a program attached mostly has no function that destroys it.
            yield from _weak_locations(memory, record, instance) if record and destroy else ()
            if not record or not destroy or memory.word(record) != instance:
                continue
            if library.start <= destroy < library.end or quark(memory.halves(key)[0]) == TOGGLES:
                yield Range(record, record + 8)
                count = memory.int32(record + 8) or 0
                yield from _rest_of_block(blocks, record, RECORD_HEADER + RECORD_ENTRY * count if count <= MOST_DATA else 0)


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
