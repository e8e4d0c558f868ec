"""Decide which of several possible contents a block has, in pure Python. TypeSpread.add_decision
explains decisions; the C engine has the same code in common/native/type_decisions.c."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from findleaks.engine.reference.type_features import feature_value
from findleaks.engine.reference.type_match import COUNTS, LOOSE, STRONG, TEXT_NUMBER, WEAK, WRONG, Matching
from findleaks.engine.reference.type_used import used_size
from findleaks.engine.type_spread import (
    EXCLUDING,
    LAYOUT_MASK,
    LEAST_STRONG,
    LEAST_VOID,
    LEVEL_MASK,
    LEVEL_SHIFT,
    MOST_OPTIONS,
    NOT_ARRAY,
    OPTION,
    UNSPLIT,
    Choosing,
    Level,
)

if TYPE_CHECKING:
    from findleaks.engine.reference.type_spread import PureTypeSpread


class Option(NamedTuple):
    """A possible content of a block. TypeSpread.add_decision explains the three words."""

    claim: int
    single: int
    size: int


class Decision(NamedTuple):
    """A decision. `keys` maps values of the feature to claims."""

    options: Sequence[Option]
    feature: int
    keys: Mapping[int, int]


def options_of(spread: PureTypeSpread, words: Sequence[int]) -> Sequence[Option]:
    """Return options. Raises ValueError for too many options or an unknown layout."""
    found = [Option(*words[at : at + OPTION]) for at in range(0, len(words), OPTION)]
    if len(found) > MOST_OPTIONS:
        raise ValueError("too many options")
    for one in found:
        if max(one.claim & LAYOUT_MASK, one.single if one.single != NOT_ARRAY else 0) >= len(spread.layouts):
            raise ValueError("no such layout")
    return found


def _belongs(first: Option, other: Option) -> bool:
    """Whether two options with EXCLUDING belong together."""
    return other.size == first.size == EXCLUDING and first.claim == other.claim


class Chooser:
    """Chooses the content of one block."""

    def __init__(self, spread: PureTypeSpread, index: int) -> None:
        self._spread, self._matching = spread, Matching(spread)
        self._start, self._size = spread.blocks.address(index), spread.blocks.size(index)

    @property
    def asked(self) -> bool:
        """Whether an answer is missing. If so, no result is valid."""
        return self._matching.asked

    def compare(self, layout: int, size: int = -1) -> list[int]:
        """Return the counts of Matching.compare for the first `size` bytes of the block (-1:
        all)."""
        counts = [0] * COUNTS
        self._matching.compare(layout, self._start, size if size >= 0 else self._size, 1, counts)
        return counts

    def decide(self, decision: Decision, reference: int, owner: int, place: int, index: int) -> int:
        """Return the claim of the block that the pointer at `place` refers to, or 0."""
        for at, one in enumerate(decision.options):
            used = used_size(self._spread, reference, place, index, one.claim)
            if one.size == EXCLUDING:
                found = not (at and _belongs(decision.options[at - 1], one)) and self._excludes(decision.options[at:], used)
            else:
                found = one.single != NOT_ARRAY and self._is_array(one, used)
            if self.asked:
                return 0
            if found:
                return one.claim
        keyed = decision.keys.get(feature_value(self._spread, decision.feature, owner, place, index), 0) if decision.keys else 0
        if keyed and not keyed & LAYOUT_MASK:
            return 0
        if keyed:
            counts = self.compare(keyed & LAYOUT_MASK, used_size(self._spread, reference, place, index, keyed))
            if self.asked:
                return 0
            if not counts[WRONG]:
                return keyed
        return self.choose(decision.options, Choosing.BY_CONTENT)

    def may_claim(self, claim: int, used: int) -> tuple[bool, bool]:
        """Return whether a pointer that may be a stale word may claim the block, and whether the
        claim is certain. The content must not contradict the claim, and no other type of this size
        may explain more words of it as addresses. The claim is certain only if pointers of the
        block fit it better than all other types. `used`: the size of the part that is in use."""
        counts = self.compare(claim & LAYOUT_MASK, used)
        is_certain = bool(counts[STRONG] + counts[WEAK])
        if self.asked or counts[WRONG]:
            return False, False
        for layout in self._matching.rivals(self._size):
            rival = self.compare(layout) if layout != claim & LAYOUT_MASK else []
            if not rival or rival[WRONG]:
                continue
            is_certain = is_certain and (rival[STRONG], rival[WEAK]) < (counts[STRONG], counts[WEAK])
            if rival[STRONG] + rival[WEAK] + rival[LOOSE] > counts[STRONG] + counts[WEAK] + counts[LOOSE]:
                return False, False
        return True, is_certain

    def _is_array(self, one: Option, used: int) -> bool:
        """Return whether the block is an array. `used`: the bytes that are in use. If this is the
        whole block, the last elements may contain stale words: those for which the smallest request
        has no room."""
        groups = self._spread.layouts[one.claim & LAYOUT_MASK]
        if self._has_elements(one, used):
            return True
        if self.asked or used < self._size or not groups:
            return False
        stride, unrequested = groups[0].stride, self._matching.count_unrequested(self._size)
        requested = -(-max(self._size - unrequested, 0) // stride) * stride
        return not self.asked and requested < self._size and self._has_elements(one, requested)

    def _has_elements(self, one: Option, used: int) -> bool:
        """Return whether all elements in the first `used` bytes fit, and an element after the first
        one has a pointer. If the claim is inferred, the elements after the first need at least
        LEAST_VOID void pointers instead."""
        every, is_inferred = self.compare(one.claim & LAYOUT_MASK, used), one.claim >> LEVEL_SHIFT & LEVEL_MASK >= Level.BASE
        if every[WRONG] or not (every[LOOSE] if is_inferred else every[STRONG] + every[WEAK]):
            return False
        first = self.compare(one.single, used) if one.single else [0] * COUNTS
        if is_inferred:
            return every[LOOSE] >= first[LOOSE] + LEAST_VOID
        return every[STRONG] + every[WEAK] > first[STRONG] + first[WEAK]

    def _excludes(self, options: Sequence[Option], used: int) -> bool:
        """Return whether the first `used` bytes of the block fit the first of these options, and
        contradict the layouts that it excludes."""
        counts = self.compare(options[0].claim & LAYOUT_MASK, used)
        if counts[WRONG] or not counts[STRONG] + counts[WEAK]:
            return False
        rivals = [one.single for one in takewhile(lambda one: _belongs(options[0], one), options)]
        return all(self.compare(layout, used)[WRONG] for layout in rivals)

    def _suffices(self, claim: int) -> bool:
        """Return whether the block may get the only option, even without pointers. At UNION, the
        block may be text or numbers that another member refers to, so an array of pointers needs a
        pointer."""
        level, groups = claim >> LEVEL_SHIFT & LEVEL_MASK, self._spread.layouts[claim & LAYOUT_MASK]
        if level != Level.UNION:
            return level != Level.LEARNED
        one, word = groups[0] if groups else None, self._spread.blocks.arch.word
        is_pointers = one is not None and not one.start and not one.number and one.stride == word and bool(one.slots)
        return not is_pointers and not self._spread.begins_with_text(self._start, self._size)

    def choose(self, options: Sequence[Option], how: Choosing) -> int:
        """Return the claim of the option that fits the block best; 0 if no option is chosen. `how`
        is the rule by which an option is chosen."""
        # The third number of a rank prefers options without text in place of a number.
        ranked: list[tuple[tuple[int, int, bool], Option]] = []
        is_likely = False  # Whether a word is an address where the only option has a pointer.
        options = [one for one in options if one.single == NOT_ARRAY]
        for one in options:
            counts = self.compare(one.claim & LAYOUT_MASK) if how != Choosing.BY_END else [0] * COUNTS
            if self.asked:
                return 0
            is_likely = any(counts[STRONG:TEXT_NUMBER])
            if not counts[WRONG]:
                weak = 0 if how == Choosing.BY_SHAPE else counts[WEAK]
                ranked.append(((counts[STRONG], weak, not (counts[TEXT_NUMBER] and counts[STRONG] + weak)), one))
        if not ranked:
            return 0
        best = max(rank for rank, _ in ranked)
        equal = [one for rank, one in ranked if rank == best]
        if how == Choosing.BY_SHAPE:
            return equal[0].claim if len(equal) == 1 and best[0] >= LEAST_STRONG else 0
        if len(equal) == 1 and how == Choosing.BY_CONTENT:
            claim = equal[0].claim
            is_only = len(options) == 1 and (is_likely or self._suffices(claim))
            return claim if best > (0, 0, True) or is_only else 0
        if how == Choosing.BY_CONTENT and any(one.claim >> LEVEL_SHIFT & LEVEL_MASK != Level.BASE for one in equal):
            return 0
        return self._choose_by_end(equal)

    def _choose_by_end(self, equal: Sequence[Option]) -> int:
        """Choose one of several options by Choosing.BY_END. Return its claim, 0 for none."""
        equal = [one for one in equal if not one.size & UNSPLIT] or [one._replace(size=one.size ^ UNSPLIT) for one in equal]
        most = max(one.size for one in equal)
        zeros = [one for one in equal if not bytes(self._spread.memory.part(self._start + one.size, most - one.size)).strip(b"\0")]
        smallest = [one for one in zeros if one.size == min(other.size for other in zeros)]
        return smallest[0].claim if len(smallest) == 1 else 0
