"""Tests of the samples of pointers that are judged together."""

from __future__ import annotations

from array import array

from findleaks.engine.type_spread import MOST_POINTERS, Pointers
from findleaks.types.sampling import merge_pointers


def pointers(places: range, total: int) -> Pointers:
    """Return pointers to untyped blocks. The owner of each is 7, and the block is place + 1."""
    return Pointers(3, 0, 24, total, array("Q", [word for place in places for word in (7, place, place + 1)]), array("Q"))


def test_later_pointers_are_added_to_earlier_ones() -> None:
    """Pointers that were followed twice are listed once."""
    merged = merge_pointers(pointers(range(0, 24, 8), 3), pointers(range(16, 48, 8), 4))
    assert merged == pointers(range(0, 48, 8), 6)


def test_a_merged_sample_is_bounded() -> None:
    """The sample of many pointers does not depend on their order, and contains pointers of both lists."""
    first, second = pointers(range(0, 8 * MOST_POINTERS, 8), 9000), pointers(range(1 << 20, (1 << 20) + 8 * MOST_POINTERS, 8), 1000)
    merged, reverse = merge_pointers(first, second), merge_pointers(second, first)
    assert len(merged.untyped) == 3 * MOST_POINTERS
    assert sorted(merged.untyped[1::3]) == sorted(reverse.untyped[1::3])
    assert merged.total == 9000
    assert 0.3 < sum(place < 1 << 20 for place in merged.untyped[1::3]) / MOST_POINTERS < 0.7
