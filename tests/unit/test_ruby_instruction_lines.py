"""The index of Ruby's line table: positions and entries are read as the test encoded them."""

from __future__ import annotations

import random
from struct import pack

import pytest
from fake import FakeTarget

from findleaks.allocators.memory import Memory
from findleaks.runtimes.ruby.instruction_sequences import Instructions, SequenceReader
from findleaks.runtimes.ruby.values import Values

INDEX, LINES, CODE = 0x10000, 0x20000, 0x30000


def make_index(positions: list[int], words: int) -> bytes:
    """Return a struct succ_index_table, as iseq.c describes it, with a bit for each position at which an entry begins."""
    ranks = [sum(one <= at for one in positions) for at in range(words + 1024)]
    made = b""
    for group in range(0, 54, 9):
        made += pack("<Q", sum(ranks[group + number] << 7 * number for number in range(9)))
    for block in range(54, words + 1, 512):
        before = ranks[block - 1]
        small = sum((ranks[block + 64 * number - 1] - before) << 9 * (number - 1) for number in range(1, 8))
        bits = [sum((block + 64 * number + bit in positions) << bit for bit in range(64)) for number in range(8)]
        made += pack("<I4xQ8Q", before, small, *bits)
    return made


@pytest.mark.parametrize("version", [(2, 7), (3, 1)])
def test_lines(version: tuple[int, int]) -> None:
    chance = random.Random(7)
    size = 8 if version == (2, 7) else 12
    for words in (1, 9, 53, 54, 55, 117, 118, 566, 1100):
        positions = sorted({0, *chance.sample(range(words), min(words, 1 + words // 3))})
        lines = [chance.randrange(1, 5000) for _ in positions]
        table = b"".join(pack("<i", line).ljust(size, b"\1") for line in lines)
        memory = Memory(FakeTarget({INDEX: make_index(positions, words), LINES: table}))
        reader = SequenceReader(memory, Values(memory, lambda name: None), version)
        found = Instructions("work", "work.rb", CODE, words, LINES, len(lines), INDEX)
        for at in range(words):
            expected = lines[sum(one <= at for one in positions) - 1]
            assert reader.line(found, CODE + 8 * (at + 1)) == expected, (words, at)
        assert reader.line(found, CODE) == lines[0]
        assert reader.line(found, CODE + 8 * (words + 1)) == reader.line(found, CODE + 4) == reader.line(found, CODE - 8) == 0
