"""The spread of types over blocks: from typed memory along typed pointers to the blocks that they
refer to (common/native/type_spread.c).

A *layout* describes typed memory: which of its words are pointers, and to what. A pointer has a
*reference*: a number whose meaning only the caller knows, such as "struct client *". What a pointer
says about a block depends on the offset at which it points into the block, and on the block's size.
The engine does not know the types, so it asks the caller for a *rule*, once for each combination.
The caller answers with a layout for the block, with NO_CLAIM, or with DEFERRED if the pointers have
to be judged together. Deferred pointers are returned as a list. A rule may also be a *decision*: it
has several *options*, which are possible claims. For each block, the engine chooses one of them by
the block's content, or by a *feature* of the pointer, such as a word near it.

If a reference has one of the flags LENGTH, RING, TABLE and END, a block that gets a claim by such a
pointer contains elements that are not in use. Pointers in these elements are not followed.

A block's *claim* is its layout, the Level of the rule, and whether it is inferred. A claim is
inferred if its level is an inferred one, or if the owner of the pointer has an inferred claim. The
*origin* of a claim is the owner of the pointer."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Optional, Protocol, Union

from findleaks.engine.columns import Numbers
from findleaks.target.base import Piece, Range

LAYOUT_BITS = 24
LAYOUT_MASK = (1 << LAYOUT_BITS) - 1
MOST_LAYOUTS = LAYOUT_MASK
LEVEL_SHIFT, LEVEL_MASK = LAYOUT_BITS, 15
INFERRED = 1 << 28
DECISION = 1 << 30  # Set in the answer to a rule if its low bits are the number of a decision.
DISPUTED = 1 << 29  # The whole claim of a block for which two certain claims contradict each other.
NO_CLAIM, DEFERRED, UNKNOWN = 0, 0xFFFFFFFF, 0xFFFFFFFE
"""Answers to a question for a rule, in place of a layout and a level. UNKNOWN: there is no answer
yet."""

ROOT = 1 << 31  # The origin of a claim: ROOT + number of root memory, else the index of a block.
NO_ORIGIN = 0xFFFFFFFF
FARTHEST = 1 << 16  # Pointers to an offset of this many bytes or more in a block make no claim.
FARTHEST_TABLE = 1 << 28  # Replaces FARTHEST for references with Flag.TABLE.
MOST_RULES = 1 << 20  # Maximum number of combinations. Further ones make no claim.
MOST_POINTERS = 1 << 9  # Fewer deferred pointers than this are listed for each rule.
MOST_SEPARATED = 256  # Maximum number of pointers that `separate` compares.
MOST_OPTIONS = 128  # Maximum number of options of a decision, and of `choose`.
LEAST_STRONG = 2  # Fewest pointers to blocks of the expected types for Choosing.BY_SHAPE.
POOL_POINTER = 4  # Number of words of a pointer to a block of a pool.
QUESTION = 3  # Number of words of a question.
OPTION = 3  # Number of words of an option.
LEAST_VOID = 8  # Fewest void pointers that an inferred array needs after its first element.
NOT_ARRAY = 0xFFFFFFFF  # The second word of an option that is not an array.
UNSPLIT = 1 << 62  # Added to the size of an option if blocks seldom have a size for this type.
EXCLUDING = (1 << 64) - 1  # The third word of an option that excludes another layout.
NO_FEATURE = 0xFFFFFFFF  # The number that stands for no feature.
NO_VALUE = (1 << 64) - 1  # The value of a feature for a pointer that does not have it.
GROUP = 7  # Number of words of a group of equal elements in a layout.
MOST_WORDS = 1 << 10  # Approximate maximum number of words of one block that are compared.
SMALL_NUMBER = 1 << 20  # Numbers below this are small.
LEAST_TEXT = 3  # Minimum number of characters of a word that is text.
USUAL_FLOATS = range(0x3E, 0x42)  # High bytes of floating-point numbers from 1e-9 to 1e10.
LEAST_LONG = 5  # The same for words that should be numbers: four characters may be a number.


class Level(IntEnum):
    """How a block's type is known, the strongest first. From BASE on, the type is inferred."""

    NONE = 0
    SEED = 1  # Identified by the block itself: its vtable.
    HINT = 2  # The user says so.
    EXACT = 3  # A typed pointer refers to its start, and only this type fits.
    CONTAINER = 4  # A typed pointer refers to a member, and only this type has it at this offset.
    ARRAY = 5  # A typed pointer refers to the first of several elements, all of which fit.
    BASE = 6  # A typed pointer refers to its start; the type may be only the first part.
    UNION = 7  # The only member of a union that fits.
    LEARNED = 8  # Untyped pointers refer to the block; they are judged together.
    SHAPE = 9  # Only this type has pointers to such blocks at these places.
    FINGERPRINT = 10  # The block resembles blocks of this type, and of no other type.

    @property
    def is_certain(self) -> bool:
        return self < Level.BASE


