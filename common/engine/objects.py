"""Objects that name their type in their second word, each in a block of its own: CPython's. The contract, and the pure-Python twin of
../kernel/objects.c.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from findleaks.engine.contract import Blocks
from findleaks.engine.dominators import NOBODY, SILENT
from findleaks.engine.terms import State
from findleaks.target.arch import Arch
from findleaks.target.base import Piece, Range

NO_OBJECT = NOBODY
"""In `found` and `stands`, which dominators take for what blocks stand for; SILENT there is an object that has no pointers: what stands
behind its end is not its own."""

NO_POINTERS = 255
"""In `Graph.leave_out`: none of a block's words is a reference."""

SUMS = 6
STEPS = 8
"""Objects begin at multiples of two words, below so many of them, into their blocks."""

_SMALL = 1 << 20


class ObjectTally(NamedTuple):
    """What `Engine.count_objects` adds to. `types` are the addresses of the types, by number; `offsets` how far into their blocks their
    objects begin, a byte each; `marks` where in them a byte stands of whose two low bits one is set in marked objects (0: nowhere, no
    object is marked); `leaves` 1 for a type whose objects have no pointers, or bits of that same byte all of which are set in
    objects without, or 0. `found` has the number of the type of the live object in each block, or NO_OBJECT; `stands` the same, but
    SILENT for objects without pointers. `sums` are SUMS words
    a type: live objects, the usable bytes of their blocks, those of them that a garbage collector knows of (the word two in front of
    the object is not 0), objects that nothing refers to (kept to be used again), marked objects, and the bytes of these' blocks.

    An object is in a block in use if the word behind its first is a type whose offset is where it stands, and its first word can be a
    count of references: of bits 32 to 47 none is set, and it is below 1 MiB, or neither in any block nor in [low, high), where the program
    is that has the types. The first such counts."""

    types: array[int]  # "Q"
    offsets: bytes
    marks: bytes
    leaves: bytes
    low: int
    high: int
    found: array[int]  # "I"
    stands: array[int]  # "I"
    sums: array[int]  # "Q"

    @classmethod
    def of(cls, blocks: Blocks, types: Sequence[int], offsets: bytes, marks: bytes, leaves: bytes, program: Range) -> ObjectTally:
        """One with nothing counted yet."""
        if not len(types) == len(offsets) == len(marks) == len(leaves):
            raise ValueError(f"{len(types)} types, {len(offsets)} offsets, {len(marks)} marks, {len(leaves)} leaves")
        none = array("I", [NO_OBJECT]) * len(blocks)
        sums = array("Q", bytes(8 * SUMS * len(types)))
        return cls(array("Q", types), offsets, marks, leaves, *program, none, none[:], sums)


def count_objects(arch: Arch, blocks: Blocks, piece: Piece, tally: ObjectTally) -> array[int]:
    """See contract.Engine."""
    word = arch.word
    header = 2 * word
    numbers = {address: number for number, address in enumerate(tally.types)}
    steps = sorted({offset for offset in tally.offsets if offset % header == 0 and offset < STEPS * header})
    cut: array[int] = array("Q")
    end = piece.address + len(piece.data)
    for index in range(blocks.at_or_after(piece.address), len(blocks)):
        start = blocks.address(index)
        if start >= end:
            break
        size = blocks.size(index)
        if blocks.state(index) != State.IN_USE or start % word:
            continue
        if end - start < size and end - start < (STEPS + 1) * header:
            cut.append(start)
            continue

        def at(offset: int, start: int = start) -> int:
            place = start - piece.address + offset
            return int.from_bytes(piece.data[place : place + word], arch.byteorder)

        for offset in steps:
            if size < offset + header:
                break
            number = numbers.get(at(offset + word))
            count = at(offset)
            if number is None or tally.offsets[number] != offset or not _counts(blocks, tally, count):
                continue
            if count:
                mark = tally.marks[number]
                there = mark and offset + mark < min(size, end - start)
                state = piece.data[start - piece.address + offset + mark] if there else 0
                leaf = tally.leaves[number]
                tally.found[index] = number
                tally.stands[index] = SILENT if leaf == 1 or (leaf and state & leaf == leaf) else number
                tally.sums[SUMS * number] += 1
                tally.sums[SUMS * number + 1] += size
                tally.sums[SUMS * number + 2] += offset >= header and at(offset - header) != 0
                if state & 3:
                    tally.sums[SUMS * number + 4] += 1
                    tally.sums[SUMS * number + 5] += size
            else:
                tally.sums[SUMS * number + 3] += 1
            break
    return cut


def _counts(blocks: Blocks, tally: ObjectTally, word: int) -> bool:
    return not word >> 32 & 0xFFFF and (word < _SMALL or (not tally.low <= word < tally.high and blocks.find(word) < 0))
