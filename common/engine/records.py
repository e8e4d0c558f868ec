"""Sort records of managed heaps by key, such as the flags and class of a slot, or the type of an
object.

The *tag* of a record is the low bits of its first word. It determines which words are in the *key*
of the record: the masked first word, and up to three more. Keys are numbered in the order of
discovery; each record gets its key's number."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from findleaks.target.base import Piece

COLUMNS = 3
RUN = 4  # words of a run: start, stride, count, mark (combined by OR with the first words of keys)
NONE = 0xFFFFFFFF  # stands for the number of a key: there are too many keys
MOST = 1 << 20  # maximum number of keys
Key = tuple[int, int, int, int]


class Shape(NamedTuple):
    """Shape of a key: the first word's mask, and offsets of up to three more words (multiples of a
    word, above 0)."""

    mask: int
    offsets: tuple[int, ...] = ()


class Records(Protocol):
    """A sorter of records, made by `Engine.records`."""

    @property
    def left(self) -> int:
        """Number of records that got no number because there were too many keys."""
        ...

    def read(self, piece: Piece, runs: array[int]) -> array[int]:
        """Return the numbers ("I") of the records of these runs ("Q"), in order.

        Raises ValueError, and counts nothing, unless all records are aligned, are in `piece`, and
        contain the words of their shapes."""
        ...

    def keys(self) -> list[Key]:
        """Return the keys by number. Words that a key does not have are 0."""
        ...

    def counts(self) -> list[int]:
        """Return the number of records of each key so far, by the key's number."""
        ...


def shape_words(shapes: Mapping[int, Shape], tag_mask: int) -> array[int]:
    """Return the shapes of all tags, for the C engine. If a tag is not listed in `shapes`, its key
    consists only of the tag."""
    if tag_mask & (tag_mask + 1) or tag_mask > 0xFFF:
        raise ValueError(f"not a mask of low bits: {tag_mask:#x}")
    words = array("Q")
    for tag in range(tag_mask + 1):
        mask, offsets = shapes.get(tag, Shape(tag_mask))
        words.extend((mask, *offsets, *(0 for _ in range(COLUMNS - len(offsets)))))
    return words
