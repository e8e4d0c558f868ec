"""Layouts of blocks, and samples of the pointers that are judged later, in pure Python."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from findleaks.engine.columns import Numbers
from findleaks.engine.numbered_words import hash_word
from findleaks.engine.type_spread import (
    DECISION,
    GROUP,
    INFERRED,
    LAYOUT_MASK,
    LEVEL_MASK,
    LEVEL_SHIFT,
    MOST_POINTERS,
    Level,
    Question,
)


class Check(NamedTuple):
    """A word that is not a pointer to a block. If `stride` is not 0, the word is the capacity of a
    buffer with elements of `stride` bytes; the pointer to it is `distance` bytes after the word."""

    role: int
    stride: int
    distance: int

    @classmethod
    def of(cls, word: int) -> Check:
        return cls(word & 0xFF, word >> 16, (word >> 8 & 0xFF) - 128)


class Elements(NamedTuple):
    """Equal elements of a layout. A slot is (offset, reference), a check is (offset, Check)."""

    start: int
    stride: int
    number: int
    slots: Sequence[tuple[int, int]]
    checks: Sequence[tuple[int, Check]]

    def bases(self, size: int) -> range:
        """Return the offsets of the elements in memory of `size` bytes."""
        room = (size - self.start) // self.stride if size > self.start else 0
        count = min(self.number, room) if self.number else room
        return range(self.start, self.start + count * self.stride, self.stride)


def parse_layout(groups: Sequence[int], slots: Sequence[int], checks: Sequence[int]) -> Optional[list[Elements]]:
    """Return the elements of a layout (TypeSpread.add_layout); None if it is impossible."""
    pairs, words = list(zip(slots[0::2], slots[1::2])), list(zip(checks[0::2], map(Check.of, checks[1::2])))
    rows = [groups[at : at + GROUP] for at in range(0, len(groups), GROUP)]
    if not all(row[1] and row[3] <= row[4] <= len(pairs) and row[5] <= row[6] <= len(words) for row in rows):
        return None
    return [Elements(row[0], row[1], row[2], pairs[row[3] : row[4]], words[row[5] : row[6]]) for row in rows]


class Sample:
    """A sample of `count` pointers; `rows` has owner, place and block of each sampled pointer. The
    sample has fewer than MOST_POINTERS pointers: those whose hash has no bit in common with a
    mask."""

    def __init__(self) -> None:
        self.rows, self.count, self._mask = array("Q"), 0, 0

    def add(self, owner: int, place: int, index: int) -> None:
        self.count += 1
        if self._is_dropped(place):
            return
        self.rows.extend((owner, place, index))
        if len(self.rows) >= 3 * MOST_POINTERS:
            self._mask = self._mask * 2 + 1
            kept = [self.rows[at : at + 3] for at in range(0, len(self.rows), 3) if not self._is_dropped(self.rows[at + 1])]
            self.rows = array("Q", [word for row in kept for word in row])

    def _is_dropped(self, place: int) -> bool:
        return bool(hash_word(place) >> 32 & self._mask)


class Roots(list[tuple[int, int, int]]):
    """Typed memory outside of blocks: address, size in bytes, and layout."""

    def __init__(self) -> None:
        super().__init__()
        self._ordered: list[tuple[int, int, int]] = []

    def at(self, address: int) -> tuple[int, int, int]:
        """Return the memory that contains an address; (0, 0, 0) if there is none."""
        if len(self._ordered) != len(self):
            self._ordered = sorted(self)
        row = bisect_right(self._ordered, (address + 1, 0, 0)) - 1
        found = self._ordered[row] if row >= 0 else (0, 0, 0)
        return found if address - found[0] < found[1] else (0, 0, 0)


def sample_layouts(claims: Numbers, most: int) -> array[int]:
    """Return about `most` blocks of each layout, at equal steps (TypeSpread.sample)."""
    layouts = [claim & LAYOUT_MASK for claim in claims]
    counts, seen, found = Counter(layouts), Counter[int](), array("I")
    for index, layout in enumerate(layouts):
        if layout and seen[layout] % (counts[layout] // most + 1) == 0:
            found.append(index)
        seen[layout] += 1
    return found


def find_confirming(claims: Numbers, rules: Mapping[tuple[int, int, int], int]) -> set[int]:
    """Return the references of pointers whose rules determine, with certainty, a layout that some
    blocks have only by inference. `rules`: the answers to questions."""
    inferred = {claim & LAYOUT_MASK for claim in claims if claim & INFERRED}
    found = [(first, rule) for (first, _, _), rule in rules.items() if first >> 32 == Question.RULE and not rule & DECISION]
    certain = [(first, rule) for first, rule in found if rule >> LEVEL_SHIFT & LEVEL_MASK < Level.BASE]
    return {first & 0xFFFFFFFF for first, rule in certain if rule & LAYOUT_MASK in inferred}
