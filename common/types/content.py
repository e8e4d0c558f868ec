"""Compares the content of blocks with types: the pointers must refer to what the type says."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from findleaks.engine.type_spread import Flag, TypeSpread
from findleaks.types.layouts import Layouts, Sort, Spec
from findleaks.types.rules import Rules
from findleaks.value_classes import NamedTuple

# Most times that questions are answered for one comparison; each adds a level of types.
ROUNDS = 64


class Match(NamedTuple):
    """How well a block's content fits a type."""

    wrong: int  # Words that contradict the type.
    strong: int  # Pointers to blocks of the expected type.
    weak: int  # Pointers to blocks of a possible type and size, and to functions.

    @property
    def fits(self) -> bool:
        return not self.wrong


class Content:
    """Compares blocks with layouts."""

    def __init__(self, spread: TypeSpread, layouts: Layouts, rules: Rules) -> None:
        self._spread, self._layouts, self._rules = spread, layouts, rules
        self._flags = bytearray()

    def match(self, spec: Spec, blocks: Sequence[int]) -> list[Match]:
        """Compare blocks, given by index, with a type."""
        layout, indices = self._layouts.number(spec), array("I", blocks)
        for _ in range(ROUNDS):
            found = self._spread.match(layout, indices, self._reference_flags())
            if found is not None:
                return list(map(Match, found[0::3], found[1::3], found[2::3]))
            questions = self._spread.questions()
            self._spread.answer(questions, self._rules.answers(questions))
        return [Match(1, 0, 0)] * len(indices)

    def _reference_flags(self) -> bytearray:
        """Return the flags of all references."""
        for one in self._layouts.references[len(self._flags) :]:
            flags = {Sort.POINTER: 0, Sort.ANY: Flag.ANYTHING, Sort.CHOICE: Flag.OPTIONAL | Flag.NUMBER}[one.sort]
            self._flags.append(flags if flags & Flag.ANYTHING or 0 in one.pointees or not flags else Flag.OPTIONAL)
        return self._flags
