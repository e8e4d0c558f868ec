"""Compare blocks with layouts, in pure Python. The C engine has the same code in
common/native/type_match.c."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from findleaks.engine.reference.type_layouts import Check
from findleaks.engine.reference.type_used import is_too_far
from findleaks.engine.type_spread import LAYOUT_MASK, LEAST_LONG, LEAST_TEXT, MOST_WORDS, UNKNOWN, USUAL_FLOATS, Flag, Question, Role
from findleaks.target.ranges import range_at

if TYPE_CHECKING:
    from findleaks.engine.reference.type_spread import PureTypeSpread

# What the comparison of a word with a layout finds; also the indices of the counts.
WRONG, STRONG, WEAK, LOOSE, TEXT_NUMBER = range(5)
COUNTS = 5
FIRST_WORDS = 4  # Words of a block that _begins_alike compares.
NEUTRAL = -1  # The word fits any layout. Such words are not counted.


def is_text(word: bytes, least: int = LEAST_TEXT) -> bool:
    """Return whether a word is text of at least `least` characters."""
    text = word.rstrip(b"\0")
    return len(text) >= least and all(0x20 <= byte < 0x7F for byte in text)


class Matching:
    """A comparison of blocks with layouts. If `asked` is set, an answer is missing, and the result
    is not valid."""

    def __init__(self, spread: PureTypeSpread) -> None:
        self._spread, self._flags = spread, spread.flags
        self.asked = False
        self._block = 0  # The start of the block that is compared.

    def compare(self, layout: int, start: int, size: int, depth: int, counts: list[int]) -> None:
        """Compare a block with a layout. Count the words that contradict the layout (WRONG), fit it
        well (STRONG), may fit it (WEAK), are an address where it has any pointer (LOOSE), or are
        text where it has a number or a void pointer (TEXT_NUMBER); these are indices of `counts`.
        Stop at the first wrong word. An array at the end of a struct may have more elements than
        are in use, so it is compared only up to its first wrong element. `depth`: number of levels
        of pointers whose untyped targets are compared, too."""
        self._block = start if depth else self._block
        self._compare_words(layout, start, size, depth, counts)
        # A struct may begin with a magic number that is text. But if no pointer fits, text in place
        # of a number means that the block is text.
        counts[WRONG] += bool(counts[TEXT_NUMBER] and not counts[STRONG] + counts[WEAK])

    def _compare_words(self, layout: int, start: int, size: int, depth: int, counts: list[int]) -> None:
        spread, seen = self._spread, 0
        for group, one in enumerate(spread.layouts[layout]):
            is_open = group > 0 and not one.number
            if not one.slots and not one.checks:
                continue
            for element, base in enumerate(one.bases(size)):
                before = counts[:]
                words = [(offset, None, reference) for offset, reference in one.slots]
                for offset, check, reference in [*words, *((offset, check, 0) for offset, check in one.checks)]:
                    place = start + base + offset
                    value = spread.memory.word(place) or 0
                    found = (
                        [self._pointer(reference, value, start, depth) if check is None else self._word(check.role, value)] if value else []
                    )
                    if check is not None and check.stride:
                        found.append(self._capacity(check, value, spread.memory.word(place + check.distance) or 0))
                    for one_found in found:
                        if one_found != NEUTRAL:
                            counts[one_found] += 1
                    if counts[WRONG]:
                        break
                if counts[WRONG] and is_open and element:
                    counts[:] = before
                    break
                if counts[WRONG]:
                    return
                seen += len(one.slots) + len(one.checks)
                if seen > MOST_WORDS:
                    return

    def _pointer(self, reference: int, value: int, own: int, depth: int) -> int:
        """Compare a pointer of the block that starts at `own`."""
        spread = self._spread
        flags = self._flags[reference] if reference < len(self._flags) else Flag.ANYTHING
        is_mapped = range_at(spread.mapped, value) is not None
        if flags & Flag.ANYTHING:
            return LOOSE if is_mapped else TEXT_NUMBER if self._is_long_text(value) else NEUTRAL
        index = spread.used_block(value)
        if index < 0:
            return self._compare_with_variable(reference, value) if is_mapped else NEUTRAL if flags & Flag.OPTIONAL else WRONG
        if index in spread.pools.blocks:
            return LOOSE  # Which objects are in the block is not known.
        offset, layout = value - spread.blocks.address(index), spread.claims()[index] & LAYOUT_MASK
        if is_too_far(spread, reference, offset):
            return NEUTRAL
        if layout:
            agrees = self._answer(Question.AGREES, reference, spread.in_element(layout, offset), layout)
            if agrees == UNKNOWN:
                return NEUTRAL
            return (NEUTRAL if flags & Flag.NUMBER else WRONG) if not agrees else (STRONG if agrees == 2 else WEAK)
        if flags & Flag.OPTIONAL and spread.begins_with_text(value, spread.blocks.size(index) - offset):
            # Nearly every block fits a union that has a number. But text belongs to none of the
            # types of the union.
            return LOOSE
        if self._is_possible(reference, offset, index, depth):
            return WEAK
        if offset and spread.blocks.address(index) in (own, self._block):
            # A block may contain objects that refer to each other, or the head of a list or tree to
            # which the nodes refer.
            return LOOSE
        return NEUTRAL if flags & Flag.OPTIONAL else WRONG

    def _compare_with_variable(self, reference: int, value: int) -> int:
        """Compare a pointer with the variable that it refers to. Programs may refer to a variable
        of another type, for example to a head that ends a list, so no variable contradicts the
        pointer."""
        spread = self._spread
        address, size, layout = spread.roots.at(value)
        if not size or is_too_far(spread, reference, value - address):
            return LOOSE
        return STRONG if self._answer(Question.AGREES, reference, spread.in_element(layout, value - address), layout) == 2 else LOOSE

    def _is_possible(self, reference: int, offset: int, index: int, depth: int) -> bool:
        spread = self._spread
        start, size = spread.blocks.address(index), spread.blocks.size(index)
        number = self._answer(Question.POSSIBLE, reference, offset, size)
        if number == UNKNOWN or not depth:
            return number == UNKNOWN or any(self._begins_alike(layout, start, size) for layout in spread.choices[number])
        for layout in spread.choices[number]:
            counts = [0] * COUNTS
            self.compare(layout, start, size, depth - 1, counts)
            if not counts[WRONG]:
                return True
        return False

    def rivals(self, size: int) -> Sequence[int]:
        """Return the layouts that blocks of this size may have without a pointer to them."""
        number = self._answer(Question.RIVALS, 0, 0, size)
        return () if number == UNKNOWN else self._spread.choices[number]

    def count_unrequested(self, size: int) -> int:
        """Return how much larger a block of this size may be than the request for it."""
        return self._answer(Question.UNREQUESTED, 0, 0, size)

    def _begins_alike(self, layout: int, start: int, size: int) -> bool:
        """Whether a block may have a layout, judged only by the first words of the block. For
        example, a word of text is not a pointer."""
        spread, groups = self._spread, self._spread.layouts[layout]
        if not groups or groups[0].start:
            return True
        word, certain = spread.blocks.arch.word, Flag.ANYTHING | Flag.OPTIONAL | Flag.NUMBER
        flags = [(offset, self._flags[one] if one < len(self._flags) else 0) for offset, one in groups[0].slots]
        offsets = [offset for offset, flag in flags if not flag & certain]
        offsets += [offset for offset, check in groups[0].checks if check.role < Role.PLAIN]
        values = [spread.memory.word(start + offset) for offset in offsets if offset + word <= min(size, FIRST_WORDS * word)]
        return all(not value or range_at(spread.mapped, value) is not None for value in values)

    def _word(self, role: int, value: int) -> int:
        spread = self._spread
        if role == Role.CODE:
            return WRONG if range_at(spread.code, value) is None else WEAK
        index = spread.used_block(value)
        begins = index >= 0 and spread.blocks.address(index) == value
        if role >= Role.PLAIN:
            is_usual = role == Role.FLOAT and value >> 8 * (spread.blocks.arch.word - 1) in USUAL_FLOATS
            may_be_text = role != Role.CHARACTERS and not is_usual
            return WRONG if begins else TEXT_NUMBER if may_be_text and self._is_long_text(value) else NEUTRAL
        if range_at(spread.instructions, value) is not None:
            return WRONG
        if range_at(spread.mapped, value) is None or (begins and spread.claims()[index] & LAYOUT_MASK):
            return WRONG
        return WEAK if begins and not self._begins_with_address(value) else LOOSE

    def _capacity(self, check: Check, capacity: int, pointer: int) -> int:
        """Compare the capacity of a buffer with the block that the pointer to the buffer refers to.
        The pointer of a buffer without capacity is the alignment of its elements. A reallocated
        block may be up to twice as large as the buffer. Other pointers to parts of blocks, and to
        free memory, may belong to elements that are not in use."""
        if not capacity:
            return WRONG if pointer and (pointer & (pointer - 1) or check.stride % pointer) else NEUTRAL
        blocks, index = self._spread.blocks, self._spread.used_block(pointer)
        if index < 0 or blocks.address(index) != pointer:
            return NEUTRAL
        size = blocks.size(index)
        if capacity > size // check.stride:
            return WRONG
        unrequested = self.count_unrequested(size)
        return WRONG if unrequested != UNKNOWN and 2 * capacity * check.stride + unrequested < size else NEUTRAL

    def _is_long_text(self, value: int) -> bool:
        """Whether a word is text that is too long to be a number of four bytes. A valid address
        is not text, even if all its bytes are characters."""
        arch = self._spread.blocks.arch
        is_address = range_at(self._spread.mapped, value) is not None
        return is_text(value.to_bytes(arch.word, arch.byteorder), LEAST_LONG) and not is_address

    def _begins_with_address(self, block: int) -> bool:
        """Whether the first word of a block is an address in a block. Blocks of text or numbers
        seldom begin with one."""
        value = self._spread.memory.word(block) or 0
        return value > 0 and self._spread.used_block(value) >= 0

    def _answer(self, question: Question, reference: int, offset: int, third: int) -> int:
        found = self._spread.rule((question << 32 | reference, offset, third))
        self.asked |= found == UNKNOWN
        return found
