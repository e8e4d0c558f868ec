"""Find global variables that refer to other variables. In `var tree = &Tree{}`, the compiler places
the Tree among the variables, without a name, and code reaches it only through `tree`.

Source: Go 1.18 to 1.27, src/cmd/compile/internal/staticinit/sched.go (StaticName)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.go.moduledata import Program
from findleaks.target.ranges import merge_ranges, range_at

_MOST_BYTES = 1 << 12  # of a variable without a name
# Variables through which code may reach a place, and variables that refer to one variable, that are
# examined. Tables may have a million references to one variable.
_MOST_OWNERS = 16


class StaticPointers:
    """The variables of a program that refer to others."""

    def __init__(self, memory: Memory, program: Program) -> None:
        self._memory, self._types = memory, program.types
        self.variables = merge_ranges(part for one in program.modules for part in (one.data, one.bss))
        self._type_words: dict[int, bool] = {}  # whether words refer to types or itabs

    def is_variable(self, address: int) -> bool:
        """Return whether a global variable that may be a pointer is at this address."""
        return address % 8 == 0 and range_at(self.variables, address) is not None

    def read(self, address: int) -> Optional[int]:
        """If the variable at an address refers to another variable, return the address of the other
        one; otherwise None. If the variable may be an interface, return None, too: code may treat
        its value as one of several types."""
        word = self._memory.word(address) if self.is_variable(address) else None
        return word if word and self.is_variable(word) and not self.is_interface(address) else None

    def is_interface(self, address: int) -> bool:
        """Return whether a word may be the value of an interface: it has the address of a type or
        itab just before it. Code that changes the value through a pointer to the interface is not
        followed."""
        before = self._memory.word(address - 8) or 0
        if before not in self._type_words:
            # The second word of an itab refers to the type of the value (runtime2.go, itab).
            types, second = self._types, self._memory.word(before + 8)
            self._type_words[before] = types.at(before) is not None or (second is not None and types.at(second) is not None)
        return self._type_words[before]

    def find_owners(self, places: Iterable[int], words: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
        """Return for each place the variables through which code may reach it: those that refer to
        the structure that contains the place, and those through which code may reach these. A
        structure is taken to begin at the last address before the place to which a variable refers.
        `words`: address and value of the words of variables."""
        referrers: dict[int, list[int]] = {}
        for address, value in words:
            if self.is_variable(value) and len(known := referrers.setdefault(value, [])) < _MOST_OWNERS:
                known.append(address)
        starts = sorted(referrers)
        found: dict[int, list[int]] = {}
        for place in places:
            owners, pending = dict.fromkeys([place]), [place]
            while pending and len(owners) <= _MOST_OWNERS:
                one = pending.pop()
                at = bisect_right(starts, one) - 1
                if at >= 0 and one - starts[at] < _MOST_BYTES:
                    pending += [owner for owner in referrers[starts[at]] if owner not in owners]
                    owners |= dict.fromkeys(referrers[starts[at]])
            found[place] = list(owners)[1:]
        return found
