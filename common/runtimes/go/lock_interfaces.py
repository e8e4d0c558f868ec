"""Find out whether a lock may be unlocked through an interface, such as sync.Locker, or through a
function value such as (*sync.Mutex).Unlock. Only machine code of x86-64 is read.

The code of an indirect call does not show whether it unlocks. But before such a call, the program
makes an interface value, which is an itab and the address of the lock. It usually stores this value
in the heap or in a variable, where it can be found. If it may have only passed the value to a
function, any lock may have been unlocked like this.

Source: Go 1.18 to 1.27, src/runtime/runtime2.go (itab)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice

from findleaks.allocators.memory import Memory
from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.disasm.functions import instructions_at
from findleaks.disasm.instruction import Instruction
from findleaks.disasm.registers import RSP
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.runtimes.go.code_references import find_references
from findleaks.runtimes.go.packages import is_library
from findleaks.runtimes.go.pclntab import FunctionTable
from findleaks.target.base import Piece, Range, Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import range_at

_UNLOCK = re.compile(r"(?<=\0)sync\.\(\*(?:RWMutex|Mutex|rlocker)\)\.R?Unlock(?=\0)")
_WORD, _FUNCTIONS = 8, 24  # bytes; the offset of functions in an itab
_MOST_METHODS = 16  # of an interface with Unlock
_MOST_PLACES = 1 << 12  # words that refer to a function that unlocks
_LOOK = 1 << 12  # interface values between two checks for Ctrl-C
_NEAR = 12  # instructions after one that loads the address of an itab
_STORES_ONLY = ("sync.NewCond",)
"""Functions that only store the interface value in an object."""


class LockInterfaces:
    """See the module. `tables`: those of all modules. `persistent`: memory that the runtime never
    frees, in few ranges. `list_values`: yields the memory of objects and variables."""

    def __init__(
        self,
        target: Target,
        engine: Engine,
        tables: Sequence[FunctionTable],
        persistent: Sequence[Range],
        list_values: Callable[[], Iterable[Piece]],
    ) -> None:
        self._target, self._engine, self._tables, self._memory = target, engine, tables, Memory(target)
        self._persistent, self._list_values = persistent, list_values

    def may_unlock(self, lock: int) -> bool:
        """Whether the lock at an address may be unlocked like this. Raises Interrupted."""
        return self._any or lock in self._locks

    @cached_property
    def _places(self) -> tuple[list[int], list[int], bool]:
        """The itabs with a function that unlocks, the function values, and whether the program has
        made such itabs while it ran."""
        entries = [entry for table in self._tables for entry in table.entries_named(_UNLOCK)]
        if not entries:
            return [], [], False
        itabs, values = list[int](), list[int]()
        places = list(islice(self._search([*self._constants, *self._variables], entries), _MOST_PLACES))
        places_made = list(islice(self._search(self._persistent, entries), _MOST_PLACES))
        if _MOST_PLACES in (len(places), len(places_made)):
            return [], [], True  # damaged
        for address in places:
            itab = self._find_itab(address)
            (itabs if itab else values).append(itab or address)
        made = [one for address in places_made if (one := self._find_itab(address))]
        return [*itabs, *made], values, bool(made)

    @property
    def _constants(self) -> list[Range]:
        return [Range(one.text.end, one.noptrdata.start) for one in (table.module for table in self._tables)]

    @property
    def _variables(self) -> list[Range]:
        return [part for table in self._tables for part in (table.module.noptrdata, table.module.data)]

    def _search(self, ranges: Iterable[Range], words: Sequence[int]) -> Iterator[int]:
        for start, end in ranges:
            for piece in self._target.pieces(start, end) if start < end else ():
                if self._target.is_interrupted():
                    raise Interrupted
                yield from self._engine.search_any(piece, words)

    def _find_itab(self, address: int) -> int:
        """Return the itab that has one of its functions at an address; 0 if there is none. An itab
        begins with the addresses of two types, and a hash."""
        for at in range(_MOST_METHODS):
            start = address - _FUNCTIONS - at * _WORD
            words = self._memory.words(start, 2)
            if words and all(any(table.module.types.start <= one < table.module.types.end for table in self._tables) for one in words):
                return start
        return 0

    @cached_property
    def _any(self) -> bool:
        """Whether any lock may be unlocked like this."""
        itabs, values, has_made = self._places
        if has_made:
            return True
        if values and next(self._search([*self._constants, *self._variables], values), None) is not None:
            return True
        # The dictionary of a generic function is a constant. The tables of itabs are, too.
        links = [table.module.itabs for table in self._tables]
        if itabs and any(range_at(sorted(links), one) is None for one in self._search(self._constants, itabs)):
            return True
        wanted = frozenset((*itabs, *values))
        for table in self._tables if wanted else ():
            for address, place in find_references(self._target, table.module, wanted):
                function = table.find(place)
                if function is None or is_library(function.name):
                    continue
                if address in values or not self._is_stored(table, place):
                    return True
        return False

    def _is_stored(self, table: FunctionTable, place: int) -> bool:
        """Whether the code at a place only stores the address of an itab outside of the frame."""
        start, end = table.extent(place)
        try:
            code = list(instructions_at(self._target, start, end - start))
        except CapstoneMissing:
            return False
        at = next((number for number, one in enumerate(code) if one.address <= place < one.end), None)
        if at is None or code[at].name != "lea":
            return False
        return self._is_safe_use(table, code[at].destination, code[at + 1 : at + 1 + _NEAR])

    def _is_safe_use(self, table: FunctionTable, register: int, code: Sequence[Instruction]) -> bool:
        is_stored = False
        for one in code:
            if one.stores and one.source == register:
                if one.base == RSP:
                    return False
                is_stored = True
            elif one.destination == register:
                return is_stored
            elif one.name == "call":
                function = table.find(one.target) if one.target is not None else None
                return is_stored or (function is not None and function.name in _STORES_ONLY)
            elif one.name == "ret" or one.source == register:
                return is_stored and one.name != "ret"
        return is_stored

    @cached_property
    def _locks(self) -> frozenset[int]:
        """The addresses of locks to which stored interface values refer."""
        itabs, found = self._places[0], set[int]()
        for piece in self._list_values() if itabs else ():
            for address in interruptible(self._target, self._engine.search_any(piece, itabs), _LOOK):
                found.add(self._memory.word(address + _WORD) or 0)
        return frozenset(found)
