"""memcheck's four interior-pointer heuristics and two of CPython's, in pure Python.

Definitions from Valgrind 3.19 (memcheck/mc_leakcheck.c). memcheck knows the requested size. Here
only the usable size is known, which is larger by fewer than shared.SLACK_WORDS words, so sizes
within this tolerance are accepted.

Memory is read sequentially, and a reference may be read before the block that it points into. So
two things are collected, and evaluated before marking: interior references, and facts, which are
derived from the words of a block."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from findleaks.engine import shared
from findleaks.engine.reference.blocks import PureBlocks
from findleaks.engine.terms import Heuristic
from findleaks.target.base import Range

HEAD = 8  # number of the first words of a block that facts depend on, except vtables inside it

# Offsets in a block where an object may begin: after the collector's header, or after two more
# pointers.
OBJECTS_AT = (0, 16, 32, 48)

# Offsets in a block at which the values of a dictionary may begin. The byte before the values
# contains this offset.
VALUES_AT = (8, 16, 24, 32)


class HeuristicFacts:
    """Facts of blocks, and interior references that are evaluated later."""

    def __init__(self, blocks: PureBlocks, heuristics: Heuristic, vtables: Sequence[Range], types: Sequence[int] = ()) -> None:
        self._blocks = blocks
        self._types = frozenset(types) - {0}
        self._objects: dict[int, int] = {}  # by block: the highest offset of an object
        self._values: set[tuple[int, int]] = set()  # (block, offset of a dictionary's values)
        self._heuristics = heuristics
        self._vtables = shared.RangeSet(vtables)
        self._facts: dict[int, int] = {}
        # Addresses of words that point to a vtable, except blocks' first words.
        self._inner_vtables: set[int] = set()
        # First words of blocks whose second word is not read yet, for example because the next
        # piece has it.
        self._first: dict[int, int] = {}
        self._edges: list[tuple[int, int, int]] = []  # index of the edge, block, pointer
        self._roots: list[tuple[int, int]] = []  # block, pointer

    def edge(self, place: int, block: int, pointer: int) -> None:
        self._edges.append((place, block, pointer))

    def root(self, block: int, pointer: int) -> None:
        self._roots.append((block, pointer))

    def facts(self, base: int, words: Sequence[int]) -> None:
        """Record what these words show about the blocks in use that contain them, for example that
        a vtable pointer follows a count of elements. The first word is at address `base`."""
        blocks = self._blocks
        word = blocks.arch.word
        end = base + len(words) * word
        index = max(0, blocks.at_or_after(base) - 1)
        while index < len(blocks) and blocks.starts[index] < end:
            start, size = blocks.starts[index], blocks.sizes[index]
            if blocks.states[index] == 0:
                if not self._heuristics & Heuristic.MULTIPLE_INHERITANCE:
                    size = min(size, HEAD * word)
                for address in range(max(base, start + -start % word), min(end, start + size) - word + 1, word):
                    self._word(index, start, blocks.sizes[index], address, words[(address - base) // word])
            index += 1

    def _word(self, index: int, start: int, size: int, address: int, value: int) -> None:
        word = self._blocks.arch.word
        if address - start < HEAD * word:
            self._head(index, address - start, value)
        if address == start:
            self._first[index] = value
            if word == 8:
                self._length64(index, size, value)
            if self._heuristics & Heuristic.NEWARRAY and 0 < value <= size - word and (size - word) % value < shared.SLACK_WORDS * word:
                self._note(index, Heuristic.NEWARRAY)
            if self._heuristics & Heuristic.ITEMS and 0 < value <= size // word - 1 and size // word <= 2 * value + 4:
                self._note(index, Heuristic.ITEMS)
            if self._heuristics & Heuristic.MULTIPLE_INHERITANCE and value in self._vtables:
                self._note(index, Heuristic.MULTIPLE_INHERITANCE)
            return
        if self._heuristics & Heuristic.MULTIPLE_INHERITANCE and value in self._vtables:
            self._inner_vtables.add(address)
        if address == start + word and index in self._first:
            length = self._first.pop(index)
            if word == 4:
                low, high = (length, value) if self._blocks.arch.byteorder == "little" else (value, length)
                self._length64(index, size, high << 32 | low)
            unused = size - 3 * word - 1 - value
            if self._heuristics & Heuristic.STDSTRING and length <= value and 0 <= unused < shared.SLACK_WORDS * word:
                self._note(index, Heuristic.STDSTRING)

    def _head(self, index: int, offset: int, value: int) -> None:
        """Record what one of the first words of a block shows about objects and dictionary values
        in the block."""
        word = self._blocks.arch.word
        if self._heuristics & Heuristic.OBJECTS and offset - word in OBJECTS_AT and value in self._types:
            self._objects[index] = max(self._objects.get(index, 0), offset - word)
        last = value >> 8 * (word - 1) if self._blocks.arch.byteorder == "little" else value & 255
        if self._heuristics & Heuristic.DICT_VALUES and offset + word in VALUES_AT and last == offset + word:
            self._values.add((index, offset + word))

    def _length64(self, index: int, size: int, length: int) -> None:
        unused = size - 8 - length
        if self._heuristics & Heuristic.LENGTH64 and 0 <= unused < shared.SLACK_WORDS * self._blocks.arch.word:
            self._note(index, Heuristic.LENGTH64)

    def _note(self, index: int, fact: Heuristic) -> None:
        self._facts[index] = self._facts.get(index, 0) | int(fact)

    def counts(self, block: int, pointer: int) -> bool:
        """Return whether this interior pointer counts as a start reference."""
        word = self._blocks.arch.word
        offset = pointer - self._blocks.starts[block]
        if block in self._objects and offset & ~3 in OBJECTS_AT and offset & ~3 <= self._objects[block]:
            # The pointer refers to the object, or to the data before it. Its two low bits may be
            # flags.
            return True
        if (block, offset + 1 if offset % 8 == 7 else offset) in self._values:
            return True  # 3.12 tags the pointer by subtracting one
        facts = self._facts.get(block, 0)
        return bool(
            (facts & Heuristic.LENGTH64 and offset == 8)
            or (facts & Heuristic.NEWARRAY and offset == word)
            or (facts & Heuristic.ITEMS and offset == word)
            or (facts & Heuristic.STDSTRING and offset == 3 * word)
            or (facts & Heuristic.MULTIPLE_INHERITANCE and pointer in self._inner_vtables)
        )

    def settle(self, edges: array[int], roots: dict[int, int]) -> None:
        for place, block, pointer in self._edges:
            if self.counts(block, pointer):
                edges[place] = block << 1
        interior: dict[int, int] = {}
        for block, pointer in self._roots:
            interior[block] = interior.get(block, 0) | (1 if self.counts(block, pointer) else 2)
        for block, how in interior.items():
            roots[block] = roots[block] & 1 | how