class Question(IntEnum):
    """What the engine asks. Each question has a reference, an offset, and a size or a layout."""

    RULE = 0
    """Which claim does a block of this size get from pointers with this reference to this
    offset?"""
    AGREES = 1
    """Does this layout have, at this offset, the type that pointers with this reference refer to?
    The answer is 0 (no), 1 (possibly) or 2 (yes)."""
    POSSIBLE = 2
    """Which layouts may an untyped block of this size have, if pointers with this reference refer
    to this offset? The answer is the number of a list (`add_choices`)."""
    UNREQUESTED = 3
    """How much larger may a block of this size be than the request for it? The answer is a number
    of bytes. Reference and offset are 0."""
    RIVALS = 4
    """Which layouts may a block of this size have, if no pointer to it is known? The answer is the
    number of a list (`add_choices`). Reference and offset are 0."""


class Role(IntEnum):
    """What a word of a layout contains."""

    REFERENCE = 0  # A pointer to a block, or null.
    CODE = 1  # A pointer to a function.
    DATA = 2  # A pointer to characters, numbers or an incomplete type.
    PLAIN = 3  # Numbers.
    CHARACTERS = 4  # The first word of a flexible array of bytes.
    FLOAT = 5  # A floating-point number. The bytes of 21.333 look like text: UUUUUU5@.


def describe_capacity(stride: int, distance: int) -> int:
    """Return the bits that are added to Role.PLAIN for the capacity of a buffer with elements of
    `stride` bytes. The pointer to the buffer is `distance` bytes after the capacity. Return 0 if
    one of the numbers is too large."""
    return stride << 16 | distance + 128 << 8 if stride < 1 << 32 and abs(distance) < 128 and stride else 0


class Flag(IntEnum):
    """Bits that describe a reference. Comparisons use them."""

    ANYTHING = 1  # The reference says nothing about its target.
    OPTIONAL = 2  # The word may be something else.
    NUMBER = 4  # The word may be a number that looks like a pointer.
    # The pointer refers to the first of several elements, and LENGTH * n means that the n-th word
    # after the pointer is the number of elements in use (n is 1, 2 or 3).
    LENGTH = 8
    RING = 32  # The word before the length is the number of the first element.
    # The pointer refers to the end of the elements. One byte for each element follows; if its high
    # bit is set, the element is not in use. The bytes are in the opposite order.
    TABLE = 64
    END = 128  # As LENGTH, but the next word is the address of the end of the elements.


LENGTHS = Flag.LENGTH * 3  # The bits of LENGTH.


class WordClass(IntEnum):
    """What a word contains: the low four bits of the number that classifies a word. The bits above
    are the size of the block for BLOCK_START, the offset in the block for BLOCK_MIDDLE, and the
    address for CODE and STATIC."""

    ZERO = 0
    SMALL = 1
    NUMBER = 2
    TEXT = 3
    CODE = 4
    STATIC = 5
    BLOCK_START = 6
    BLOCK_MIDDLE = 7
    MISSING = 8


class Feature(IntEnum):
    """The sorts of features of pointers. The number of a feature is sort << 8 | (offset + 128). The
    offset is relative to the address of the pointer. For TARGET_WORD, TARGET_BYTES and TARGET_BYTE,
    it is relative to the start of the block that the pointer refers to."""

    STATIC_WORD = 0
    """A word that refers to memory outside of blocks, such as a table of functions."""
    FOUR_BYTES = 1
    """A number of four bytes, such as the tag of a union."""
    ONE_BYTE = 2
    """A number of one byte."""
    BEGINNING = 3
    """The first origin whose layout differs from that of the pointer's owner. If the owner is a
    node of a list, this is the head of the list."""
    TARGET_WORD = 4
    """A word near the start of the block that the pointer refers to. As with STATIC_WORD, it refers
    to memory outside of blocks."""
    TARGET_BYTES = 5
    """A number of four bytes near the start of the block that the pointer refers to."""
    OWNER_WORD = 6
    """A word of the nearest owner with some layout: the pointer's own owner, or the origin of its
    claim, and so on. `add_owner_word` adds such features, whose low bits are a number.
    `separate` does not try them."""
    TWO_BYTES = 7
    """A number of two bytes, for conditions of hints. `separate` does not try them."""
    TARGET_BYTE = 8
    """A number of one byte in the first word of the block that the pointer refers to, such as the
    kind of an object before its flags."""
    EIGHT_BYTES = 9
    """A number of eight bytes, for discriminants of enums. `separate` does not try them."""


