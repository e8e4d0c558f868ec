"""Merge the words that several runtimes in one process exclude from references."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from findleaks.runtimes.base import Exclusions

MOST_EXCLUSIONS = 255


def merge_exclusions(several: Iterable[Exclusions]) -> Optional[Exclusions]:
    """Merge the exclusions of several runtimes in one process; None if there are none. If several
    runtimes have a pattern for a block, the first one is kept. Patterns above MOST_EXCLUSIONS
    exclude no words."""
    merged: Optional[Exclusions] = None
    for one in several:
        if merged is None:
            merged = one
            continue
        exclusions, table = list(merged.exclusions), bytearray(256)
        for number, exclusion in enumerate(one.exclusions):
            if exclusion not in exclusions and len(exclusions) < MOST_EXCLUSIONS:
                exclusions.append(exclusion)
            table[number] = exclusions.index(exclusion) if exclusion in exclusions else 0
        free = int.from_bytes(merged.patterns.translate(b"\xff" + bytes(255)), "little")
        added = int.from_bytes(one.patterns.translate(table), "little") & free
        patterns = (int.from_bytes(merged.patterns, "little") | added).to_bytes(len(merged.patterns), "little")
        merged = Exclusions(bytearray(patterns), exclusions)
    return merged
