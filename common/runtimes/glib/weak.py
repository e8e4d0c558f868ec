"""Find words that refer to an instance of GObject and that its reference count does not include.

- Each signal handler refers to its instance, which owns the handler. A table refers to all
  instances with handlers.
- The data of an instance has records of its weak references, watched closures and toggle
  references. Each record begins with the address of the instance.

Source: gobject/gobject.c (WeakRefStack, CArray, ToggleRefStack), gsignal.c (struct _Handler),
glib/gdataset.c (struct _GData) of GLib 2.74 and 2.84, 64-bit targets."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.glib.signals import DATA, INSTANCE, Signals
from findleaks.target.base import Range
from findleaks.target.ranges import region_at

QDATA = 16  # offset of `qdata` in a GObject
FLAGS = 7  # mask of the flags in the low bits of the address of a GData
DATUM = 24  # bytes of a GDataElt: key, data, function that destroys the data
MOST_DATA = 1 << 8  # most elements of a GData that is read


def find_handler_words(memory: Memory, signals: Signals) -> Iterator[Range]:
    """Yield the words of handlers and of their closures that refer to the handler's instance."""
    for one in signals.handlers:
        yield Range(one.address + INSTANCE, one.address + INSTANCE + 8)
        if memory.word(one.closure + DATA) == one.instance:
            yield Range(one.closure + DATA, one.closure + DATA + 8)


def find_record_words(memory: Memory, engine: Engine, instances: Sequence[int], library: str) -> Iterator[Range]:
    """Yield the first word of each record in an instance's data if this word refers to the
    instance. `instances`: the addresses of GObjects, ascending. `library`: the path of libgobject,
    which has the functions that destroy such records."""
    records, _ = read_records(memory.target, engine, array("Q", instances), QDATA + 8)
    modules = memory.target.modules()
    for instance, data in zip(instances, memory.arch.words(records)[QDATA // 8 :: QDATA // 8 + 1]):
        at = data & ~FLAGS
        count = memory.int32(at) if at else None
        words = memory.words(at + 8, DATUM // 8 * count) if count and count <= MOST_DATA else None
        for record, destroy in zip((words or ())[1::3], (words or ())[2::3]):
            if record and memory.word(record) == instance:
                module = region_at(modules, destroy)
                if module is not None and module.path == library:
                    yield Range(record, record + 8)
