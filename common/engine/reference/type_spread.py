"""The spread of types over blocks, in pure Python."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Optional

from findleaks.engine.reference.blocks import PureBlocks
from findleaks.engine.reference.interior_structures import Pieces
from findleaks.engine.terms import State
from findleaks.engine.type_spread import (
    DEFERRED,
    DISPUTED,
    FARTHEST,
    GROUP,
    INFERRED,
    LAYOUT_MASK,
    LEVEL_SHIFT,
    MOST_LAYOUTS,
    MOST_POINTERS,
    MOST_RULES,
    NO_CLAIM,
    NO_ORIGIN,
    QUESTION,
    ROOT,
    UNKNOWN,
    Level,
    Pointers,
    Question,
)
from findleaks.target.base import Piece

Key = tuple[int, int, int]


class PureTypeSpread:
    """See type_spread.TypeSpread."""

    def __init__(self, blocks: PureBlocks) -> None:
        self._blocks, self._arch = blocks, blocks.arch
        self._claims = array("I", bytes(4 * len(blocks)))
        self._origins = array("I", [NO_ORIGIN]) * len(blocks)
        self._memory = Pieces((), blocks.arch)
        # By layout: groups of (start, stride, count, slots).
        self._layouts: list[list[tuple[int, int, int, list[tuple[int, int]]]]] = [[]]
        self._roots: list[tuple[int, int, int]] = []
        self._rules: dict[Key, int] = {}
        self._asked: list[Key] = []
        self._queue: deque[int] = deque()
        self._waiting: list[int] = []
        self._deferred: dict[Key, tuple[list[int], array[int]]] = {}
        self._disputes: set[int] = set()

    def use(self, pieces: Sequence[Piece]) -> None:
        self._memory = Pieces(pieces, self._arch)

    def add_layout(self, groups: Sequence[int], slots: Sequence[int]) -> int:
        pairs = list(zip(slots[0::2], slots[1::2]))
        rows = [groups[at : at + GROUP] for at in range(0, len(groups), GROUP)]
        if len(self._layouts) > MOST_LAYOUTS or any(not row[1] or not row[3] <= row[4] <= len(pairs) for row in rows):
            raise ValueError("no such layout")
        self._layouts.append([(start, stride, count, pairs[first:last]) for start, stride, count, first, last in rows])
        return len(self._layouts) - 1

    def add_root(self, address: int, size: int, layout: int) -> int:
        self._roots.append((address, size, layout))
        self._queue.append(ROOT + len(self._roots) - 1)
        return len(self._roots) - 1

    def seed(self, index: int, layout: int, level: Level, inferred: bool, origin: int = NO_ORIGIN) -> bool:
        if self._claims[index] or self._blocks.state(index) != State.IN_USE:
            return False
        self._claim(index, layout | level << LEVEL_SHIFT, inferred, origin)
        return True

    def seed_words(self, words: array[int], layouts: array[int], least: array[int]) -> None:
        for index in range(len(self._blocks)):
            start, size = self._blocks.address(index), self._blocks.size(index)
            word = self._memory.word(start) if size >= self._arch.word and start % self._arch.word == 0 else None
            at = bisect_right(words, word) - 1 if word is not None else -1
            if at >= 0 and words[at] == word and size >= least[at]:
                self.seed(index, layouts[at], Level.SEED, False)

    def run(self, budget: int) -> bool:
        while self._queue and budget > 0:
            budget -= self._visit(self._queue.popleft())
        return not self._queue

    def questions(self) -> array[int]:
        found = array("Q", [word for key in self._asked for word in key])
        self._asked.clear()
        return found

    def answer(self, questions: array[int], answers: array[int]) -> None:
        for at, value in enumerate(answers):
            first, second, third = questions[QUESTION * at : QUESTION * (at + 1)]
            self._rules[first, second, third] = value
        self._queue.extend(self._waiting)
        self._waiting.clear()

    def deferred(self) -> list[Pointers]:
        found = []
        for (reference, offset, size), (count, rows) in self._deferred.items():
            found.append(Pointers(reference, offset, size, count[0], rows))
        self._deferred.clear()
        return found

    def revisit(self, references: Sequence[int]) -> None:
        wanted = set(references)
        has = [any(not wanted or reference in wanted for *_, slots in groups for _, reference in slots) for groups in self._layouts]
        self._queue.extend(ROOT + number for number, (_, _, layout) in enumerate(self._roots) if has[layout])
        self._queue.extend(index for index, claim in enumerate(self._claims) if has[claim & LAYOUT_MASK] and not claim & DISPUTED)

    def disputes(self) -> list[int]:
        found = sorted(self._disputes)
        self._disputes.clear()
        return found

    def retract(self) -> int:
        fallen = 0
        while True:
            before = fallen
            for index, claim in enumerate(self._claims):
                origin = self._origins[index]
                if not claim or claim & DISPUTED or origin >= ROOT:
                    continue
                if not self._claims[origin] or self._claims[origin] & DISPUTED:
                    self._claims[index], self._origins[index] = 0, NO_ORIGIN
                    fallen += 1
            if fallen == before:
                return fallen

    def claims(self) -> array[int]:
        return self._claims

    def origins(self) -> array[int]:
        return self._origins

    def _claim(self, index: int, claim: int, inferred: bool, origin: int) -> None:
        level = claim >> LEVEL_SHIFT
        self._claims[index] = claim | (INFERRED if inferred or level >= Level.BASE else 0)
        self._origins[index] = origin
        self._queue.append(index)

    def _visit(self, owner: int) -> int:
        """Follow the pointers of typed memory; return the number of elements visited."""
        if owner >= ROOT:
            address, size, layout = self._roots[owner - ROOT]
            certain = True
        else:
            address, size = self._blocks.address(owner), self._blocks.size(owner)
            claim = self._claims[owner]
            if not claim or claim & DISPUTED:
                return 1
            layout, certain = claim & LAYOUT_MASK, not claim & INFERRED
        waits, elements = False, 1
        for start, stride, count, slots in self._layouts[layout]:
            room = (size - start) // stride if size > start else 0
            for element in range(min(count, room) if count else room) if slots else ():
                elements += 1
                for offset, reference in slots:
                    waits |= self._follow(owner, address + start + element * stride + offset, reference, certain)
        if waits:
            self._waiting.append(owner)
        return elements

    def _follow(self, owner: int, place: int, reference: int, certain: bool) -> bool:
        """Follow one pointer; return whether it waits for an answer."""
        value = self._memory.word(place)
        index = self._blocks.find(value) if value else -1
        if index < 0 or index == owner or self._blocks.state(index) != State.IN_USE:
            return False
        offset = value - self._blocks.address(index) if value is not None else 0
        if offset >= FARTHEST:
            return False
        claim = self._claims[index]
        rule = self._rule((Question.RULE << 32 | reference, offset, self._blocks.size(index)))
        if rule == UNKNOWN:
            return True
        if rule == DEFERRED:
            self._defer((reference, offset, self._blocks.size(index)), owner, place, index)
        elif rule != NO_CLAIM and not claim:
            self._claim(index, rule, not certain, owner)
        elif rule != NO_CLAIM and certain and not claim & (INFERRED | DISPUTED):
            return self._compare(index, claim, rule, reference, offset)
        return False

    def _compare(self, index: int, claim: int, rule: int, reference: int, offset: int) -> bool:
        """Compare a certain claim of a block with another pointer's rule; return whether that waits
        for an answer."""
        layout = claim & LAYOUT_MASK
        if rule & LAYOUT_MASK == layout or rule >> LEVEL_SHIFT >= Level.BASE:
            return False
        agrees = self._rule((Question.AGREES << 32 | reference, offset, layout))
        if agrees == 0:
            self._claims[index] = DISPUTED
            self._disputes.add(index)
        return agrees == UNKNOWN

    def _rule(self, key: Key) -> int:
        rule: Optional[int] = self._rules.get(key)
        if rule is None:
            if len(self._rules) >= MOST_RULES:
                return NO_CLAIM if key[0] >> 32 == Question.RULE else 1
            self._rules[key] = rule = UNKNOWN
            self._asked.append(key)
        return rule

    def _defer(self, key: Key, owner: int, place: int, index: int) -> None:
        count, rows = self._deferred.setdefault(key, ([0], array("Q")))
        count[0] += 1
        if count[0] <= MOST_POINTERS:
            rows.extend((owner, place, index))
