"""Counting CPython's objects in Python: the reference for common/kernel/cpython_objects.c."""

from __future__ import annotations

from array import array

from findleaks.engine.contract import Blocks
from findleaks.engine.dominators import IGNORED
from findleaks.engine.python.engine import PureEngine
from findleaks.engine.terms import State
from findleaks.runtimes.cpython.engine import STEPS, SUMS, ObjectTally
from findleaks.target.base import Piece

_SMALL = 1 << 20


def count_objects(engine: PureEngine, blocks: Blocks, piece: Piece, tally: ObjectTally) -> array[int]:
    """See engine.py."""
    arch = engine.arch
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
                tally.merged[index] = IGNORED if leaf == 1 or (leaf and state & leaf == leaf) else number
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
