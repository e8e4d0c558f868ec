"""Exclusions of several runtimes in one process."""

from __future__ import annotations

from findleaks.engine.terms import Exclusion
from findleaks.runtimes.base import Exclusions
from findleaks.runtimes.merged_exclusions import MOST_EXCLUSIONS, merge_exclusions


def list_words(excluded: Exclusions) -> list[int]:
    return [excluded.exclusions[pattern].words for pattern in excluded.patterns]


def test_no_runtime_or_one() -> None:
    one = Exclusions(bytearray(b"\0\1"), (Exclusion(0), Exclusion(8)))
    assert merge_exclusions(()) is None and merge_exclusions([one]) is one


def test_two_runtimes() -> None:
    """If both runtimes have a pattern for a block, the pattern of the first runtime is used."""
    first = Exclusions(bytearray(b"\0\1\0\2"), (Exclusion(0), Exclusion(8), Exclusion(4)))
    second = Exclusions(bytearray(b"\1\1\2\0"), (Exclusion(0), Exclusion(2), Exclusion(4)))
    merged = merge_exclusions(iter((first, second)))
    assert merged is not None and list_words(merged) == [2, 8, 4, 4] and len(merged.exclusions) == 4


def test_too_many_patterns() -> None:
    """Above the limit, patterns exclude no words."""
    first = Exclusions(bytearray(2), [Exclusion(number) for number in range(MOST_EXCLUSIONS)])
    merged = merge_exclusions([first, Exclusions(bytearray(b"\1\2"), (Exclusion(0), Exclusion(1 << 40), Exclusion(7)))])
    assert merged is not None and list_words(merged) == [0, 7] and len(merged.exclusions) == MOST_EXCLUSIONS
