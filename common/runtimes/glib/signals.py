"""Handlers of GObject's signals. A table in libgobject refers to all of them, and each handler to
its closure and to the instance whose signal it handles.

Source: gobject/gsignal.c (struct _Handler, _SignalNode), gclosure.c (struct _GRealClosure) of GLib
2.74 and 2.84, 64-bit targets."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.allocators.names import read_name
from findleaks.engine.contract import Engine
from findleaks.runtimes.glib.tables import Header, find_tables, read_entries
from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple

HANDLER = "Q8xQ4xI8xQQ"  # sequential_number, prev, signal_id, closure, instance
INSTANCE, HANDLER_BYTES = 48, 56  # offset of `instance`, bytes of a Handler
LIST_HEADER, LIST_ENTRY = 8, 32  # bytes of the count and of a HandlerList in a GBSearchArray
CLOSURE_HEADER = 32  # bytes of GRealClosure before GClosure, in the same block
DATA, CALLBACK = 16, 32  # offsets in GClosure and GCClosure
SIGNAL_NAME = 16  # offset of `name` in SignalNode
MOST_SIGNALS = 1 << 16
SAMPLE = 4  # entries of a table that are examined


class Handler(NamedTuple):
    """A handler of a signal. `first`: it is the first of its instance and signal."""

    address: int
    first: bool
    signal: int
    closure: int
    instance: int


class HandlerTable(NamedTuple):
    """A table to which `variable` refers. Its keys are handlers, or instances (`by_instance`).
    `has_lists`: the values are the lists of handlers of the instances, perhaps of disconnected
    handlers only."""

    variable: int
    header: Header
    by_instance: bool
    has_lists: bool
    entries: Mapping[int, int]


class Signals:
    """The signal handlers of a process. `data` is the writable memory of libgobject, `classes`
    are the classes of instances."""

    def __init__(self, memory: Memory, engine: Engine, data: Sequence[Range], classes: Mapping[int, object]) -> None:
        self._memory, self._engine, self._data, self._classes = memory, engine, data, classes
        self._known: dict[int, str] = {}
        self._form = struct.Struct(memory.arch.word_format[0] + HANDLER)

    @cached_property
    def handlers(self) -> Sequence[Handler]:
        """All handlers, ascending by address."""
        return next((self._read(array("Q", sorted(one.entries))) for one in self._tables if not one.by_instance), [])

    @cached_property
    def _tables(self) -> Sequence[HandlerTable]:
        """The tables with a handler as each key, or an instance as each key."""
        found = []
        for address, table in find_tables(self._memory, self._data):
            entries = list(islice(read_entries(self._memory, table), SAMPLE))
            sample = [key for key, _ in entries]
            by_instance = bool(sample) and table.big_keys and all(map(self._is_instance, sample))
            if sample and (by_instance or (table.keys == table.values and all(map(self._is_handler, sample)))):
                has_lists = by_instance and table.big_values and all(self._is_list(value) for _, value in entries)
                found.append(HandlerTable(address, table, by_instance, has_lists, dict(read_entries(self._memory, table))))
        return found if any(one.has_lists or not one.by_instance for one in found) else []

    @property
    def variables(self) -> Sequence[int]:
        """The addresses of the variables that refer to tables of handlers."""
        return [one.variable for one in self._tables]

    @cached_property
    def lists(self) -> Mapping[int, int]:
        """The list of handlers of each instance. {} if the lists of some handlers are unknown."""
        instances = {one.instance for one in self.handlers}
        return next((one.entries for one in self._tables if one.has_lists and instances <= one.entries.keys()), {})

    @property
    def table_words(self) -> Iterator[Range]:
        """Yield the words of the tables that keep no instance in use. If `lists` is known, these
        tables keep no handlers in use either, because an instance frees its handlers."""
        for _, table, by_instance, _, _ in self._tables:
            if by_instance or self.lists:
                yield Range(table.keys, table.keys + 8 * table.slots)
            if by_instance:
                # A hash is the low half of an instance's address. It looks like a reference.
                yield Range(table.hashes, table.hashes + 4 * table.slots)
            if by_instance and self.lists and table.big_values:
                yield Range(table.values, table.values + 8 * table.slots)

    def _is_instance(self, address: int) -> bool:
        return self._memory.word(address) in self._classes

    def _is_list(self, address: int) -> bool:
        """Whether there is a list of handlers: a GBSearchArray of HandlerLists, by signal."""
        count, signal = self._memory.int32(address) or 0, self._memory.int32(address + LIST_HEADER) or 0
        return address % 8 == 0 and 0 < count < MOST_SIGNALS and 0 < signal < MOST_SIGNALS and bool(self.name(signal))

    def _is_handler(self, address: int) -> bool:
        data = self._memory.read(address, self._form.size)
        if not data:
            return False
        number, _, signal, closure, instance = self._form.unpack(data)
        return bool(number and closure) and 0 < signal < MOST_SIGNALS and self._is_instance(instance)

    def _read(self, addresses: array[int]) -> list[Handler]:
        records, missing = read_records(self._memory.target, self._engine, addresses, self._form.size)
        rows = zip(range(len(addresses)), addresses, self._form.iter_unpack(records))
        return [
            Handler(address, not before, signal, closure, instance)
            for at, address, (number, before, signal, closure, instance) in rows
            if at not in missing and number
        ]

    @cached_property
    def _names(self) -> int:
        """The address of the array of signals (g_signal_nodes), by number; 0 if it is not found."""
        memory = self._memory
        for start, end in self._data:
            for _, words in memory.scan(start, end):
                for word in words:
                    first = memory.words(word, 2) if word and word % 8 == 0 else None
                    if first and not first[0] and self._name_at(first[1], 1):
                        return word
        return 0

    def _name_at(self, node: int, number: int) -> str:
        """Return the name of the signal with this SignalNode and number; "" if it is none."""
        if not node or node % 8 or self._memory.int32(node) != number:
            return ""
        return read_name(self._memory, self._memory.word(node + SIGNAL_NAME) or 0)

    def name(self, signal: int) -> str:
        """Return the name of a signal, safe to print; "" if unknown."""
        if signal not in self._known:
            self._known[signal] = self._read_name(signal)
        return self._known[signal]

    def _read_name(self, signal: int) -> str:
        node = self._memory.word(self._names + 8 * signal) if self._names and signal < MOST_SIGNALS else 0
        return self._name_at(node or 0, signal)
