"""Compare the content of blocks with types. The pointers of a block must refer to blocks that fit
the pointers' types."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Optional

from findleaks.engine.type_spread import LAYOUT_MASK, NOT_ARRAY, UNSPLIT, Choosing, Flag, TypeSpread
from findleaks.types.layouts import Layouts
from findleaks.types.references import Sort
from findleaks.types.rules import Rules
from findleaks.types.specs import Candidate, Spec

# Maximum number of rounds in one comparison of types. Each round may refer to further types, which
# the next round compares.
ROUNDS = 64
MOST_FIRST = 512  # Blocks of a large comparison whose questions are answered first.
MOST_COMPARED = 64  # Maximum number of types that are compared at a time.

_FLAGS = {
    Sort.POINTER: 0,
    Sort.ANY: Flag.ANYTHING,
    Sort.CHOICE: Flag.OPTIONAL | Flag.NUMBER,
    Sort.TRAIT_OBJECT: Flag.ANYTHING,
    Sort.DATA: Flag.ANYTHING,
    Sort.ERASED: Flag.ANYTHING,
}


class Content:
    """Compares blocks, given by index, with types."""

    def __init__(self, spread: TypeSpread, layouts: Layouts, rules: Rules) -> None:
        self._spread, self._layouts, self._rules = spread, layouts, rules
        self._flags = bytearray()

    def count_fits(self, specs: Sequence[Spec], blocks: Sequence[int]) -> list[int]:
        """Return, for each type, how many of the blocks do not contradict it."""
        found = []
        for first in range(0, len(specs), MOST_COMPARED):
            some = specs[first : first + MOST_COMPARED]
            masks = self.fits([self._layouts.number(spec) for spec in some], blocks)
            found += [sum(mask >> at & 1 for mask in masks) for at in range(len(some))]
        return found

    def find_unfit(self, specs: Sequence[Spec], blocks: Sequence[int]) -> list[int]:
        """Return the blocks that contradict all of the types."""
        found = list(blocks)
        for first in range(0, len(specs) if found else 0, MOST_COMPARED):
            masks = self.fits([self._layouts.number(spec) for spec in specs[first : first + MOST_COMPARED]], found)
            found = [block for block, mask in zip(found, masks) if not mask]
        return found

    def fits(self, layouts: Sequence[int], blocks: Sequence[int]) -> array[int]:
        """Return a mask for each block, with a bit for each of at most 64 layouts that the block
        does not contradict."""
        indices = array("I", blocks)
        return self._repeat(lambda some: self._spread.fits(layouts, some), indices) or array("Q", bytes(8 * len(indices)))

    def choose(self, options: Sequence[Candidate], how: Choosing, blocks: Sequence[int]) -> list[Optional[Spec]]:
        """Return the type that fits each block best; None if none does."""
        indices, specs = array("I", blocks), self._layouts.specs
        packed = [word for one in options for word in self.option(one)]
        found = self._repeat(lambda some: self._spread.choose(packed, how, some), indices)
        return [specs[claim & LAYOUT_MASK] if claim else None for claim in found or bytes(len(indices))]

    def group_by_choice(self, options: Sequence[Candidate], how: Choosing, blocks: Sequence[int]) -> dict[int, array[int]]:
        """Return the blocks that some option fits ("I"), by the layout of the option that fits
        best."""
        found: dict[int, array[int]] = {}
        for index, spec in zip(blocks, self.choose(options, how, blocks) if options else ()):
            if spec is not None:
                found.setdefault(self._layouts.number(spec), array("I")).append(index)
        return found

    def option(self, one: Candidate) -> tuple[int, int, int]:
        """Return an option for TypeSpread.add_decision or `choose`. It is not an array."""
        return self._rules.claim(one), NOT_ARRAY, self._layouts.size_of(one.spec) + (UNSPLIT if one.is_rare else 0)

    def _repeat(self, compare: Callable[[array[int]], Optional[array[int]]], blocks: array[int]) -> Optional[array[int]]:
        """Repeat a comparison of blocks until all of its questions are answered, and return its
        result. Return None after ROUNDS. Each round compares all blocks from the start, so that the
        questions of many blocks are answered for a few of them first: most blocks have the same
        questions."""
        if len(blocks) > MOST_FIRST * 2:
            self._repeat(compare, blocks[:: len(blocks) // MOST_FIRST])
        for _ in range(ROUNDS):
            self.set_flags()
            found = compare(blocks)
            if found is not None:
                return found
            questions = self._spread.questions()
            self._spread.answer(questions, self._rules.answers(questions))
        return None

    def answer_again(self, questions: array[int]) -> None:
        """Answer questions whose answers have changed."""
        if questions:
            self._spread.answer(questions, self._rules.answers(questions))

    def set_flags(self) -> None:
        """Give the engine the flags of all references."""
        references = self._layouts.references
        if len(references) == len(self._flags):
            return
        flags = bytearray(self._flags)
        for one in references[len(flags) :]:
            own = _FLAGS[one.sort]
            flags.append((own if own & Flag.ANYTHING or 0 in one.pointees or not own else Flag.OPTIONAL) | one.used)
        self._flags = flags
        self._spread.set_flags(flags)
