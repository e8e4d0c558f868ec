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
from findleaks.runtimes.libuv.handles import ACTIVE, CLOSED, Item, find_items, find_loops, list_links
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
        return find_loops(self._memory, self._engine, self._directory.blocks)

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

    def types(self) -> Sequence[Type]:
        """Return handles and requests by type and callback. Their bytes are those of their
        blocks."""
        counts, sizes = Counter(self._labels), Counter[str]()
        for one, label in zip(self._items, self._labels):
            sizes[label] += self._directory.blocks.size(one.block)
        return [Type(label, count, sizes[label]) for label, count in counts.items()]

    def object_types(self) -> Optional[ObjectTypes]:
        """Return the type of the handle or request in each block. Programs add members before and
        after it."""
        if not self._items:
            return None
        numbers = {label: number for number, label in enumerate(dict.fromkeys(self._labels))}
        types = array("I", [NO_OBJECT]) * len(self._directory.blocks)
        for one, label in zip(self._items, self._labels):
            types[one.block] = numbers[label]
        return ObjectTypes(types, list(numbers), array("I", [1] * len(numbers)), self.name, "libuv object", True)

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
        opened = [one for one in self._items if one.flags >= 0 and not one.flags & CLOSED]
        name, count = next(iter(Counter(one.name for one in opened).most_common(1)), ("", 0))
        ours = [one for one in opened if one.name == name]
        total = sum(self._directory.blocks.size(one.block) for one in ours)
        if count < MANY or total < LEAST:
            return []
        active = sum(bool(one.flags & ACTIVE) for one in ours)
        title = f"In use, not leaked: {number(count)} handles {name} of libuv are open, {number(active)} of them active."
        title += f" They have {size(total)}."
        open_labels = (label for one, label in zip(self._items, self._labels) if one.name == name and not one.flags & CLOSED)
        names = [(label, calls) for label, calls in Counter(open_labels).most_common() if label != name]
        called = some([f"{number(calls)} of {label.partition(' of ')[2] or 'unknown functions'}" for label, calls in names], SHOWN)
        facts: dict[str, object] = {"type": name, "handles": count, "active": active}
        cause = f"By callback: {called}." if called else ""
        return [Finding("libuv-handles", total, title, cause, (REMEDY,), ("runtime",), facts, of_blocks=True)]
