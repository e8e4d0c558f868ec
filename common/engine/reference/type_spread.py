"""Spread types over blocks, in pure Python."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Optional, Union

from findleaks.engine.reference.blocks import PureBlocks
from findleaks.engine.reference.pieces import Pieces
from findleaks.engine.reference.type_classes import group_by_classes
from findleaks.engine.reference.type_decisions import Chooser, Decision, options_of
from findleaks.engine.reference.type_features import separate, values_of
from findleaks.engine.reference.type_layouts import Elements, Roots, Sample, find_confirming, parse_layout, sample_layouts
from findleaks.engine.reference.type_match import WRONG, is_text
from findleaks.engine.reference.type_pools import Pools
from findleaks.engine.reference.type_used import is_empty, is_too_far, limits_of, requested_count, used_size
from findleaks.engine.terms import State
from findleaks.engine.type_spread import (
    DECISION,
    DEFERRED,
    DISPUTED,
    INFERRED,
    LAYOUT_MASK,
    LEVEL_MASK,
    LEVEL_SHIFT,
    MOST_LAYOUTS,
    MOST_RULES,
    NO_CLAIM,
    NO_FEATURE,
    NO_ORIGIN,
    QUESTION,
    ROOT,
    UNKNOWN,
    Choosing,
    Feature,
    Flag,
    Level,
    Pointers,
    Question,
)
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import range_at

Key = tuple[int, int, int]


class PureTypeSpread:
    """Implements type_spread.TypeSpread."""

    def __init__(self, blocks: PureBlocks) -> None:
        self.blocks, self._arch = blocks, blocks.arch
        self._claims = array("I", bytes(4 * len(blocks)))
        self._origins = array("I", [NO_ORIGIN]) * len(blocks)
        # By block: the bytes that are in use, and whether it is a table.
        self._limits: dict[int, tuple[int, bool]] = {}
        self.memory = Pieces((), blocks.arch)
        self.layouts: list[list[Elements]] = [[]]  # By layout.
        self.choices: list[tuple[int, ...]] = [()]
        self.mapped: Sequence[Range] = ()
        self.code: Sequence[Range] = ()
        self.instructions: Sequence[Range] = ()
        self.flags = bytearray()
        self.claimed = self.followed = 0
        self._confirms = False
        self._decisions: list[Decision] = []
        self.owner_words: list[tuple[int, int, int]] = []  # Layout, offset, and size in bytes.
        self.roots, self.pools = Roots(), Pools()
        self._rules: dict[Key, int] = {}
        self._asked: list[Key] = []
        self._queue: deque[int] = deque()
        # Blocks with doubtful elements, if `_doubts` is set; `_doubtful`: these are being visited.
        self._doubtful_blocks: list[int] = []
        self._doubtful_queue: deque[int] = deque()
        self._doubts = self._doubtful = False
        self._deferred: dict[Key, tuple[Sample, Sample]] = {}  # To untyped, and to typed blocks.
        self._disputes: set[int] = set()
        self._visits: Optional[Iterator[bool]] = None  # Visits that wait for an answer.

    def use(self, pieces: Sequence[Piece]) -> None:
        self.memory = Pieces(pieces, self._arch)

    def set_memory(self, mapped: Sequence[Range], code: Sequence[Range], instructions: Sequence[Range] = ()) -> None:
        self.mapped, self.code, self.instructions = mapped, code, instructions

    def set_flags(self, flags: bytearray) -> None:
        self.flags = flags

    def add_layout(self, groups: Sequence[int], slots: Sequence[int], checks: Sequence[int] = ()) -> int:
        made = parse_layout(groups, slots, checks)
        if made is None or len(self.layouts) > MOST_LAYOUTS:
            raise ValueError("no such layout")
        self.layouts.append(made)
        return len(self.layouts) - 1

    def _check(self, layouts: Iterable[int]) -> None:
        """Raise ValueError if a layout does not exist."""
        if any(layout >= len(self.layouts) for layout in layouts):
            raise ValueError("no such layout")

    def add_choices(self, layouts: Sequence[int]) -> int:
        self._check(layouts)
        self.choices.append(tuple(layouts))
        return len(self.choices) - 1

    def add_roots(self, addresses: array[int], sizes: array[int], layouts: array[int]) -> None:
        self._check(layouts)
        self._queue.extend(range(ROOT + len(self.roots), ROOT + len(self.roots) + len(layouts)))
        self.roots.extend(zip(addresses, sizes, layouts))

    def seed(self, index: int, layout: int, level: Level, inferred: bool, origin: int = NO_ORIGIN) -> bool:
        if self._claims[index] or self.blocks.state(index) != State.IN_USE:
            return False
        self._claim(index, layout | level << LEVEL_SHIFT, inferred, origin)
        return True

    def seed_all(self, indices: array[int], layout: int, level: Level) -> None:
        for index in indices:
            self.seed(index, layout, level, True)

    def relabel(self, indices: array[int], layout: int) -> None:
        self._check((layout,))
        for index in indices:
            if self._claims[index] & LAYOUT_MASK:
                self._claims[index] = self._claims[index] & ~LAYOUT_MASK | layout
                self.claimed += 1
                self._queue.append(index)

    def seed_words(self, words: array[int], layouts: array[int], least: array[int], level: Level = Level.SEED) -> None:
        for index in range(len(self.blocks)):
            start, size = self.blocks.address(index), self.blocks.size(index)
            word = self.memory.word(start) if size >= self._arch.word and start % self._arch.word == 0 else None
            at = bisect_right(words, word) - 1 if word is not None else -1
            if at >= 0 and words[at] == word and size >= least[at]:
                self.seed(index, layouts[at], level, False)

    def run(self, budget: int) -> bool:
        if self._visits is None:
            self._visits = self._visit_all()
        if next(self._visits, True):
            self._visits = None  # At the end.
        return self._visits is None

    def questions(self) -> array[int]:
        found = array("Q", [word for key in self._asked for word in key])
        self._asked.clear()
        return found

    def answer(self, questions: array[int], answers: array[int]) -> None:
        for at, value in enumerate(answers):
            first, second, third = questions[QUESTION * at : QUESTION * (at + 1)]
            self._rules[first, second, third] = value

    def take_deferred(self) -> list[Pointers]:
        rows = [(key, *samples) for key, samples in self._deferred.items()]
        self._deferred.clear()
        return [Pointers(key[0] & 0xFFFFFFFF, key[1], key[2], untyped.count, untyped.rows, typed.rows) for key, untyped, typed in rows]

    def revisit(self, references: Sequence[int]) -> None:
        wanted = set(references)
        has = [any(not wanted or reference in wanted for one in groups for _, reference in one.slots) for groups in self.layouts]
        self._queue.extend(ROOT + number for number, (_, _, layout) in enumerate(self.roots) if has[layout])
        self._queue.extend(index for index, claim in enumerate(self._claims) if has[claim & LAYOUT_MASK])

    def queue_doubtful(self) -> None:
        if not self._doubts:
            has = [any(one.slots and not one.number for one in groups) for groups in self.layouts]
            self._doubtful_blocks.extend(index for index, claim in enumerate(self._claims) if has[claim & LAYOUT_MASK])
            self._doubts = True
        self._doubtful_queue.extend(self._doubtful_blocks)
        self._doubtful_blocks.clear()

    def confirm(self) -> None:
        references = find_confirming(self._claims, self._rules)
        self._confirms = True
        if references:
            self.revisit(sorted(references))

    def set_pools(self, indices: array[int]) -> None:
        self.pools.blocks.update(indices)
        for index in indices:
            self._claims[index] = DISPUTED

    def take_pool_pointers(self) -> array[int]:
        return self.pools.take()

    def add_decision(self, options: Sequence[int], feature: int = NO_FEATURE, keys: Sequence[int] = (), claims: Sequence[int] = ()) -> int:
        self._check(claim & LAYOUT_MASK for claim in claims)
        self._decisions.append(Decision(options_of(self, options), feature, dict(zip(keys, claims))))
        return len(self._decisions) - 1

    def choose(self, options: Sequence[int], how: Choosing, indices: array[int]) -> Optional[array[int]]:
        rows, choosers = options_of(self, options), [Chooser(self, index) for index in indices]
        found = array("I", [one.choose(rows, how) for one in choosers])
        return None if any(one.asked for one in choosers) else found

    def fits(self, layouts: Sequence[int], indices: array[int]) -> Optional[array[int]]:
        choosers = [Chooser(self, index) for index in indices]
        masks = array("Q", [sum((not one.compare(layout)[WRONG]) << at for at, layout in enumerate(layouts)) for one in choosers])
        return None if any(one.asked for one in choosers) else masks

    def feature(self, feature: int, rows: array[int]) -> array[int]:
        return values_of(self, feature, rows)

    def add_owner_word(self, layout: int, offset: int, size: int) -> int:
        if layout >= len(self.layouts) or size not in (1, 2, 4, self._arch.word) or len(self.owner_words) > 255:
            raise ValueError("no such layout or size, or too many features")
        self.owner_words.append((layout, offset, size))
        return Feature.OWNER_WORD << 8 | len(self.owner_words) - 1

    def separate(self, rows: array[int], labels: array[int]) -> int:
        return separate(self, rows, labels)

    def find_untyped(self, kinds: Union[bytes, memoryview], wanted: int, most: int) -> array[int]:
        view = memoryview(kinds).cast("B")
        left = (index for index, claim in enumerate(self._claims) if not claim and wanted >> view[index] & 1)
        return array("I", islice((index for index in left if self.blocks.state(index) == State.IN_USE), most))

    def with_layout(self, layout: int, most: int) -> array[int]:
        return array("I", islice((index for index, claim in enumerate(self._claims) if claim & LAYOUT_MASK == layout), most))

    def sample(self, most: int) -> array[int]:
        return sample_layouts(self._claims, most)

    def group_by_classes(self, indices: array[int], words: int) -> tuple[array[int], array[int]]:
        return group_by_classes(self, indices, words)

    def begins_with_text(self, address: int, size: int) -> bool:
        """Return whether the first word of `size` bytes of memory is text. A valid
        address is not text, even if all its bytes are characters, as in "@ZnUUU"."""
        data = self.memory.bytes(address, self._arch.word) if size >= self._arch.word else None
        return data is not None and is_text(data) and range_at(self.mapped, self._arch.unpack(data)[0]) is None

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
                    self._limits.pop(index, None)
                    fallen += 1
            if fallen == before:
                return fallen

    def claims(self) -> array[int]:
        return self._claims

    def origins(self) -> array[int]:
        return self._origins

    def _claim_target(self, reference: int, place: int, index: int, claim: int, inferred: bool, owner: int) -> None:
        """Claim the block that a pointer refers to, and note which part of it is in use."""
        self._claim(index, claim, inferred, owner)
        flags = limits_of(self, reference, claim)
        if flags:
            self._limits[index] = used_size(self, reference, place, index, claim), bool(flags & Flag.TABLE)

    def _claim_if_fitting(self, reference: int, place: int, index: int, claim: int, inferred: bool, owner: int) -> bool:
        """Claim the block that a pointer refers to. In a doubtful element, the pointer must fit the
        block's content (Chooser.may_claim). Return whether an answer is missing."""
        if self._doubtful:
            chooser = Chooser(self, index)
            may_claim, is_certain = chooser.may_claim(claim, used_size(self, reference, place, index, claim))
            if chooser.asked or not may_claim:
                return chooser.asked
            inferred = inferred or not is_certain
        self._claim_target(reference, place, index, claim, inferred, owner)
        return False

    def _claim(self, index: int, claim: int, inferred: bool, origin: int) -> None:
        level = claim >> LEVEL_SHIFT & LEVEL_MASK
        self._limits.pop(index, None)
        self.claimed += 1
        self._claims[index] = claim | (INFERRED if inferred or level >= Level.BASE else 0)
        self._origins[index] = origin
        self._queue.append(index)

    def _visit_all(self) -> Iterator[bool]:
        """Follow the pointers of typed memory. Yield whenever an answer is missing; the same
        pointer is then followed again."""
        while self._queue or self._doubtful_queue:
            self._doubtful = not self._queue
            owner = (self._queue or self._doubtful_queue).popleft()
            claim = self._claims[owner] if owner < ROOT else 0
            if owner < ROOT and (not claim or claim & DISPUTED):
                continue
            certain = not claim & INFERRED
            for place, reference in self._pointers(owner):
                if not place:
                    yield False  # The answer to UNREQUESTED is missing.
                    continue
                while self._follow(owner, place, reference, certain):
                    yield False
                self.followed += bool(self.memory.word(place))

    def _pointers(self, owner: int) -> Iterator[tuple[int, int]]:
        """Yield the places of pointers in typed memory, with their references."""
        if owner >= ROOT:
            address, size, layout = self.roots[owner - ROOT]
        else:
            address, size, layout = self.blocks.address(owner), self.blocks.size(owner), self._claims[owner] & LAYOUT_MASK
        used, is_table = self._limits.get(owner, (size, False))
        size = min(size, used)
        for one in self.layouts[layout]:
            bases = one.bases(size) if one.slots else range(0)
            requested = requested_count(self, one, size, owner >= ROOT or owner in self._limits)
            while requested == UNKNOWN:
                yield 0, 0  # _visit_all waits for the answer.
                requested = requested_count(self, one, size, False)
            first, end = (requested, len(bases)) if self._doubtful else (0, requested)
            for number, base in enumerate(bases[first:end], first):
                if is_table and is_empty(self, address, size, one.stride, number):
                    continue
                for offset, reference in one.slots:
                    yield address + base + offset, reference
            if self._doubts and not self._doubtful and requested < len(bases):
                self._doubtful_blocks.append(owner)

    def _follow(self, owner: int, place: int, reference: int, certain: bool) -> bool:
        """Follow one pointer. Return whether an answer is missing."""
        value = self.memory.word(place)
        index = self.used_block(value) if value else -1
        if index < 0 or index == owner:
            return False
        if value is not None and index in self.pools.blocks:
            if certain and not self._doubtful:
                self.pools.note(owner, place, value, reference)
            return False
        offset = value - self.blocks.address(index) if value is not None else 0
        if is_too_far(self, reference, offset):
            return False
        claim = self._claims[index]
        rule = self.rule((Question.RULE << 32 | reference, offset, self.blocks.size(index)))
        if rule == UNKNOWN:
            return True
        if rule == DEFERRED:
            self._defer(reference, offset, owner, place, index)
        elif rule & DECISION:
            return self._follow_decision(self._decisions[rule & LAYOUT_MASK], reference, offset, owner, place, index, certain)
        elif rule != NO_CLAIM and not claim and not self.pools.may_be_stale(rule, owner, self.used_block(place)):
            return self._claim_if_fitting(reference, place, index, rule, not certain, owner)
        elif rule != NO_CLAIM and certain and not self._doubtful and not claim & DISPUTED:
            if not claim & INFERRED:
                return self._compare(index, claim, rule, reference, offset)
            return self._confirms and self._confirm(index, claim, rule, reference, offset, owner)
        return False

    def _confirm(self, index: int, claim: int, rule: int, reference: int, offset: int, owner: int) -> bool:
        """Make an inferred claim certain, or dispute it. Return whether an answer is missing."""
        if index in self._limits or limits_of(self, reference, rule) or rule >> LEVEL_SHIFT & LEVEL_MASK >= Level.BASE:
            return False
        if (rule ^ claim) & LAYOUT_MASK:
            return self._compare(index, claim, rule, reference, offset)
        self._claim(index, rule, False, owner)
        return False

    def _follow_decision(self, decision: Decision, reference: int, offset: int, owner: int, place: int, index: int, certain: bool) -> bool:
        """Give a block the claim that a decision chooses. Return whether an answer is missing."""
        chooser = Chooser(self, index)
        claim = 0 if self._claims[index] else chooser.decide(decision, reference, owner, place, index)
        if chooser.asked:
            return True
        if claim:
            self._claim_target(reference, place, index, claim, not certain, owner)
        else:
            self._defer(reference, offset, owner, place, index)
        return False

    def _compare(self, index: int, claim: int, rule: int, reference: int, offset: int) -> bool:
        """Compare a certain claim of a block with the rule of another pointer. Return whether an
        answer is missing."""
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
        """Return the offset in the element if the layout is an array of equal elements; otherwise
        the offset itself."""
        groups = self.layouts[layout]
        is_array = len(groups) == 1 and groups[0].start == groups[0].number == 0
        return offset % groups[0].stride if is_array else offset

    def rule(self, key: Key) -> int:
        """Return the answer to a question. If the question is new, ask it."""
        rule: Optional[int] = self._rules.get(key)
        if rule is None:
            if len(self._rules) >= MOST_RULES:
                return int(key[0] >> 32 == Question.AGREES)
            self._rules[key] = rule = UNKNOWN
            self._asked.append(key)
        return rule

    def _defer(self, reference: int, offset: int, owner: int, place: int, index: int) -> None:
        claim = self._claims[index]
        if not claim & DISPUTED:
            key = Question.RULE << 32 | reference, offset, self.blocks.size(index)
            self._deferred.setdefault(key, (Sample(), Sample()))[bool(claim)].add(owner, place, index)
