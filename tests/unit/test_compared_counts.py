"""Reference counts of leaked values, compared with the references that exist."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import graphs

from findleaks.engine.contract import Engine
from findleaks.engine.terms import Heuristic
from findleaks.runtimes.base import ReferenceCounts
from findleaks.runtimes.compared_counts import NO_VALUE, CountedValues, Style, compare_counts
from findleaks.runtimes.count_verdict import CountVerdict
from findleaks.target.arch import X86_64

START, SIZE, OFFSET = 0x10000, 64, 16
STYLE = Style("drop()", CountVerdict.UNCOLLECTED, (), 0)


def compare(engine: Engine, counts: Sequence[int], references: Sequence[Sequence[int]], cut: int = 0, number: int = 0) -> ReferenceCounts:
    """Compare the counts of leaked values. Each value is 16 bytes after the start of its block. `references`: for each value, the numbers
    of the values that it refers to. The memory is read as two pieces, divided at the offset `cut`. `number`: the type of all values."""
    data = bytearray(SIZE * len(counts))
    for value, targets in enumerate(references):
        words = [START + SIZE * target + OFFSET for target in targets]
        struct.pack_into(f"<{len(words)}Q", data, SIZE * value + OFFSET + 8, *words)
    blocks = engine.blocks(X86_64, 16)
    blocks.append([START + SIZE * value for value in range(len(counts))], [SIZE] * len(counts), [0] * len(counts))
    blocks.seal()
    graph = engine.graph(blocks, Heuristic.NONE, (), ())
    graph.scan_blocks(graphs.piece(START, bytes(data)))
    graphs.mark(graph, 1 << 30)
    pieces = [graphs.piece(START + low, bytes(data[low:high])) for low, high in ((0, cut), (cut, len(data))) if low < high]
    values = CountedValues([number] * len(counts), ["value"], counts.__getitem__, lambda index: OFFSET)
    return compare_counts(pieces, X86_64, graph, blocks, values, STYLE)


def test_values_that_refer_to_themselves() -> None:
    """The count of the first value is that of its references to itself, so the value is garbage. The count of the second value is one
    larger. The third value refers to nothing."""
    for engine in (graphs.native(), graphs.pure()):
        for cut in (0, 8, SIZE + OFFSET + 16, 3 * SIZE - 8):
            found = compare(engine, [2, 2, 1], [[0, 0], [1], []], cut)
            assert found.excess.tolist() == [0, 1, 1]
            assert list(found.verdicts) == [CountVerdict.UNCOLLECTED, CountVerdict.MISSING_DECREF, CountVerdict.MISSING_DECREF]
            (row,) = found.types
            assert row[1:] == (2, 2, 1)


def test_a_cycle_with_a_value_that_refers_to_itself() -> None:
    """References from other values and from the value itself are added."""
    for engine in (graphs.native(), graphs.pure()):
        found = compare(engine, [2, 1], [[0, 1], [0]])
        assert found.excess.tolist() == [0, 0] and set(found.verdicts) == {CountVerdict.UNCOLLECTED}
        assert compare(engine, [3, 1], [[0, 1], [0]]).excess.tolist() == [1, 0]


def test_no_leaked_value_is_counted() -> None:
    """Leaked blocks without a value leave the result empty, but count as leaked."""
    for engine in (graphs.native(), graphs.pure()):
        found = compare(engine, [1, 1], [[], []], number=NO_VALUE)
        assert set(found.verdicts) == {CountVerdict.NOTHING} and found.excess.tolist() == [0, 0] and not found.types
        assert found.totals[CountVerdict.NOTHING].blocks == 2
