"""Sorts records of managed heaps by key: a slot's flags and class, an object's type.

The low bits of a *record*'s first word, its *tag*, say which words are in its *key*: the first,
masked, and up to three more. Keys are numbered as discovered; records get their keys' numbers."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from findleaks.target.base import Piece

COLUMNS = 3
RUN = 4  # words of a run: start, stride, count, mark (or-ed into the first words of keys)
NONE = 0xFFFFFFFF  # in place of a number: there were too many keys
MOST = 1 << 20  # keys that are distinguished
Key = tuple[int, int, int, int]


class Shape(NamedTuple):
    """A key: the first word's mask, and offsets of up to three more words (multiples, above 0)."""

    mask: int
    offsets: tuple[int, ...] = ()


class Records(Protocol):
    """Made by `Engine.records`."""

    @property
    def left(self) -> int:
        """Records without a number, as there were too many keys."""
        ...

    def read(self, piece: Piece, runs: array[int]) -> array[int]:
        """The numbers ("I") of the records of these runs ("Q"), in order. ValueError, and nothing
        counted, unless all lie in `piece`, aligned, and contain the words of the shapes."""
        ...

    def keys(self) -> list[Key]:
        """By number; words that a key lacks are 0."""
        ...

    def counts(self) -> list[int]:
        """Records of each key so far, by number."""
        ...


def shape_words(shapes: Mapping[int, Shape], tag_mask: int) -> array[int]:
    """All tags' shapes for the C engine; only the tag is in the key of a tag not listed."""
    if tag_mask & (tag_mask + 1) or tag_mask > 0xFFF:
        raise ValueError(f"not a mask of low bits: {tag_mask:#x}")
    words = array("Q")
    for tag in range(tag_mask + 1):
        mask, offsets = shapes.get(tag, Shape(tag_mask))
        words.extend((mask, *offsets, *(0 for _ in range(COLUMNS - len(offsets)))))
    return words
