"""Interior references to possible blocks, in pure Python."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.engine.interiors import LOW_BITS, MAX_OFFSET, Row, Rule
from findleaks.engine.reference.blocks import PureBlocks
from findleaks.engine.reference.interior_structures import PureExamination, Recogniser
from findleaks.engine.reference.pieces import Pieces
from findleaks.engine.reference.work import run
from findleaks.engine.terms import NO_BLOCK, Kind, Totals
from findleaks.target.base import Piece, Range


class Noted(NamedTuple):
    """An interior reference: source (-1: a root), index of the edge (-1 for a root), block, offset,
    and the address where it is stored (0: a register)."""

    source: int
    place: int
    target: int
    offset: int
    address: int

    def after_adding(self, before: Sequence[int], offsets: Sequence[int]) -> Noted:
        """Return this reference after edges were added. `before` and `offsets`: the index of each
        block's first edge, before and now."""
        return self if self.source < 0 else self._replace(place=self.place - before[self.source] + offsets[self.source])


class PureInteriors:
    """Interior references; see interiors.Interiors.

    `edges_of` returns a block's edges, as in PureGraph; `edges` are all edges. `interior` has the
    targets of interior references from reachable blocks, and is updated."""

    def __init__(
        self,
        blocks: PureBlocks,
        kinds: bytearray,
        edges: array[int],
        edges_of: Callable[[int], Sequence[int]],
        noted: Sequence[Noted],
        interior: set[int],
    ) -> None:
        self._interior = interior
        self._blocks, self._kinds, self._edges, self._edges_of, self._noted = blocks, kinds, edges, edges_of, noted
        self._read = self._accepted = 0
        self._rows: Counter[tuple[int, int]] = Counter()
        self._last = -1
        self._promoted: set[int] = set()
        self._promoter: Optional[Iterator[None]] = None

    def keys(self, budget: int) -> tuple[array[int], bool]:
        some = self._noted[self._read : self._read + budget]
        self._read += len(some)
        return array("Q", (n.target << 32 | n.offset for n in some if self._matters(n))), self._read >= len(self._noted)

    def _matters(self, noted: Noted) -> bool:
        """Return whether the reference is still interior, comes from a root or from a REACHABLE or
        POSSIBLE block, and refers to a POSSIBLE block."""
        held = noted.source < 0 or self._kinds[noted.source] in (Kind.REACHABLE, Kind.POSSIBLE)
        interior = noted.place < 0 or self._edges[noted.place] & 1
        return bool(held and interior and noted.offset < MAX_OFFSET and self._kinds[noted.target] == Kind.POSSIBLE)

    def count(self, keys: array[int]) -> None:
        for key in keys:
            block, offset = key >> 32, key & MAX_OFFSET
            size = self._blocks.sizes[block]
            for whose in (size, 0):
                if block != self._last:
                    self._rows[whose, 0] += 1
                    self._rows[whose, LOW_BITS] += offset < 2 * self._blocks.arch.word
                self._rows[whose, offset] += 1
            self._last = block

    def rows(self, least: int) -> list[Row]:
        return sorted(Row(*key, blocks) for key, blocks in self._rows.items() if blocks >= least)

    def count_held(self, sizes: Sequence[int], counts: array[int], first: int, budget: int) -> int:
        number = {size: at for at, size in enumerate(sizes)}
        last = min(first + budget, len(self._kinds))
        for index in range(first, last):
            if self._kinds[index] in (Kind.REACHABLE, Kind.POSSIBLE):
                counts[-1] += 1
                at = number.get(self._blocks.sizes[index], -1)
                if at >= 0:
                    counts[at] += 1
        return last

    def accept(self, rules: Sequence[Rule], budget: int) -> bool:
        known = frozenset(rules)
        some = self._noted[self._accepted : self._accepted + budget]
        self._accepted += len(some)
        for noted in some:
            if self._matters(noted) and ((0, noted.offset) in known or (self._blocks.sizes[noted.target], noted.offset) in known):
                self._accept(noted)
        return len(some) < budget

    def _accept(self, noted: Noted) -> None:
        if noted.place >= 0:
            self._edges[noted.place] &= ~1
        if noted.source < 0 or self._kinds[noted.source] == Kind.REACHABLE:
            self._promoted.add(noted.target)

    def places(self, most: int) -> Optional[array[int]]:
        found = array("Q")
        for noted in filter(self._matters, self._noted):
            if len(found) >= 3 * most:
                return None
            root = noted.source < 0
            found.extend((NO_BLOCK if root else noted.source, noted.address if root else 0, noted.target))
        return found

    def examine(self, pieces: Sequence[Piece], code: Sequence[Range], credit: int, php: bool, links: bool = False) -> PureExamination:
        reader = Recogniser(Pieces(pieces, self._blocks.arch), self._blocks, code, credit, php, links)
        return PureExamination(self._blocks, self._kinds, filter(self._matters, self._noted), self._accept, reader)

    def promote(self, budget: int) -> bool:
        if self._promoter is None:
            self._promoter = self._follow()
        done = run(self._promoter, budget)
        if done:  # further references may be accepted, and promoted
            self._promoter, self._promoted = None, set()
        return done

    def _follow(self) -> Iterator[None]:
        """Promote blocks. Each step promotes one block."""
        kinds = self._kinds
        work = [index for index in sorted(self._promoted) if kinds[index] == Kind.POSSIBLE]
        for index in work:
            kinds[index] = Kind.REACHABLE
        while work:
            for edge in self._edges_of(work.pop()):
                if kinds[edge >> 1] != Kind.POSSIBLE:
                    continue
                if edge & 1:
                    self._interior.add(edge >> 1)
                else:
                    kinds[edge >> 1] = Kind.REACHABLE
                    work.append(edge >> 1)
            yield

    def effect(self, keys: array[int], rules: Sequence[Rule]) -> list[Totals]:
        number = {rule: at for at, rule in enumerate(rules)}
        sums = [[0, 0] for _ in rules]
        last = -1
        for key in keys:
            block, offset = key >> 32, key & MAX_OFFSET
            size = self._blocks.sizes[block]
            at = number.get((0, offset), number.get((size, offset), -1))
            if block == last or self._kinds[block] != Kind.REACHABLE or at < 0:
                continue
            last = block
            sums[at][0] += 1
            sums[at][1] += size
        return [Totals(*pair) for pair in sums]
