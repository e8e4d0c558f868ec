"""Handles and requests of libuv, as a runtime whose types are their types and callbacks."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.directory import Directory
from findleaks.allocators.images import find_version
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.formatting import number, size, some
from findleaks.runtimes.base import NO_OBJECT, ObjectTypes, Runtime, Type
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.libuv.handles import ACTIVE, CLOSED, Item, find_items, find_loops, is_callback, list_links
from findleaks.target.base import Module, Range, Target

MANY, LEAST = 1000, 256 << 10  # least number of open handles of a type, and bytes of their blocks
MOST_CLOSED = 1 << 16  # most closed handles whose links are not references
SHOWN = 3  # callbacks that the finding names
_VERSION = re.compile(rb"\0(1\.[0-9]{1,2}\.[0-9]{1,2})(?:-dev)?\0")
REMEDY = "pass each handle that is no longer needed to uv_close, and free its memory in the callback of uv_close"


class Libuv(Runtime):
    """libuv in a process. See base.Runtime. `module` is the library."""

    name = "libuv"
    objects_are_native = True

    def __init__(self, target: Target, engine: Engine, directory: Directory, module: Module) -> None:
        self.problems: list[Problem] = []
        self.version = find_version(target, module, _VERSION)
        self.where = module.path.rsplit("/", 1)[-1]
        self._target, self._engine, self._directory = target, engine, directory
        self._memory = Memory(target)

    @cached_property
    def loops(self) -> Sequence[int]:
        """The addresses of the loops (uv_loop_t)."""
        return find_loops(self._memory, self._directory.blocks)

    @cached_property
    def _items(self) -> Sequence[Item]:
        return list(find_items(self._memory, self._engine, self._directory.blocks, self._directory.ranges(), self.loops))

    def _label(self, one: Item) -> str:
        """Return "uv_timer_t of tick", or "uv_tcp_t (closed)"."""
        symbol = self._target.symbolize(one.callback) if one.callback else None
        called = f" of {symbol.name}" if symbol is not None and symbol.address == one.callback else ""
        return f"{one.name}{called}{' (closed)' if one.flags >= 0 and one.flags & CLOSED else ''}"

    @cached_property
    def _labels(self) -> Sequence[str]:
        known: dict[Item, str] = {}
        keys = [one._replace(block=0, address=0, flags=one.flags & CLOSED if one.flags >= 0 else -1) for one in self._items]
        for key in keys:
            if key not in known:
                known[key] = self._label(key)
        return [known[key] for key in keys]

    @cached_property
    def _bytes(self) -> Sequence[int]:
        """The bytes of each item: those of its block, in equal parts for all items in it."""
        shared = Counter(one.block for one in self._items)
        return [self._directory.blocks.size(one.block) // shared[one.block] for one in self._items]

    def types(self) -> Sequence[Type]:
        """Return handles and requests by type and callback. Their bytes are those of their
        blocks."""
        counts, sizes = Counter(self._labels), Counter[str]()
        for label, own in zip(self._labels, self._bytes):
            sizes[label] += own
        return [Type(label, count, sizes[label]) for label, count in counts.items()]

    def object_types(self) -> Optional[ObjectTypes]:
        """Return the type of the first handle or request in each block. Programs add members before
        and after it. A C++ object has the name of its class instead."""
        if not self._items:
            return None
        numbers = {label: number for number, label in enumerate(dict.fromkeys(self._labels))}
        types = array("I", [NO_OBJECT]) * len(self._directory.blocks)
        for one, label in zip(reversed(self._items), reversed(self._labels)):
            types[one.block] = NO_OBJECT if self._is_class(self._directory.blocks.address(one.block)) else numbers[label]
        return ObjectTypes(types, list(numbers), array("I", [1] * len(numbers)), self.name, "libuv object", True)

    def _is_class(self, start: int) -> bool:
        """Whether a block begins with a vtable pointer. Before the functions, a vtable has an
        offset, which is 0, and the address of the type information."""
        vtable = self._memory.word(start) or 0
        words = self._memory.words(vtable - 16, 3) if vtable > 16 else None
        return words is not None and not words[0] and bool(words[1]) and is_callback(self._memory, words[2])

    def bookkeeping(self) -> Sequence[Range]:
        """Return the links of closed handles. libuv removed these handles from its lists, and does
        not clear their links to other handles."""
        closed = [one for one in self._items if one.flags >= 0 and one.flags & CLOSED][:MOST_CLOSED]
        return [Range(one.address + start, one.address + end) for one in closed for start, end in list_links(one)]

    def interior_offsets(self) -> Sequence[tuple[int, int]]:
        """Return the offsets of the links of handles in their blocks, for all sizes of blocks."""
        blocks = self._directory.blocks
        handles = ((blocks.size(one.block), one.address - blocks.address(one.block), one) for one in self._items if one.flags >= 0)
        return sorted({(usable, first + start) for usable, first, one in handles for start, _ in list_links(one)})

    def findings(self) -> Sequence[Finding]:
        """Return one finding if many handles of one type are open."""
        rows = zip(self._items, self._labels, self._bytes)
        opened = [(one, label, own) for one, label, own in rows if one.flags >= 0 and not one.flags & CLOSED]
        name, count = next(iter(Counter(one.name for one, _, _ in opened).most_common(1)), ("", 0))
        ours = [row for row in opened if row[0].name == name]
        total = sum(own for _, _, own in ours)
        if count < MANY or total < LEAST:
            return []
        active = sum(bool(one.flags & ACTIVE) for one, _, _ in ours)
        title = f"In use, not leaked: {number(count)} handles {name} of libuv are open, {number(active)} of them active."
        title += f" They have {size(total)}."
        names = [(label, calls) for label, calls in Counter(label for _, label, _ in ours).most_common() if label != name]
        called = some([f"{number(calls)} of {label.partition(' of ')[2] or 'unknown functions'}" for label, calls in names], SHOWN)
        facts: dict[str, object] = {"type": name, "handles": count, "active": active}
        cause = f"By callback: {called}." if called else ""
        return [Finding("libuv-handles", total, title, cause, (REMEDY,), ("runtime",), facts, of_blocks=True)]
