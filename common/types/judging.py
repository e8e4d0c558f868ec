"""Judges pointers that alone do not say what they refer to: void pointers, members of unions,
pointers to arrays, and pointers to the first part of several types.

The pointers of one member are judged together, as a population. If all blocks can be one type only,
they are. If they differ, a word of their owner that separates them is looked for: a tag, or a
pointer to a table of functions; or the owner's own origin, such as one of several hash tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Optional

from findleaks.engine.type_spread import LEVEL_SHIFT, NO_CLAIM, ROOT, Level, Pointers
from findleaks.types.content import Content, Match
from findleaks.types.heap import HeapView
from findleaks.types.layouts import Layouts, Sort, Spec
from findleaks.types.rules import Candidate, Rules
from findleaks.value_classes import NamedTuple

# Blocks with which all candidates are compared; the rest only with those that fit some.
SAMPLE = 96
LEAST_PART = 0.04  # Part of the sample that a candidate must fit.
PURE = 0.97  # Part of the votes in one group that must agree.
NEAR = 64  # Bytes around a pointer in which a tag is looked for.
MOST_GROUPS = 24  # Values that a tag has at most.
CHAIN = 64  # Owners that are followed to find the one that a chain of equal blocks begins with.


class Decision(NamedTuple):
    """The result: the engine's answer for all pointers of a rule, or claims of single blocks:
    block, candidate, owner."""

    answer: Optional[int] = None
    claims: Sequence[tuple[int, Candidate, int]] = ()


class Row(NamedTuple):
    """A pointer: its owner (see ROOT), its address, and the block that it refers to."""

    owner: int
    place: int
    block: int


class Judge:
    """Decides on deferred pointers."""

    def __init__(self, heap: HeapView, layouts: Layouts, rules: Rules, content: Content, origins: Callable[[], Sequence[int]]) -> None:
        self._heap, self._layouts, self._rules, self._content, self._origins = heap, layouts, rules, content, origins

    def judge(self, found: Pointers, certain: bool) -> Decision:
        """Decide on pointers. `certain`: only arrays with evidence, which are certain."""
        candidates = self._rules.candidates(found.reference, found.offset, found.size)
        rows = [Row(*found.rows[at : at + 3]) for at in range(0, len(found.rows), 3)]
        untyped = list({row.block: row for row in rows if not self._heap.claims[row.block]}.values())
        if not untyped:
            return Decision()
        arrays = self._arrays([one for one in candidates if one.level.is_certain], untyped)
        if certain or arrays.claims:
            return arrays
        typed = Counter(self._heap.layout(row.block) for row in rows if self._heap.layout(row.block))
        candidates = self._with_typed(candidates, typed, found)
        candidates = self._pruned(candidates, untyped)
        if not candidates:
            return Decision(NO_CLAIM) if len(untyped) >= 8 else Decision()
        sample = _sample(untyped)
        votes = self._votes(candidates, sample)
        every = Counter(one.spec for one in votes.values() if one is not None)
        for layout, count in typed.items():
            every[self._layouts.specs[layout]] += count
        top = _winner(every)
        best = next((one for one in candidates if one.spec == top), None)
        if best is not None and self._fits_all(best, sample):
            if found.total <= len(rows) or len(untyped) >= SAMPLE:
                return Decision(self._rules.claim(best))
            return Decision(claims=[(row.block, best, row.owner) for row in untyped])
        return Decision(claims=list(self._by_groups(candidates, untyped, votes, rows)))

    def _arrays(self, candidates: Sequence[Candidate], rows: Sequence[Row]) -> Decision:
        """Claim arrays whose elements all fit, if some element after the first one has a
        pointer."""
        claims: dict[int, tuple[int, Candidate, int]] = {}
        for one in candidates:
            left = [row for row in rows if row.block not in claims]
            for row, found in zip(left, self._content.match(one.spec, [row.block for row in left])):
                if self._is_array(one, found, row.block):
                    claims[row.block] = (row.block, one, row.owner)
        return Decision(claims=list(claims.values()))

    def _is_array(self, one: Candidate, found: Match, block: int) -> bool:
        """Whether all elements fit, and one after the first has a pointer."""
        if not found.fits or not found.strong + found.weak:
            return False
        bare = self._layouts.table.bare(one.spec.type)
        if not one.spec.many or self._is_pointer(bare):
            return True
        first = self._content.match(one.spec._replace(many=False), [block])[0]
        return found.strong + found.weak > first.strong + first.weak

    def _is_pointer(self, bare: int) -> bool:
        return not self._layouts.table.first_field[bare + 1] - self._layouts.table.first_field[bare]

    def _with_typed(self, candidates: Sequence[Candidate], typed: Counter[int], found: Pointers) -> Sequence[Candidate]:
        """Add the types of blocks that other such pointers refer to."""
        known = {one.spec for one in candidates}
        level = Level.LEARNED if self._layouts.references[found.reference].sort == Sort.ANY else Level.BASE
        more = [Candidate(self._layouts.specs[layout], level) for layout, _ in typed.most_common(4)]
        return [*candidates, *(one for one in more if one.spec not in known)]

    def _pruned(self, candidates: Sequence[Candidate], rows: Sequence[Row]) -> Sequence[Candidate]:
        """Return the candidates that some of the blocks fit."""
        sample = [row.block for row in _sample(rows)]
        return [one for one in candidates if sum(match.fits for match in self._match(one, sample)) > LEAST_PART * len(sample)]

    def _match(self, one: Candidate, blocks: Sequence[int]) -> list[Match]:
        return self._content.match(one.spec, blocks)

    def _fits_all(self, one: Candidate, rows: Sequence[Row]) -> bool:
        return sum(match.fits for match in self._match(one, [row.block for row in rows])) >= PURE * len(rows)

    def _votes(self, candidates: Sequence[Candidate], rows: Sequence[Row]) -> dict[int, Optional[Candidate]]:
        """Return, for each block, the candidate that fits it best; None if several do, or nothing
        speaks for it."""
        blocks = [row.block for row in rows]
        matches = [self._match(one, blocks) for one in candidates]
        return {block: self._best(candidates, [of[at] for of in matches], block) for at, block in enumerate(blocks)}

    def _best(self, candidates: Sequence[Candidate], matches: Sequence[Match], block: int) -> Optional[Candidate]:
        ranked = [(found.strong, found.weak, one) for one, found in zip(candidates, matches) if found.fits]
        if not ranked:
            return None
        best = max(ranked, key=lambda item: item[:2])
        equal = [one for strong, weak, one in ranked if (strong, weak) == best[:2]]
        if len(equal) == 1:
            return equal[0] if best[0] + best[1] or len(candidates) == 1 else None
        return self._by_tail(equal, block) if all(one.level == Level.BASE for one in equal) else None

    def _by_tail(self, equal: Sequence[Candidate], block: int) -> Candidate:
        """Return the smallest type behind which the block has only zeros, of types that begin
        alike."""
        table, start = self._layouts.table, self._heap.blocks.address(block)
        order = sorted(equal, key=lambda one: table.sizes[table.bare(one.spec.type)])
        most = table.sizes[table.bare(order[-1].spec.type)]
        for one in order:
            own = table.sizes[table.bare(one.spec.type)]
            if not self._heap.bytes(start + own, most - own).strip(b"\0"):
                return one
        return order[-1]

    def _by_groups(
        self,
        candidates: Sequence[Candidate],
        untyped: Sequence[Row],
        votes: dict[int, Optional[Candidate]],
        rows: Sequence[Row],
    ) -> Iterator[tuple[int, Candidate, int]]:
        """Yield claims by the groups of the word that separates the types best; without one, those
        of blocks that only one type fits."""
        known: dict[int, Optional[Spec]] = {block: one.spec if one is not None else None for block, one in votes.items()}
        for row in rows:
            layout = self._heap.layout(row.block)
            if layout:
                known[row.block] = self._layouts.specs[layout]
        groups = self._separating(rows, known)
        chosen: dict[int, Candidate] = {}
        by_top: dict[Optional[Spec], list[int]] = {}
        for row in untyped if groups is not None else ():
            top = _winner(groups[1].get(groups[0](row), Counter())) if groups is not None else None
            by_top.setdefault(top, []).append(row.block)
        for one in candidates:
            blocks = by_top.get(one.spec, [])
            chosen.update((block, one) for block, found in zip(blocks, self._match(one, blocks)) if found.fits)
        votes = {**self._votes(candidates, [row for row in untyped if row.block not in chosen and row.block not in votes]), **votes}
        for row in untyped:
            mine = chosen.get(row.block) or votes.get(row.block)
            if mine is not None:
                yield row.block, mine, row.owner

    def _separating(
        self, rows: Sequence[Row], known: dict[int, Optional[Spec]]
    ) -> Optional[tuple[Callable[[Row], Hashable], dict[Hashable, Counter[Spec]]]]:
        """Return the feature with the fewest values that separates the votes, and its groups."""
        voted = _sample([row for row in rows if known.get(row.block) is not None])
        if len({known[row.block] for row in voted}) < 2:
            return None
        best = None
        for feature, most in self._features():
            groups: dict[Hashable, Counter[Spec]] = {}
            for row in voted:
                spec = known[row.block]
                if spec is not None:
                    groups.setdefault(feature(row), Counter())[spec] += 1
            pure = sum(max(one.values()) for one in groups.values())
            if 1 < len(groups) <= most and pure >= PURE * len(voted) and (best is None or len(groups) < len(best[1])):
                best = feature, groups
        return best

    def _features(self) -> Iterator[tuple[Callable[[Row], Hashable], int]]:
        """Yield features of pointers that may separate types, and the most values that each has."""
        word = self._heap.arch.word
        for at in range(-NEAR, NEAR + 1, word):
            if at:
                yield partial(self._static, at), MOST_GROUPS
        for at in range(-NEAR, NEAR + 1, 4):
            yield partial(self._near, at, 4), MOST_GROUPS
        for at in range(-2 * word, 2 * word):
            yield partial(self._near, at, 1), MOST_GROUPS
        yield self._beginning, 1 << 12

    def _near(self, at: int, size: int, row: Row) -> Hashable:
        """Return the bytes at an offset from the pointer, in the same block; None beyond it."""
        if row.owner < ROOT:
            start = self._heap.blocks.address(row.owner)
            if not start <= row.place + at <= start + self._heap.blocks.size(row.owner) - size:
                return None
        return self._heap.bytes(row.place + at, size)

    def _static(self, at: int, row: Row) -> Hashable:
        """Return the word at an offset from the pointer, if it refers to memory outside of
        blocks."""
        data = self._near(at, self._heap.arch.word, row)
        value = int.from_bytes(data, self._heap.arch.byteorder) if isinstance(data, bytes) else 0
        return value if value > 1 << 16 and self._heap.is_mapped(value) and self._heap.place(value) is None else None

    def _beginning(self, row: Row) -> Hashable:
        """Return the owner that the chain of equal owners begins with: a table, a list's head."""
        origins, claims, at = self._origins(), self._heap.claims, row.owner
        for _ in range(CHAIN):
            if at >= ROOT:
                break
            before = origins[at]
            if before < ROOT and claims[before] >> LEVEL_SHIFT and self._heap.layout(before) == self._heap.layout(at):
                at = before
                continue
            return before
        return at


def _sample(rows: Sequence[Row]) -> Sequence[Row]:
    """Return SAMPLE of the rows, evenly."""
    step = max(len(rows) // SAMPLE, 1)
    return rows[::step][:SAMPLE]


def _winner(votes: Counter[Spec]) -> Optional[Spec]:
    """Return the spec that nearly all votes are for."""
    total = sum(votes.values())
    for spec, count in votes.most_common(1):
        return spec if count >= PURE * total else None
    return None
