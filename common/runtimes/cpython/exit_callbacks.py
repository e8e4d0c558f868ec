"""Find the functions that `atexit.register` keeps until the interpreter ends.

Source: Include/internal/pycore_atexit.h (pycore_interp.h in 3.11; atexit_state: callbacks,
ncallbacks, callback_len; atexit_py_callback: function, tuple of arguments, dictionary or NULL) of
CPython 3.11 to 3.13. atexit_state is part of the interpreter's state, which is in the program's
data. Other versions are not examined. CPython 3.9 keeps the callbacks in a block of the module
atexit, 3.10 in the block of the interpreter's state, and 3.14 in a list."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.runtimes.cpython.engine import NO_OBJECT
from findleaks.runtimes.cpython.types import SUBCLASSES, Types

EXAMINED = 16  # callbacks that are examined at each end of the array
_MOST = 1 << 28  # most entries of a valid array


class ExitCallbacks(NamedTuple):
    """The callbacks of an interpreter. `functions`: the addresses of the functions of its first and
    its last callbacks."""

    place: int  # address of the pointer to the array
    start: int  # address of the array
    length: int  # number of entries, including those of functions that were unregistered
    functions: Sequence[int]


class ExitCallbackReader:
    """Recognises arrays of callbacks. `found`: for each block, the type of its object or
    NO_OBJECT."""

    def __init__(self, memory: Memory, blocks: Blocks, known: Types, found: array[int]) -> None:
        self._memory, self._blocks, self._known, self._found = memory, blocks, known, found

    def find(self, places: Iterable[tuple[int, int]]) -> Iterator[ExitCallbacks]:
        """Yield the arrays to which pointers outside of blocks refer. `places`: the address of each
        pointer, and the index of the block to which the pointer refers."""
        for place, index in places:
            found = self._read(place, index)
            if found is not None and self._blocks.find(place) < 0:
                yield found

    def _read(self, place: int, index: int) -> Optional[ExitCallbacks]:
        memory, blocks = self._memory, self._blocks
        size, start = memory.size, blocks.address(index)
        count, length = memory.int32(place + size) or 0, memory.int32(place + size + 4) or 0
        if blocks.state(index) != State.IN_USE or not 0 < count <= length <= min(blocks.size(index) // size, _MOST):
            return None
        if memory.word(place) != start:
            return None
        first = memory.words(start, min(count, EXAMINED)) or ()
        last = memory.words(start + size * max(count - EXAMINED, 0), min(count, EXAMINED)) or ()
        functions = [self._function(one) for one in dict.fromkeys([*first, *last]) if one]
        return ExitCallbacks(place, start, count, functions) if functions and all(functions) else None

    def _function(self, callback: int) -> int:
        """Return the address of the function of a callback; 0 if no callback is at this address."""
        words = self._memory.words(callback, 3)
        if words is None or not self._has_flag(words[1], "tuple") or (words[2] and not self._has_flag(words[2], "dict")):
            return 0
        at = self._blocks.lookup(callback)
        own = at is not None and at[1] == callback and at[3] == State.IN_USE and self._found[at[0]] == NO_OBJECT
        return words[0] if own and self._type(words[0]) >= 0 else 0

    def _type(self, address: int) -> int:
        """Return the number of an object's type; -1 if it is unknown. The object may be outside of
        blocks, such as the empty tuple, which is in the interpreter's data."""
        return self._known.number(self._memory.word(address + self._known.shift + self._memory.size) or 0)

    def _has_flag(self, address: int, name: str) -> bool:
        number = self._type(address)
        return number >= 0 and bool(self._known.flags[number] & SUBCLASSES[name])
