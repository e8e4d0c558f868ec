"""The spread of types over blocks, in pure Python."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Optional

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
    LEAST_TEXT,
    LEVEL_SHIFT,
    MOST_LAYOUTS,
    MOST_POINTERS,
    MOST_RULES,
    MOST_WORDS,
    NO_CLAIM,
    NO_ORIGIN,
    QUESTION,
    ROOT,
    SMALL_NUMBER,
    UNKNOWN,
    Flag,
    Level,
    Pointers,
    Question,
    Role,
    WordClass,
)
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import range_at

Key = tuple[int, int, int]
WRONG, STRONG, WEAK = 0, 1, 2  # Also the places of their counts.
NEUTRAL = -1  # A word that says nothing.


class Elements(NamedTuple):
    """Equal elements of a layout, with slots (offset, reference) and checks (offset, role)."""

    start: int
    stride: int
    number: int
    slots: Sequence[tuple[int, int]]
    checks: Sequence[tuple[int, int]]

    def bases(self, size: int) -> range:
        """Return the offsets of the elements in memory of `size` bytes."""
        room = (size - self.start) // self.stride if size > self.start else 0
        count = min(self.number, room) if self.number else room
        return range(self.start, self.start + count * self.stride, self.stride)


class Matching:
    """One comparison of blocks with layouts. `asked`: an answer is missing, so it is not valid."""

    def __init__(self, spread: PureTypeSpread, flags: bytearray) -> None:
        self._spread, self._flags = spread, flags
        self.asked = False

    def compare(self, layout: int, start: int, size: int, depth: int, counts: list[int]) -> None:
        """Count the words that contradict a layout, and those that fit well, or possibly."""
        spread, seen = self._spread, 0
        for one in spread.layouts[layout]:
            for base in one.bases(size):
                words = [(offset, Role.REFERENCE, reference) for offset, reference in one.slots]
                for offset, role, reference in [*words, *((offset, role, 0) for offset, role in one.checks)]:
                    value = spread.memory.word(start + base + offset)
                    if value:
                        found = self._pointer(reference, value, depth) if role == Role.REFERENCE else self._word(role, value)
                        if found != NEUTRAL:
                            counts[found] += 1
                seen += len(one.slots) + len(one.checks)
                if seen > MOST_WORDS:
                    return

    def _pointer(self, reference: int, value: int, depth: int) -> int:
        spread = self._spread
        flags = self._flags[reference] if reference < len(self._flags) else Flag.ANYTHING
        if flags & Flag.ANYTHING:
            return NEUTRAL
        index = spread.used_block(value)
        if index < 0:
            return NEUTRAL if flags & Flag.OPTIONAL or range_at(spread.mapped, value) is not None else WRONG
        offset, layout = value - spread.blocks.address(index), spread.claims()[index] & LAYOUT_MASK
        if offset >= FARTHEST:
            return NEUTRAL
        if layout:
            agrees = self._answer(Question.AGREES, reference, spread.in_element(layout, offset), layout)
            if agrees == UNKNOWN:
                return NEUTRAL
            return (NEUTRAL if flags & Flag.NUMBER else WRONG) if not agrees else (STRONG if agrees == 2 else WEAK)
        if self._is_possible(reference, offset, index, depth):
            return WEAK
        return NEUTRAL if flags & Flag.OPTIONAL else WRONG

    def _is_possible(self, reference: int, offset: int, index: int, depth: int) -> bool:
        spread = self._spread
        start, size = spread.blocks.address(index), spread.blocks.size(index)
        number = self._answer(Question.POSSIBLE, reference, offset, size)
        if number == UNKNOWN or not depth:
            return number == UNKNOWN or bool(spread.choices[number])
        for layout in spread.choices[number]:
            counts = [0, 0, 0]
            self.compare(layout, start, size, depth - 1, counts)
            if not counts[WRONG]:
                return True
        return False

    def _word(self, role: int, value: int) -> int:
        spread = self._spread
        if role == Role.CODE:
            return WRONG if range_at(spread.code, value) is None else WEAK
        index = spread.used_block(value)
        begins = index >= 0 and spread.blocks.address(index) == value
        if role == Role.PLAIN:
            return WRONG if begins else NEUTRAL
        if range_at(spread.mapped, value) is None:
            return WRONG
        return NEUTRAL if not begins else WRONG if spread.claims()[index] & LAYOUT_MASK else WEAK

    def _answer(self, question: Question, reference: int, offset: int, third: int) -> int:
        found = self._spread.rule((question << 32 | reference, offset, third))
        self.asked |= found == UNKNOWN
        return found


class PureTypeSpread:
    """See type_spread.TypeSpread."""

    def __init__(self, blocks: PureBlocks) -> None:
        self.blocks, self._arch = blocks, blocks.arch
        self._claims = array("I", bytes(4 * len(blocks)))
        self._origins = array("I", [NO_ORIGIN]) * len(blocks)
        self.memory = Pieces((), blocks.arch)
        self.layouts: list[list[Elements]] = [[]]  # By layout.
        self.choices: list[tuple[int, ...]] = [()]
        self.mapped: Sequence[Range] = ()
        self.code: Sequence[Range] = ()
        self._roots: list[tuple[int, int, int]] = []
        self._rules: dict[Key, int] = {}
        self._asked: list[Key] = []
        self._queue: deque[int] = deque()
        self._waiting: list[int] = []
        self._deferred: dict[Key, tuple[list[int], array[int]]] = {}
        self._disputes: set[int] = set()

    def use(self, pieces: Sequence[Piece]) -> None:
        self.memory = Pieces(pieces, self._arch)

    def set_memory(self, mapped: Sequence[Range], code: Sequence[Range]) -> None:
        self.mapped, self.code = mapped, code

    def add_layout(self, groups: Sequence[int], slots: Sequence[int], checks: Sequence[int] = ()) -> int:
        pairs, words = list(zip(slots[0::2], slots[1::2])), list(zip(checks[0::2], checks[1::2]))
        rows = [groups[at : at + GROUP] for at in range(0, len(groups), GROUP)]
        sound = all(row[1] and row[3] <= row[4] <= len(pairs) and row[5] <= row[6] <= len(words) for row in rows)
        if len(self.layouts) > MOST_LAYOUTS or not sound:
            raise ValueError("no such layout")
        self.layouts.append([Elements(row[0], row[1], row[2], pairs[row[3] : row[4]], words[row[5] : row[6]]) for row in rows])
        return len(self.layouts) - 1

    def add_choices(self, layouts: Sequence[int]) -> int:
        if any(layout >= len(self.layouts) for layout in layouts):
            raise ValueError("no such layout")
        self.choices.append(tuple(layouts))
        return len(self.choices) - 1

    def add_root(self, address: int, size: int, layout: int) -> int:
        self._roots.append((address, size, layout))
        self._queue.append(ROOT + len(self._roots) - 1)
        return len(self._roots) - 1

    def seed(self, index: int, layout: int, level: Level, inferred: bool, origin: int = NO_ORIGIN) -> bool:
        if self._claims[index] or self.blocks.state(index) != State.IN_USE:
            return False
        self._claim(index, layout | level << LEVEL_SHIFT, inferred, origin)
        return True

    def seed_words(self, words: array[int], layouts: array[int], least: array[int]) -> None:
        for index in range(len(self.blocks)):
            start, size = self.blocks.address(index), self.blocks.size(index)
            word = self.memory.word(start) if size >= self._arch.word and start % self._arch.word == 0 else None
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
        has = [any(not wanted or reference in wanted for one in groups for _, reference in one.slots) for groups in self.layouts]
        self._queue.extend(ROOT + number for number, (_, _, layout) in enumerate(self._roots) if has[layout])
        self._queue.extend(index for index, claim in enumerate(self._claims) if has[claim & LAYOUT_MASK] and not claim & DISPUTED)

    def match(self, layout: int, indices: array[int], flags: bytearray) -> Optional[array[int]]:
        matching = Matching(self, flags)
        found = array("I")
        for index in indices:
            counts = [0, 0, 0]
            matching.compare(layout, self.blocks.address(index), self.blocks.size(index), 1, counts)
            found.extend(counts)
        return None if matching.asked else found

    def classes(self, indices: array[int], words: int) -> array[int]:
        word, found = self._arch.word, array("Q")
        for index in indices:
            start, size = self.blocks.address(index), self.blocks.size(index)
            for at in range(words):
                data = self.memory.bytes(start + at * word, word) if (at + 1) * word <= size else None
                found.append(WordClass.MISSING if data is None else self._class(data))
        return found

    def _class(self, data: bytes) -> int:
        value = int.from_bytes(data, self._arch.byteorder)
        if value < SMALL_NUMBER:
            return WordClass.SMALL if value else WordClass.ZERO
        index = self.used_block(value)
        if index >= 0:
            offset = value - self.blocks.address(index)
            return WordClass.BLOCK_MIDDLE | offset << 4 if offset else WordClass.BLOCK_START | self.blocks.size(index) << 4
        if range_at(self.mapped, value) is not None:
            return WordClass.STATIC if range_at(self.code, value) is None else WordClass.CODE
        text = data.rstrip(b"\0")
        return WordClass.TEXT if len(text) >= LEAST_TEXT and all(0x20 <= byte < 0x7F for byte in text) else WordClass.NUMBER

    def used_block(self, address: int) -> int:
        """Return the index of the block in use that contains an address, or -1."""
        index = self.blocks.find(address)
        return index if index >= 0 and self.blocks.state(index) == State.IN_USE else -1

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
            address, size = self.blocks.address(owner), self.blocks.size(owner)
            claim = self._claims[owner]
            if not claim or claim & DISPUTED:
                return 1
            layout, certain = claim & LAYOUT_MASK, not claim & INFERRED
        waits, elements = False, 1
        for one in self.layouts[layout]:
            for base in one.bases(size) if one.slots else ():
                elements += 1
                for offset, reference in one.slots:
                    waits |= self._follow(owner, address + base + offset, reference, certain)
        if waits:
            self._waiting.append(owner)
        return elements

    def _follow(self, owner: int, place: int, reference: int, certain: bool) -> bool:
        """Follow one pointer; return whether it waits for an answer."""
        value = self.memory.word(place)
        index = self.used_block(value) if value else -1
        if index < 0 or index == owner:
            return False
        offset = value - self.blocks.address(index) if value is not None else 0
        if offset >= FARTHEST:
            return False
        claim = self._claims[index]
        rule = self.rule((Question.RULE << 32 | reference, offset, self.blocks.size(index)))
        if rule == UNKNOWN:
            return True
        if rule == DEFERRED:
            self._defer((reference, offset, self.blocks.size(index)), owner, place, index)
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
        offset = self.in_element(layout, offset)
        agrees = self.rule((Question.AGREES << 32 | reference, offset, layout))
        if agrees == 0:
            self._claims[index] = DISPUTED
            self._disputes.add(index)
        return agrees == UNKNOWN

    def in_element(self, layout: int, offset: int) -> int:
        """Return the offset in an element of an array, or the offset itself: all elements are
        alike."""
        groups = self.layouts[layout]
        is_array = len(groups) == 1 and groups[0].start == groups[0].number == 0
        return offset % groups[0].stride if is_array else offset

    def rule(self, key: Key) -> int:
        """Return the answer to a question, which is asked if it is new."""
        rule: Optional[int] = self._rules.get(key)
        if rule is None:
            if len(self._rules) >= MOST_RULES:
                return int(key[0] >> 32 == Question.AGREES)
            self._rules[key] = rule = UNKNOWN
            self._asked.append(key)
        return rule

    def _defer(self, key: Key, owner: int, place: int, index: int) -> None:
        count, rows = self._deferred.setdefault(key, ([0], array("Q")))
        count[0] += 1
        if count[0] <= MOST_POINTERS:
            rows.extend((owner, place, index))
