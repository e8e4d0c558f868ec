"""Sorting records of managed heaps by key: a slot's flags and class, an object's type.

The low bits of a *record*'s first word, its *tag*, determine which other words its key has. Its
*key* is the first word, masked, and up to three more words. Keys are numbered in order of
discovery; each record gets its key's number."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from findleaks.target.base import Piece

COLUMNS = 3
RUN = 4
"""Words of a run of records: start, stride, count, mark. The mark is or-ed into the first words of
its records' keys."""

NONE = 0xFFFFFFFF
"""In place of a number: too many keys, and this record's is not among them."""

MOST = 1 << 20
"""Keys that are distinguished."""

Key = tuple[int, int, int, int]


class Shape(NamedTuple):
    """The key of a record: the mask of its first word, and the offsets of up to three more words
    (multiples of a word, above 0)."""

    mask: int
    offsets: tuple[int, ...] = ()


class Records(Protocol):
    """Made by `Engine.records`."""

    @property
    def left(self) -> int:
        """Records without a number, for there were too many keys."""
        ...

    def read(self, piece: Piece, runs: array[int]) -> array[int]:
        """The numbers ("I") of the records of these runs (`RUN` words each, "Q"), in order.
        ValueError, and nothing counted, unless every record lies in `piece`, is aligned, and
        contains the words of the shapes."""
        ...

    def keys(self) -> list[Key]:
        """The keys, by number; words that a key lacks are 0."""
        ...

    def counts(self) -> list[int]:
        """The number of records of each key so far, by number."""
        ...


def shape_words(shapes: Mapping[int, Shape], tag_mask: int) -> array[int]:
    """The shapes of all tags for the kernel; a tag that is not listed has only itself in its
    key."""
    if tag_mask & (tag_mask + 1) or tag_mask > 0xFFF:
        raise ValueError(f"not a mask of low bits: {tag_mask:#x}")
    words = array("Q")
    for tag in range(tag_mask + 1):
        mask, offsets = shapes.get(tag, Shape(tag_mask))
        words.extend((mask, *offsets, *(0 for _ in range(COLUMNS - len(offsets)))))
    return words
