"""Samples of a process that is watched for a long time: their number is bounded, they are evenly spaced, and include
the first and the last."""

from __future__ import annotations

import pytest

from findleaks.history.figures import Figure
from findleaks.history.series import MOST, Thinned, only
from findleaks.history.snapshot import Clock, Identity, Snapshot


def make_snapshot(number: int) -> Snapshot:
    figures = [Figure("total", "resident", None, number), Figure("cache", "32", 1, 32)]
    return Snapshot(str(number), Clock(float(number)), Identity(), figures, {"find": {}})


@pytest.mark.parametrize("count", [1, 2, 3, MOST, MOST + 1, MOST + 2, 2 * MOST, 1000, 10_000])
def test_first_last_and_evenly_spread(count: int) -> None:
    kept = Thinned()
    for number in range(count):
        kept.add(make_snapshot(number))
        assert len(kept.snapshots) <= MOST
        assert kept.snapshots[-1].name == str(number)
    numbers = [int(one.name) for one in kept.snapshots]
    assert (numbers[0], numbers[-1], len(numbers)) == (0, count - 1, len(set(numbers)))
    steps = {after - before for before, after in zip(numbers[:-1], numbers[1:-1])}
    assert len(steps) <= 1, "all samples but the last have the same distance"
    assert count <= 2 or len(numbers) > min(count - 1, MOST // 2 - 1)


def test_only_compared_data_are_kept() -> None:
    one = only(make_snapshot(7), {"total"})
    assert ([figure.section for figure in one.figures], one.answers, one.name) == (["total"], {}, "7")
