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
from typing import NamedTuple, Optional, Protocol

from findleaks.target.base import Piece, Range

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
GROUP = 7  # Words of a group of equal elements in a layout.
MOST_WORDS = 1 << 10  # Words of one block that `match` compares, about.
SMALL_NUMBER = 1 << 20  # Numbers below this are small.
LEAST_TEXT = 3  # Characters of a word that is text.


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
    """Whether a layout has, at an offset, what pointers with a reference refer to: 0 no, 1
    possibly, 2 yes."""
    POSSIBLE = 2
    """The list of layouts (`add_choices`) that an untyped block may have: as RULE."""


class Role(IntEnum):
    """What a word of a layout contains."""

    REFERENCE = 0  # A pointer to a block, or null.
    CODE = 1  # A pointer to a function.
    DATA = 2  # A pointer to characters, numbers or an incomplete type.
    PLAIN = 3  # Numbers.


class Flag(IntEnum):
    """Bits that describe a reference, for `match`."""

    ANYTHING = 1  # It says nothing about its target.
    OPTIONAL = 2  # The word may be something else.
    NUMBER = 4  # The word may be a number that looks like a pointer.


class WordClass(IntEnum):
    """The low four bits of a class of words. The bits above are the size of the block for
    BLOCK_START, and the offset in it for BLOCK_MIDDLE."""

    ZERO = 0
    SMALL = 1
    NUMBER = 2
    TEXT = 3
    CODE = 4
    STATIC = 5
    BLOCK_START = 6
    BLOCK_MIDDLE = 7
    MISSING = 8


class Pointers(NamedTuple):
    """Deferred pointers of one rule. `total`: all of them. Of the first MOST_POINTERS, the owner
    (see ROOT), the address of the pointer, and the block that it refers to ("Q")."""

    reference: int
    offset: int
    size: int
    total: int
    rows: array[int]


class TypeSpread(Protocol):
    """The spread of types in one graph's blocks."""

    def use(self, pieces: Sequence[Piece]) -> None:
        """Set the memory to read (ascending)."""

    def set_memory(self, mapped: Sequence[Range], code: Sequence[Range]) -> None:
        """Set all readable, and all executable memory, for `match` and `classes` (sorted,
        disjoint)."""

    def add_layout(self, groups: Sequence[int], slots: Sequence[int], checks: Sequence[int] = ()) -> int:
        """Add a layout; return its number, from 1 on. GROUP words a group: start, stride, count,
        first and last slot, first and last check. `count` elements of `stride` bytes begin at
        `start`; 0: up to the memory's end. Two words a slot (offset in the element, reference),
        and a check (offset, Role)."""

    def add_choices(self, layouts: Sequence[int]) -> int:
        """Add a list of layouts; return its number, from 1 on. List 0 is empty."""

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
        size), (Question.AGREES << 32 | reference, offset, layout), or as RULE with POSSIBLE."""

    def answer(self, questions: array[int], answers: array[int]) -> None:
        """Answer questions ("I"): a rule as layout | level << LEVEL_SHIFT, NO_CLAIM or DEFERRED;
        or what Question says. Answers may replace earlier ones. Visits that waited for them are
        queued."""

    def deferred(self) -> list[Pointers]:
        """Return and forget the deferred pointers to untyped blocks, in the order of discovery."""

    def revisit(self, references: Sequence[int]) -> None:
        """Queue all typed memory that may have pointers with these references; all of it if there
        are none."""

    def match(self, layout: int, indices: array[int], flags: bytearray) -> Optional[array[int]]:
        """Compare blocks (indices, "I") with a layout. `flags`: of each reference. Return three
        numbers
        for each ("I"): words that contradict the layout, pointers to blocks of the expected type,
        and to other possible targets. None if there are questions to answer first."""

    def classes(self, indices: array[int], words: int) -> array[int]:
        """Return the classes (WordClass) of the first `words` words of each block ("Q")."""

    def disputes(self) -> list[int]:
        """Return and forget the blocks with contradicting certain claims, ascending."""

    def retract(self) -> int:
        """Remove all claims that come from disputed blocks. Return their number."""

    def claims(self) -> array[int]:
        """Return the claim of each block ("I"; do not change it): layout | level << LEVEL_SHIFT,
        and INFERRED; DISPUTED; 0 if it has none."""

    def origins(self) -> array[int]:
        """Return the origin of each block's claim ("I"): an index, ROOT + number, or NO_ORIGIN."""
