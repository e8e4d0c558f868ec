"""Find the references in weak tables of Lua. The collector does not follow them.

A table is weak if the field `__mode` of its metatable contains "k" (keys) or "v" (values). Strings,
numbers and booleans are values, not objects, so a weak table keeps them.

If only the keys are weak, the values count as references, although Lua since 5.2 ignores a value
whose key is garbage.

Sources: lgc.c (traversetable, traverseweakvalue, traverseephemeron) of Lua 5.1.5 to 5.4.4,
lj_gc.c (gc_traverse_tab) of LuaJIT 2.1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Protocol

from findleaks.allocators.memory import Memory
from findleaks.runtimes.lua.layout import LIGHT, NUMBER, STRING, TABLE, THREAD, State
from findleaks.target.interruptible import interruptible
from findleaks.value_classes import NamedTuple

_SLICE = 1 << 15  # nodes or values that are read at a time
_STRONG = (LIGHT, NUMBER, STRING)
"""Types of values that a weak table keeps, and that may be addresses."""


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


class WeakWords(NamedTuple):
    """The words of an array or of nodes that refer to objects weakly.

    - columns: words of each value or node (0: the value, 2: the key) that are weak in all of them.
      None of these has a string, a number or a light userdata, which may be an address.
    - places: addresses of further words that refer to an object."""

    columns: Sequence[int]
    places: Iterator[int]


def find_weak_words(memory: Memory, start: int, step: int, count: int, mode: str) -> WeakWords:
    """Find the weak words in `count` values or nodes of `step` words each that begin at `start`.
    `mode`: see WeakModes. Little-endian. Raises Interrupted."""
    columns, places = list[int](), list[Iterator[int]]()
    # In 5.4, the second word of a node has both types. Before, the key has its own word.
    for letter, word, kind in (("v", 0, 8), ("k", 2, 9 if step == 3 else 24)):
        if letter in mode and word < step:
            kinds = set[int]().union(*(found for _, found in _read_kinds(memory, start, step, count, kind)))
            if any(map(is_object, kinds)):
                if all(one & 15 not in _STRONG for one in kinds):
                    columns.append(word)
                else:
                    places.append(_list_places(memory, start, step, count, word, kind))
    return WeakWords(columns, chain.from_iterable(places))


def _read_kinds(memory: Memory, start: int, step: int, count: int, kind: int) -> Iterator[tuple[int, bytes]]:
    """Yield the types at the byte `kind` of each value or node, with the number of the first one.
    Unreadable ones count as strings."""
    for first in interruptible(memory.target, range(0, count, _SLICE)):
        some = min(_SLICE, count - first)
        data = memory.read(start + 8 * step * first, 8 * step * some)
        yield first, data[kind :: 8 * step] or bytes([STRING])


def _list_places(memory: Memory, start: int, step: int, count: int, word: int, kind: int) -> Iterator[int]:
    for first, kinds in _read_kinds(memory, start, step, count, kind):
        yield from (start + 8 * (step * number + word) for number, one in enumerate(kinds, first) if is_object(one))
