"""The spread of types over blocks: from typed memory along typed pointers to the blocks that they
refer to (common/native/type_spread.c).

A *layout* describes typed memory: which of its words are pointers, and to what. A pointer has a
*reference*, a number that the caller gives a meaning, such as "struct client *". What such a
pointer says about a block depends on the offset at which it points into the block, and on the
block's size. The engine does not know; it asks for a *rule*, once for each combination. The caller
answers with a layout for the block, with NO_CLAIM, or with DEFERRED if the pointers have to be
judged together. Deferred pointers are returned as a list.

A block's *claim* is its layout, the Level of the rule, and whether it is inferred: a claim is
inferred if its level is, or if the claim of the block that it comes from is."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from findleaks.target.base import Piece

LAYOUT_BITS = 24
LAYOUT_MASK = (1 << LAYOUT_BITS) - 1
MOST_LAYOUTS = LAYOUT_MASK
LEVEL_SHIFT, LEVEL_MASK = LAYOUT_BITS, 15
INFERRED = 1 << 28
DISPUTED = 1 << 29  # Two certain claims contradict each other: the block has no type.
NO_CLAIM, DEFERRED, UNKNOWN = 0, 0xFFFFFFFF, 0xFFFFFFFE
"""Answers to a question for a rule, in place of a layout and a level. UNKNOWN: not asked yet."""

ROOT = 1 << 31  # The origin of a claim: ROOT + number of root memory, else the index of a block.
NO_ORIGIN = 0xFFFFFFFF
FARTHEST = 1 << 16  # Pointers further into a block than this make no claim.
MOST_RULES = 1 << 20  # More combinations than this make no claim.
MOST_POINTERS = 1 << 12  # Deferred pointers of one rule that are listed; all are counted.
QUESTION = 3  # Words of a question.
GROUP = 5  # Words of a group of equal elements in a layout.


class Level(IntEnum):
    """How a block's type is known, the strongest first. From BASE on, the type is inferred."""

    NONE = 0
    SEED = 1  # Identified by the block itself: its vtable, or the user's hint.
    EXACT = 2  # A typed pointer refers to its start, and only this type fits.
    CONTAINER = 3  # A typed pointer refers to a member, and only this type has it there.
    ARRAY = 4  # A typed pointer refers to the first of several elements, all of which fit.
    BASE = 5  # A typed pointer refers to its start; the type may be only the first part.
    UNION = 6  # The only member of a union that fits.
    LEARNED = 7  # Pointers without a type, judged together.
    SHAPE = 8  # Only this type has pointers to such blocks at these places.
    FINGERPRINT = 9  # It resembles blocks of this type, and of no other type.

    @property
    def is_certain(self) -> bool:
        return self < Level.BASE


class Question(IntEnum):
    """What the engine asks."""

    RULE = 0
    """The claim of pointers with a reference, which refer to an offset in blocks of a size."""
    AGREES = 1
    """Whether a layout has, at an offset, what pointers with a reference refer to."""


class Group_(NamedTuple):
    """Equal elements of a layout: `count` elements of `stride` bytes from `start` on; count 0: as
    many as the memory has. Their pointers are slots[first:last]."""

    start: int
    stride: int
    count: int
    first: int
    last: int


class Pointers(NamedTuple):
    """Deferred pointers of one rule. `count`: all of them. Of the first MOST_POINTERS, the owner
    (see ROOT), the address of the pointer, and the block that it refers to ("Q")."""

    reference: int
    offset: int
    size: int
    count: int
    rows: array[int]


class TypeSpread(Protocol):
    """The spread of types in one graph's blocks."""

    def use(self, pieces: Sequence[Piece]) -> None:
        """Set the memory to read (ascending)."""

    def add_layout(self, groups: Sequence[int], slots: Sequence[int]) -> int:
        """Add a layout: GROUP words a group (start, stride, count, first and last slot), two words
        a slot (offset in the element, reference). Return its number, from 1 on."""

    def add_root(self, address: int, size: int, layout: int) -> int:
        """Add typed memory outside of blocks. Return its number, from 0 on."""

    def seed(self, index: int, layout: int, level: Level, inferred: bool, origin: int = NO_ORIGIN) -> bool:
        """Claim an untyped block in use. Return False if it has a type."""

    def seed_words(self, words: array[int], layouts: array[int], least: array[int]) -> None:
        """Claim all untyped blocks in use by their first words ("Q", ascending): layouts[i] for
        blocks of least[i] bytes or more whose first word is words[i]."""

    def run(self, budget: int) -> bool:
        """Visit about `budget` elements. Return True when no visit is left."""

    def questions(self) -> array[int]:
        """Return new questions, QUESTION words each: (Question.RULE << 32 | reference, offset,
        size), or (Question.AGREES << 32 | reference, offset, layout)."""

    def answer(self, questions: array[int], answers: array[int]) -> None:
        """Answer questions ("I"): a rule as layout | level << LEVEL_SHIFT, NO_CLAIM or DEFERRED;
        1 or 0. Answers may replace earlier ones. Visits that waited for them are queued."""

    def deferred(self) -> list[Pointers]:
        """Return and forget the deferred pointers to untyped blocks, in the order of discovery."""

    def revisit(self, references: Sequence[int]) -> None:
        """Queue all typed memory that may have pointers with these references; all of it if there
        are none."""

    def disputes(self) -> list[int]:
        """Return and forget the blocks with contradicting certain claims, ascending."""

    def retract(self) -> int:
        """Remove all claims that come from disputed blocks. Return their number."""

    def claims(self) -> array[int]:
        """Return the claim of each block ("I"; do not change it): layout | level << LEVEL_SHIFT, and
        INFERRED; DISPUTED; 0 if it has none."""

    def origins(self) -> array[int]:
        """Return the origin of each block's claim ("I"): an index, ROOT + number, or NO_ORIGIN."""
