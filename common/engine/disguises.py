"""Disguised pointers to leaked blocks: the forms that are searched for, and the search.

A pointer is disguised if a scan for aligned words that equal addresses does not find it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

from findleaks.target.base import Piece
from findleaks.value_classes import NamedTuple

STRIP = 128
"""Bytes that are searched or skipped together."""
BEYOND = 16
"""Bytes after a strip that belong to words beginning in it."""
ANY_OFFSET = 0xFFFF
"""Stands for all offsets in a block from this value on."""
MOST_FORMS = 64
MOST_SEGMENTS = 8


class Disguise(IntEnum):
    """How a word encodes the address p of a byte in a block. Also in common/native/disguises.h."""

    # P in the low 47 (or 48) bits of an aligned word of 8 bytes, with other bits set above.
    TAGGED = 0
    UNALIGNED = 1  # p, at an address that is not a multiple of a word
    SHIFTED_LEFT = 2  # p << shift, with any value in the low bits
    SHIFTED_RIGHT = 3  # p >> shift
    COMPRESSED = 4  # (p - base) >> shift, as an aligned number of 32 bits
    LINKED = 5  # p ^ q in a list's node between p and q; not for engines, see graph/xor_lists.py


class Form(NamedTuple):
    """A disguise with its parameters; `shift` in bits."""

    kind: Disguise
    base: int = 0
    shift: int = 0


class Keys(NamedTuple):
    """Result of a search, as unordered arrays ("Q") of form's number << 48 | size's number << 16 |
    offset.

    The first has each word found. The second has each DEFINITE block that a form leads to, once.
    The third has each such block to which a form leads from a root or from a block that is not
    leaked. Words that lead to an INDIRECT block count for the leak head of its cycle, or for
    none."""

    hits: array[int]
    heads: array[int]
    live: array[int]


class Disguises(Protocol):
    """A search. Order of calls: `scan`; then `tries`, or `keys` and `references`, before
    Graph.connect."""

    def scan(self, piece: Piece, step: int, roots: bool) -> None:
        """Search a piece of root memory or of heaps; one strip in `step` is searched.

        In heaps, only words in blocks in use count, and no word that leads to its own block."""
        ...

    def tries(self) -> list[tuple[int, int]]:
        """Return, for a search that records no words, by form: the number of words that lead into
        blocks, and of those that lead to the first word of a block in use."""
        ...

    def keys(self, sizes: Sequence[int]) -> Keys:
        """Return the results for blocks of these usable sizes, which ascend."""
        ...

    def references(self, accepted: Sequence[tuple[int, int]]) -> array[int]:
        """Return three words ("Q") for each disguised pointer whose form's number and offset are
        among these.

        The words are its address; source << 32 | target, block indices (source NO_BLOCK: in root
        memory); the form's number. Ordered by source and address. The results are freed."""
        ...
