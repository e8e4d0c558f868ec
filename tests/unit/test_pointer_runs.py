"""Arrays of pointers: the C engine and the reference engine return what the definition says, whatever the pieces of memory are."""

from __future__ import annotations

import random

import graphs
import pytest

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.pointer_runs import Bounds, PointerRun
from findleaks.engine.terms import State
from findleaks.target.arch import X86_64
from findleaks.target.base import Piece

HEAP, BASE = 0x5000_0000, 0x40_0000
COUNT, SIZE = 64, 32
HIGH = HEAP + COUNT * SIZE


def make_heap(engine: Engine) -> Blocks:
    """Return blocks. Every fifth one is free."""
    made = engine.blocks(X86_64, 16)
    starts = range(HEAP, HIGH, SIZE)
    made.append(starts, [24] * COUNT, [State.FREE if n % 5 == 4 else State.IN_USE for n in range(COUNT)])
    made.seal()
    return made


def is_pointer(value: int) -> bool:
    """Tell whether this word points into a block in use."""
    number, offset = divmod(value - HEAP, SIZE)
    return HEAP <= value < HIGH and offset < 24 and number % 5 != 4


def find_by_definition(words: list[int], bounds: Bounds) -> list[PointerRun]:
    """Return, by definition, the pointers in each run without other values. A run is split where pointers are too far apart."""
    stretches: list[list[int]] = [[]]
    for number, value in enumerate(words):
        if value and not bounds.low <= value < bounds.high:
            stretches.append([])
        elif is_pointer(value):
            stretches[-1].append(BASE + 8 * number)
    runs: list[list[int]] = []
    for stretch in stretches:
        for number, address in enumerate(stretch):
            if number == 0 or address - stretch[number - 1] - 8 > bounds.gap:
                runs.append([])
            runs[-1].append(address)
    return [PointerRun(run[0], run[-1] + 8, len(run)) for run in runs if len(run) >= bounds.least]


def find_runs(engine: Engine, pieces: list[Piece], bounds: Bounds) -> list[PointerRun]:
    search = make_heap(engine).pointer_runs(bounds)
    return [run for piece in pieces for run in search.read(piece)] + search.finish()


@pytest.mark.parametrize("engine", [graphs.native(), graphs.pure()], ids=["native", "pure"])
def test_runs_equal_the_definition(engine: Engine) -> None:
    longest = 0
    for seed in range(60):
        rng = random.Random(seed)
        strays = rng.choice((0.0, 0.02, 0.3))
        words = []
        for _ in range(rng.choice((0, 1, 40, 400))):
            way = rng.random()
            other = rng.choice((1, HEAP - 8, HIGH, rng.getrandbits(64) | 1 << 63, (1 << 64) - 1))
            words.append(0 if way < 0.2 else other if way < 0.2 + strays else rng.randrange(HEAP, HIGH))
        bounds = Bounds(HEAP, HIGH, rng.choice((1, 3, 20)), rng.choice((0, 8, 64, 1 << 16)))
        data = b"".join(word.to_bytes(8, "little") for word in words)
        expected = find_by_definition(words, bounds)
        longest = max([longest, *(run.pointers for run in expected)])
        assert find_runs(engine, graphs.cut(BASE, data, rng), bounds) == expected, seed
    assert longest > 100


@pytest.mark.parametrize("engine", [graphs.native(), graphs.pure()], ids=["native", "pure"])
def test_gaps_between_pieces_count_as_zeros(engine: Engine) -> None:
    word = HEAP.to_bytes(8, "little")
    pieces = [graphs.piece(BASE, word * 3), graphs.piece(BASE + 1024, word * 2)]
    assert find_runs(engine, pieces, Bounds(HEAP, HIGH, 1, 1000)) == [PointerRun(BASE, BASE + 1040, 5)]
    assert find_runs(engine, pieces, Bounds(HEAP, HIGH, 1, 992)) == [
        PointerRun(BASE, BASE + 24, 3),
        PointerRun(BASE + 1024, BASE + 1040, 2),
    ]
    assert find_runs(engine, pieces, Bounds(HEAP, HEAP, 1, 1 << 16)) == []
