"""Sorting records by their words: both engines give the same numbers, and never read outside of a piece."""

from __future__ import annotations

import random
from array import array

import graphs
import pytest

from findleaks.engine.native.declarations import SIGNATURES
from findleaks.engine.native.records import NativeRecords
from findleaks.engine.records import NONE, RUN, Records, Shape
from findleaks.engine.reference.records import PureRecords
from findleaks.target.arch import X86_64

SHAPES = {0: Shape(0x7), 1: Shape(0x7, (8,)), 2: Shape(0xFF, ()), 3: Shape(0x7, (8, 16, 24)), 5: Shape(0x1007, (16, 32))}
BASE = 0x7F0000010000


def make_records(most: int = 1 << 20) -> list[Records]:
    assert "fl_records" in SIGNATURES
    return [NativeRecords(graphs.native().library, SHAPES, 7, most), PureRecords(X86_64, SHAPES, 7, most)]


def random_words(rng: random.Random, count: int, kinds: int) -> bytes:
    return array("Q", (rng.randrange(8) | rng.choice((0, 0xF8, 0x1000)) | rng.randrange(kinds) << 40 for _ in range(count))).tobytes()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kinds", [1, 3, 2000])
def test_engines_agree(seed: int, kinds: int) -> None:
    rng = random.Random(seed)
    native, pure = make_records()
    expected: dict[tuple[int, ...], int] = {}
    for _ in range(3):
        data = random_words(rng, 5 * 400, kinds)
        piece = graphs.piece(BASE, data)
        runs = array("Q", [BASE, 40, 100, 0, BASE + 4000, 80, 20, 1 << 32, BASE + 8008, 48, 3, 2 << 32, BASE + 16000, 40, 0, 0])
        numbers = native.read(piece, runs)
        assert numbers == pure.read(piece, runs)
        keys = native.keys()
        at = 0
        for run in zip(*(runs[i::RUN] for i in range(RUN))):
            for i in range(run[2]):
                offset = (run[0] - BASE + i * run[1]) // 8
                words = array("Q", data)[offset : offset + 5]
                shape = SHAPES.get(words[0] & 7, Shape(7))
                more = [words[place // 8] for place in shape.offsets]
                key = (words[0] & shape.mask | run[3], *more, *[0] * (3 - len(more)))
                assert keys[numbers[at]] == key
                expected[key] = expected.get(key, 0) + 1
                at += 1
        assert at == len(numbers)
    assert dict(zip(native.keys(), native.counts())) == dict(zip(pure.keys(), pure.counts())) == expected
    assert list(native.keys()) == list(pure.keys())
    assert native.left == pure.left == 0


def test_too_many_keys_are_left_out_and_counted() -> None:
    data = array("Q", (n for i in range(1000) for n in (1, i, 0, 0, 0))).tobytes()
    for records in make_records(most=300):
        numbers = records.read(graphs.piece(BASE, data), array("Q", [BASE, 40, 1000, 0]))
        assert list(numbers[:300]) == list(range(300))
        assert set(numbers[300:]) == {NONE}
        assert (len(records.keys()), sum(records.counts()), records.left) == (300, 300, 700)


@pytest.mark.parametrize(
    "run",
    [
        (BASE - 8, 40, 1, 0),
        (BASE, 40, 11, 0),
        (BASE + 8, 40, 10, 0),
        (BASE, 32, 1, 0),  # shorter than the shapes need
        (BASE, 44, 1, 0),
        (BASE + 4, 40, 1, 0),
        (BASE, 40, 1 << 62, 0),
        (BASE, 1 << 63, 2, 0),
        (BASE + 408, 40, 0, 0),
        (BASE, 0, 5, 0),
    ],
)
def test_records_outside_are_refused(run: tuple[int, ...]) -> None:
    for records in make_records():
        with pytest.raises(ValueError, match="records"):
            records.read(graphs.piece(BASE, bytes(400)), array("Q", [BASE, 40, 2, 0, *run]))
        assert records.keys() == []


def test_records_of_one_word() -> None:
    data = array("Q", range(100)).tobytes()
    for engine in (graphs.native(), graphs.pure()):
        records = engine.records({}, 7)
        assert list(records.read(graphs.piece(BASE, data), array("Q", [BASE, 8, 100, 0]))) == [*range(8)] * 12 + [*range(4)]
        assert records.counts() == [13] * 4 + [12] * 4


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="mask"):
        graphs.native().records({}, 5)
    with pytest.raises(ValueError, match="mask"):
        graphs.pure().records({}, 5)
