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
"""Stands for all offsets in a block that are at least this large."""
REACH = 32
"""The largest distance in bytes between the halves of a pointer (HALVES)."""
SMALL = 1 << 16
"""A word whose lower half is smaller than this is not considered a plain pointer."""
MOST_SEGMENTS = 8


class Disguise(IntEnum):
    """How a word encodes the address p of a byte in a block. Also in common/native/disguises.h."""

    # p in the low 47 (or 48) bits of an aligned 8-byte word whose higher bits are not all 0.
    TAGGED = 0
    UNALIGNED = 1  # p, at an address that is not a multiple of a word
    SHIFTED_LEFT = 2  # p << shift, with any value in the low bits
    SHIFTED_RIGHT = 3  # p >> shift
    COMPRESSED = 4  # (p - base) >> shift, as an aligned number of 32 bits
    LINKED = 5  # p ^ q in a list's node between p and q; not for engines, see graph/xor_lists.py
    # Two aligned 32-bit numbers at most REACH bytes apart: the lower half of p, and the upper half,
    # which is `base` >> 32. They are not the two halves of one word.
    HALVES = 6
    SIX_BYTES = 7  # the low 48 bits of p >= 4 GiB, at any address; matches TAGGED, UNALIGNED too
    BYTE_SWAPPED = 8  # p >= 4 GiB in an aligned word, in the other byte order
    MANGLED = 9  # p ^ base in an aligned word, rotated left by `shift` bits
    RELATIVE = 10  # p - a in the aligned word at address a; a multiple of 8 that is not 0
    SAFE_LINKED = 11  # p ^ (a >> 12) in the aligned word at address a, as in glibc's free lists
    RELATIVE_32 = 12  # p - a in the aligned 32-bit number at a; a multiple of 4 that is not 0


NARROW = (Disguise.COMPRESSED, Disguise.HALVES, Disguise.RELATIVE_32)
"""Forms that are stored as 32-bit numbers."""
UNTAGGED = (Disguise.SIX_BYTES, Disguise.BYTE_SWAPPED, Disguise.MANGLED, Disguise.RELATIVE, Disguise.SAFE_LINKED)
"""Forms of pointers without tags in their low bits."""


class Form(NamedTuple):
    """A disguise with its parameters; `shift` in bits."""

    kind: Disguise
    base: int = 0
    shift: int = 0


class Keys(NamedTuple):
    """Result of a search: three unordered arrays ("Q") of form number << 48 | size number << 16 |
    offset.

    The first has one element for each address that words in this form decode to, even if many words
    decode to it. The second has each DEFINITE block to which words in this form point, once. The
    third is like the second, but counts only words in roots and in blocks that are not leaked. A
    word that points to an INDIRECT block counts for the leak head of the block's cycle. If the
    block is in no cycle, the word does not count."""

    hits: array[int]
    heads: array[int]
    live: array[int]


class Disguises(Protocol):
    """A search. Call `scan` first. Then call `tries`, or `keys` and `references`, before
    Graph.connect."""

    def scan(self, piece: Piece, step: int, roots: bool) -> None:
        """Search one of every `step` strips of a piece of root memory or of heaps.

        In heaps, only words in blocks in use count, and words that refer to their own block do not
        count."""
        ...

    def tries(self) -> list[tuple[int, int]]:
        """Return two numbers for each form: how many different addresses in blocks the search found
        with this form, and how many of them are in the first word of a block in use. Addresses with
        equal hashes of 16 bits count as one. Only for a search that records no words."""
        ...

    def keys(self, sizes: Sequence[int]) -> Keys:
        """Return the results for blocks of these usable sizes. `sizes` ascends."""
        ...

    def references(self, accepted: Sequence[tuple[int, int]]) -> array[int]:
        """Return three words ("Q") for each disguised pointer whose (form number, offset) is in
        `accepted`.

        The words are the address of the pointer; source << 32 | target, as block indices (source
        NO_BLOCK: the pointer is in root memory); and form number << 16 | offset. They are ordered
        by source and address. The results of the search are freed."""
        ...
