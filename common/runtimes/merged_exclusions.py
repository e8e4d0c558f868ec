"""Merge words that are excluded from references: those of several runtimes in one process, and
those for which a runtime has several reasons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Optional

from findleaks.engine.terms import Exclusion
from findleaks.runtimes.base import Exclusions
from findleaks.runtimes.exclusion_table import MOST_EXCLUSIONS, ExclusionTable


def merge_exclusions(several: Iterable[Exclusions]) -> Optional[Exclusions]:
    """Merge the exclusions of several runtimes in one process; None if there are none. If several
    runtimes have a pattern for a block, the first one is kept. Patterns above MOST_EXCLUSIONS
    exclude no words."""
    merged: Optional[Exclusions] = None
    for one in several:
        if merged is None:
            merged = one
            continue
        known, table = ExclusionTable(merged.exclusions), bytearray(256)
        for number, exclusion in enumerate(one.exclusions):
            table[number] = known.add(exclusion) or 0
        free = int.from_bytes(merged.patterns.translate(b"\xff" + bytes(255)), "little")
        added = int.from_bytes(one.patterns.translate(table), "little") & free
        patterns = (int.from_bytes(merged.patterns, "little") | added).to_bytes(len(merged.patterns), "little")
        merged = Exclusions(bytearray(patterns), known.exclusions)
    return merged


def add_masks(patterns: bytearray, exclusions: Sequence[Exclusion], masks: Iterable[tuple[int, int]]) -> Exclusions:
    """Return these exclusions with masks of further words added to them. `masks`: (index of a
    block, mask of its words). If more than MOST_EXCLUSIONS patterns would be needed, the words of
    the last blocks remain references."""
    made, added, numbers = list(exclusions), bytearray(patterns), dict[tuple[int, int], int]()
    for index, mask in masks:
        key = added[index], mask
        if key not in numbers and len(made) < MOST_EXCLUSIONS:
            numbers[key] = len(made)
            made.append(Exclusion(exclusions[key[0]].words | mask))
        added[index] = numbers.get(key, key[0])
    return Exclusions(added, made)
