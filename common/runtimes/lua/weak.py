"""Find the references in weak tables of Lua. The collector does not follow them.

A table is weak if the field `__mode` of its metatable contains "k" (keys) or "v" (values). Strings,
numbers and booleans are values, not objects, so a weak table keeps them.

If only the keys are weak, the values count as references, although Lua since 5.2 ignores a value
whose key is garbage.

Sources: lgc.c (traversetable, traverseweakvalue, traverseephemeron) of Lua 5.1.5 to 5.4.4,
lj_gc.c (gc_traverse_tab) of LuaJIT 2.1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from findleaks.allocators.memory import Memory
from findleaks.runtimes.lua.layout import STRING, TABLE, THREAD, State

_VALUE = 16  # bytes of a value of Lua, after which a node has the key
_SLICE = 1 << 13  # nodes or values that are read at a time


class _Reader(Protocol):
    """The part of objects.Objects that weak tables need."""

    def entries(self, state: State, table: int) -> Iterator[tuple[object, int, int, int]]: ...
    def text(self, state: State, string: int) -> str: ...


class WeakModes:
    """The values of `__mode`, by metatable."""

    def __init__(self, objects: _Reader) -> None:
        self._objects = objects
        self._known: dict[int, str] = {}

    def find(self, state: State, metatable: int) -> str:
        """Return what is weak in tables with this metatable: "", "k", "v" or "kv"."""
        if metatable not in self._known:
            entries = self._objects.entries(state, metatable) if metatable else ()
            mode = next((self._objects.text(state, value) for key, kind, value, _ in entries if key == "__mode" and kind == STRING), "")
            self._known[metatable] = "".join(letter for letter in "kv" if letter in mode)
        return self._known[metatable]


def is_object(kind: int) -> bool:
    """Whether the collector removes a value of this type from weak tables."""
    return TABLE <= kind & 15 <= THREAD


def list_weak_words(memory: Memory, start: int, size: int, count: int, mode: str) -> Iterator[int]:
    """Yield the addresses of the words that refer to objects weakly, in the `count` elements or
    nodes of `size` bytes each that begin at `start`. `mode`: see WeakModes. Little-endian."""
    step = size // 8
    for first in range(0, count, _SLICE):
        here = start + size * first
        read = memory.words(here, step * min(_SLICE, count - first))
        if read is None:
            return
        if "v" in mode:
            yield from (here + size * number for number, tag in enumerate(read[1::step]) if is_object(tag))
        if "k" in mode and size > _VALUE:
            # In 5.4, the second word of a node has both types. Before, the key has its own word.
            kinds = [word >> 8 for word in read[1::step]] if step == 3 else read[3::step]
            yield from (here + size * number + _VALUE for number, kind in enumerate(kinds) if is_object(kind))
