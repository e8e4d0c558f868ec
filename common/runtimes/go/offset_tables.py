"""Read global offset tables. Code of plugins, and of programs that load plugins, reads the
addresses of types and variables from such a table, because the linker does not know them.

Source: Go 1.18 to 1.27, src/cmd/internal/obj/x86/obj6.go (rewriteToUseGot)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.go.moduledata import ModuleData, Program
from findleaks.target.ranges import merge_ranges, range_at

_MOST_BYTES = 1 << 20  # of the table, which precedes the variables


class OffsetTables:
    """The global offset tables of a program's modules. A program without plugins uses none."""

    def __init__(self, memory: Memory, program: Program) -> None:
        self._memory, self._types, self._modules = memory, program.types, program.modules
        parts = (part for one in program.modules for part in (one.noptrdata, one.data, one.bss, one.noptrbss))
        self._variables = merge_ranges(parts)

    def read(self, address: int) -> Optional[int]:
        """Return the address of a type or variable that the table's word at an address contains;
        None if no such word is there."""
        if len(self._modules) < 2 or range_at(self._variables, address) is not None:
            return None
        word = self._memory.word(address)
        is_known = word and (self._types.at(word) is not None or range_at(self._variables, word) is not None)
        return word if is_known else None

    def find(self, module: ModuleData, wanted: Collection[int]) -> dict[int, int]:
        """Return the words of a module's table that contain one of the addresses `wanted`, by their
        own addresses."""
        end = min(module.noptrdata.start, module.data.start)
        found: dict[int, int] = {}
        if len(self._modules) > 1:
            for piece in self._memory.target.pieces(max(end - _MOST_BYTES, module.text.end), end):
                words = enumerate(self._memory.arch.words(piece.data))
                found.update((piece.address + 8 * at, word) for at, word in words if word in wanted)
        return found
