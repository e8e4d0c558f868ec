"""Find the types to which words of a Go program refer."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.runtimes.go.moduledata import Program, list_itabs
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import merge_to_most, range_at

_PART = 8 << 20  # bytes of memory that are searched at a time


class TypeAddresses:
    """Finds types and itabs. `persistent`: memory that the runtime never frees, in few ranges."""

    def __init__(self, memory: Memory, engine: Engine, program: Program, persistent: Sequence[Range]) -> None:
        self._memory, self._engine, self._program, self._persistent = memory, engine, program, persistent

    def find(self, pieces: Sequence[Piece]) -> dict[int, int]:
        """Return the types to which words refer, directly or through an itab. Keys: the addresses
        of the types and itabs. Values: the addresses of the types. Raises Interrupted."""
        found: dict[int, int] = {}
        types = self._program.types
        for section in types.sections:
            for piece in pieces:
                if self._memory.target.is_interrupted():
                    raise Interrupted
                for address in self._values(piece, section):
                    # If a program is not position-independent, many integers look like addresses in
                    # this section.
                    if address % 8 == 0 and address not in found and types.at(address) is not None:
                        found[address] = address
        for itab in self._itabs(pieces):
            words = self._memory.words(itab, 2)
            if words is not None and types.at(words[0]) is not None and types.at(words[1]) is not None:
                found[itab] = words[1]
        return found

    def _values(self, piece: Piece, where: Range) -> set[int]:
        """Return the distinct words of a piece with a value in a range."""
        found: set[int] = set()
        for at in range(0, len(piece.data), _PART):  # there may be as many such words as objects
            part = Piece(piece.address + at, piece.data[at : at + _PART])
            values, _ = self._engine.gather((part,), self._engine.search(part, where.start, where.end), 8)
            found.update(self._engine.sum_by_value(array("Q", bytes(values)), array("Q"))[0])
        return found

    def _itabs(self, pieces: Sequence[Piece]) -> Iterator[int]:
        """Yield possible addresses of itabs: those of the linker's itabs, and the values of words
        that refer to memory that the runtime never frees. Itabs that are created at run time are
        in this memory."""
        for module in self._program.modules:
            yield from list_itabs(self._memory, module)
        for place in merge_to_most(self._persistent, 1):  # each search takes a pass over the heap
            for piece in pieces:
                yield from (value for value in self._values(piece, place) if range_at(self._persistent, value) is not None)
