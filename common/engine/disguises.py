"""Pointers to lost blocks in disguise: the forms that are searched for, and the search.

A pointer is disguised if a scan for aligned words that equal addresses does not see it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

from findleaks.target.base import Piece
from findleaks.value_classes import NamedTuple

STRIP = 128
"""Bytes that are searched, or left out, together."""
BEYOND = 16
"""Bytes behind a strip that belong to words that begin in it."""
ANY_OFFSET = 0xFFFF
"""In place of an offset in a block that is this or more."""
MOST_FORMS = 64
MOST_SEGMENTS = 8


class Disguise(IntEnum):
    """How a word hides the address p of a byte in a block. Also in common/native/disguises.h."""

    TAGGED = 0  # p in the low 47 (or 48) bits of an aligned word of 8 bytes, others set in the rest
    UNALIGNED = 1  # p, at an address that is no multiple of a word
    SHIFTED_LEFT = 2  # p << shift, with any bits below
    SHIFTED_RIGHT = 3  # p >> shift
    COMPRESSED = 4  # (p - base) >> shift, as an aligned number of 32 bits
    LINKED = 5  # p ^ q in a list's node between p and q; not for engines, see graph/xor_lists.py


class Form(NamedTuple):
    """A disguise with its parameters; `shift` in bits."""

    kind: Disguise
    base: int = 0
    shift: int = 0


class Keys(NamedTuple):
    """What a search found, as arrays ("Q") of form's number << 48 | size's number << 16 | offset,
    unordered: of each word; of each DEFINITE block that a form leads to, once; and of each to which
    it leads from a root or from a block that is not lost. Words that lead to an INDIRECT block
    count for the leader of its cycle, or for none."""

    hits: array[int]
    heads: array[int]
    live: array[int]


class Disguises(Protocol):
    """A search. Order: `scan`; then `tries`, or `keys` and `references`, before Graph.connect."""

    def scan(self, piece: Piece, step: int, roots: bool) -> None:
        """Search a piece (of which one strip in `step` is looked at) of root memory or of heaps,
        where only words in blocks in use count, and none that leads to its own block."""
        ...

    def tries(self) -> list[tuple[int, int]]:
        """If the search was made to record no words: of each form, how many words lead into blocks,
        and how many to the first word of a block in use."""
        ...

    def keys(self, sizes: Sequence[int]) -> Keys:
        """What was found for blocks of these usable sizes, which ascend."""
        ...

    def references(self, accepted: Sequence[tuple[int, int]]) -> array[int]:
        """Three words ("Q") for each disguised pointer whose form's number and offset are among
        these: its address; source << 32 | target, block indices (source NO_BLOCK: in root memory);
        the form's number. By source and address; what was found is dropped."""
        ...