class Choosing(IntEnum):
    """How `choose` selects one of several options."""

    BY_CONTENT = 0
    """Select the option for which the most pointers of the block refer to targets of the expected
    kind. If there are several options, at least one such pointer is needed. A single option needs
    less: at level LEARNED, an address in place of such a pointer; at UNION, a block that does not
    begin with text; at other levels, nothing. If several options are equal, select BY_END if their
    level is BASE; otherwise select none."""
    BY_SHAPE = 1
    """Select the option for which the most pointers of the block refer to blocks of the expected
    types. At least LEAST_STRONG such pointers are needed. If several options are equal, select
    none."""
    BY_END = 2
    """Select the smallest option after which there are only zeros up to the end of the largest
    option. If several such options have the same size, select none. Options with UNSPLIT are
    considered only if there are no others."""


class Pointers(NamedTuple):
    """Deferred pointers of one rule. `total` is the number of pointers to untyped blocks. `untyped`
    and `typed` are samples of the pointers to untyped and to typed blocks, with three words ("Q")
    for each pointer: its owner (see ROOT), its address, and the index of the block that it refers
    to."""

    reference: int
    offset: int
    size: int
    total: int
    untyped: array[int]
    typed: array[int]


class TypeSpread(Protocol):
    """Spreads types over the blocks of one process."""

    def use(self, pieces: Sequence[Piece]) -> None:
        """Set the memory to read (ascending)."""

    def set_memory(self, mapped: Sequence[Range], code: Sequence[Range], instructions: Sequence[Range] = ()) -> None:
        """Set all readable memory, all executable memory, and memory that contains only
        instructions, and no data (sorted, disjoint). Comparisons, features and `classes` use it."""

    def set_flags(self, flags: bytearray) -> None:
        """Set the flags (Flag) of each reference. Decisions and comparisons use them."""

    def add_layout(self, groups: Sequence[int], slots: Sequence[int], checks: Sequence[int] = ()) -> int:
        """Add a layout; return its number, from 1 on. A group has GROUP words: start, stride,
        count, first and last slot, first and last check. `count` elements of `stride` bytes begin
        at `start`; if `count` is 0, they continue up to the end of the memory. A slot has two
        words: its offset in the element, and its reference. A check also has two words: offset, and
        Role. For the capacity of a buffer, the result of describe_capacity is added to Role."""

    def add_choices(self, layouts: Sequence[int]) -> int:
        """Add a list of layouts; return its number, from 1 on. List 0 is empty."""

    def add_roots(self, addresses: array[int], sizes: array[int], layouts: array[int]) -> None:
        """Add typed memory outside of blocks: addresses ("Q"), sizes in bytes ("Q"), and layouts
        ("I"). Its elements are numbered from 0 on."""

    def seed(self, index: int, layout: int, level: Level, inferred: bool, origin: int = NO_ORIGIN) -> bool:
        """Claim an untyped block in use. Return False if it already has a type."""

    def seed_all(self, indices: array[int], layout: int, level: Level) -> None:
        """Claim the blocks of a list ("I") that are untyped and in use. Their claims are
        inferred."""

    def relabel(self, indices: array[int], layout: int) -> None:
        """Give typed blocks ("I") another layout, and queue them. Their claims are as
        certain as before."""

    def seed_words(self, words: array[int], layouts: array[int], least: array[int], level: Level = Level.SEED) -> None:
        """Claim all untyped blocks in use by their first words ("Q", ascending). Blocks of least[i]
        bytes or more whose first word is words[i] get the layout layouts[i]. The claims are
        certain."""

    def run(self, budget: int) -> bool:
        """Visit about `budget` elements. Return True when no visit is left. Return False if
        questions must be answered first, or if the budget was used up."""

    def questions(self) -> array[int]:
        """Return and forget the new questions. Each has QUESTION words: its sort (Question) << 32 |
        reference; the offset; and the layout for AGREES, the size in bytes for other
        questions."""

    def add_decision(self, options: Sequence[int], feature: int = NO_FEATURE, keys: Sequence[int] = (), claims: Sequence[int] = ()) -> int:
        """Add a decision; return its number, from 0 on. Each option has OPTION words: its claim;
        NOT_ARRAY, or for an array, the layout of its first element or 0; and the size of its type
        in bytes, plus UNSPLIT if blocks seldom have a size for the type. If the third word is
        EXCLUDING, the second one is a layout that the block must contradict. Successive options of
        this sort with one claim belong together.

        A block gets the claim of an array if all elements fit and an element after the first has a
        pointer. For an array with 0, a pointer in any element is enough. A block gets the claim of
        EXCLUDING if it fits, has a pointer that fits, and contradicts the excluded layouts. If
        there is no such claim, and `keys` (ascending) contains the value of the feature, the block
        gets the claim of the key if that fits, and no claim if the layout of this claim is 0.
        Otherwise, one of the options with NOT_ARRAY is chosen BY_CONTENT. At most MOST_OPTIONS
        options are possible."""

    def answer(self, questions: array[int], answers: array[int]) -> None:
        """Answer questions ("I"). The answer to RULE is layout | level << LEVEL_SHIFT, NO_CLAIM,
        DEFERRED, or DECISION | the number of a decision. Question explains the answers to other
        questions. An answer may replace an earlier one."""

    def take_deferred(self) -> list[Pointers]:
        """Return and forget the deferred pointers, and the pointers to blocks for which a decision
        made no claim. The rules are in the order in which their first pointers were found."""

    def revisit(self, references: Sequence[int]) -> None:
        """Queue all typed memory that may have pointers with these references. If the list is
        empty, queue all typed memory with pointers."""

    def queue_doubtful(self) -> None:
        """Queue the doubtful elements of blocks that were not visited before: elements of arrays
        that the smallest request for a block of this size has no room for. Their pointers may be
        stale words. They claim only untyped blocks whose content does not contradict the claim,
        and never contradict the claims of other pointers. If no pointer of such a block fits, or
        if another layout of this size (RIVALS) fits as well, the claim is inferred. If such a
        layout explains more words as addresses, there is no claim."""

    def confirm(self) -> None:
        """From now on, certain pointers make inferred claims of the same layout certain, and
        dispute those of a layout that contradicts them, except claims of buffers. Queue the typed
        memory that may have pointers of the first sort."""

    def set_pools(self, indices: array[int]) -> None:
        """Set the blocks of pools ("I"). A pool places objects one after another in its blocks,
        so these blocks get no claim. Certain pointers to them are noted."""

    def take_pool_pointers(self) -> array[int]:
        """Return and forget the certain pointers to blocks of pools ("Q"). Each has POOL_POINTER
        words: its owner (see ROOT), its address, its value, and its reference. Some repetitions of
        a value and reference are left out."""

    def fits(self, layouts: Sequence[int], indices: array[int]) -> Optional[array[int]]:
        """Return a mask for each block ("Q"), with a bit for each of at most 64 layouts that the
        block does not contradict. Return None if questions must be answered first."""

    def choose(self, options: Sequence[int], how: Choosing, indices: array[int]) -> Optional[array[int]]:
        """Return the claim of the option that fits each block ("I"), 0 for none. `add_decision`
        explains options; arrays are never chosen. Return None if questions must be answered
        first."""

    def feature(self, feature: int, rows: array[int]) -> array[int]:
        """Return the value of one feature (see Feature) for each pointer ("Q"). `rows` contains the
        owner, the place and the block of each pointer, as in Pointers."""

    def add_owner_word(self, layout: int, offset: int, size: int) -> int:
        """Add a feature OWNER_WORD: a number of `size` bytes (1, 2, 4, or a word) at an offset of
        the nearest owner with this layout. Return the feature."""

    def separate(self, rows: array[int], labels: array[int]) -> int:
        """Return the feature that separates the labels ("I") of pointers: nearly all pointers with
        the same value have the same label. Of several such features, return the one with the fewest
        values; without any, NO_FEATURE. At most MOST_SEPARATED pointers are compared, and labels
        are below MOST_SEPARATED."""

    def find_untyped(self, kinds: Union[bytes, memoryview], wanted: int, most: int) -> array[int]:
        """Return the first `most` untyped blocks in use ("I") for whose kind a bit is set in
        `wanted`. `kinds` has a byte for each block."""

    def with_layout(self, layout: int, most: int) -> array[int]:
        """Return the first `most` blocks with this layout ("I", ascending)."""

    def sample(self, most: int) -> array[int]:
        """Return at most `most` typed blocks of each layout ("I", ascending), at equal steps."""

    def group_by_classes(self, indices: array[int], words: int) -> tuple[array[int], array[int]]:
        """Group blocks ("I") by their size and the classes (WordClass) of their first `words`
        words. Return the group of each block ("I"), and the size and the classes of each group
        ("Q"). Groups are numbered from 0 in the order of their first blocks."""

    def disputes(self) -> list[int]:
        """Return and forget the blocks with contradicting certain claims, ascending."""

    def retract(self) -> int:
        """Remove all claims that come from disputed blocks, directly or through other claims.
        Return the number of removed claims."""

    @property
    def claimed(self) -> int:
        """The number of claims made so far."""

    @property
    def followed(self) -> int:
        """The number of pointers followed so far."""

    def claims(self) -> Numbers:
        """Return a claim for each block ("I"; do not change the array): layout | level <<
        LEVEL_SHIFT, and INFERRED; or DISPUTED; or 0 if the block has no claim."""

    def origins(self) -> Numbers:
        """Return the origin of each block's claim ("I"): an index, ROOT + number, or NO_ORIGIN."""
