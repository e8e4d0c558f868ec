"""References among blocks and reachability, in pure Python."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, compress, islice
from operator import and_
from typing import Optional

from findleaks.engine import shared
from findleaks.engine.disguises import Form
from findleaks.engine.interiors import MAX_OFFSET
from findleaks.engine.reference.blocks import COUNT_BITS, PAGE_BITS, PureBlocks
from findleaks.engine.reference.disguises import PureDisguises, connect
from findleaks.engine.reference.dominators import PureDominators
from findleaks.engine.reference.excluded_words import ExcludedWords
from findleaks.engine.reference.heuristics import HeuristicFacts
from findleaks.engine.reference.interiors import Noted, PureInteriors
from findleaks.engine.reference.lost import Lost
from findleaks.engine.reference.lost_blocks import LostBlocks
from findleaks.engine.reference.spans import spans
from findleaks.engine.reference.words import words_of
from findleaks.engine.reference.work import run
from findleaks.engine.rows import RowRules
from findleaks.engine.terms import NO_LABEL, NO_NARROW_LABEL, Exclusion, Heuristic, Kind, KindFigures, State, Totals
from findleaks.target.base import Piece, Range

COUNT_MASK = (1 << COUNT_BITS) - 1
# tables that translate bytes to 1 or 0
_IS = [bytes(byte == kind for byte in range(256)) for kind in Kind]
_IS_0 = _IS[0]


class PureGraph(LostBlocks):
    """A reference graph; see contract.Graph. An edge is a number: index of the block referred to <<
    1 | is_interior."""

    def __init__(self, blocks: PureBlocks, heuristics: Heuristic, vtables: Sequence[Range], types: Sequence[int] = ()) -> None:
        blocks.seal()
        self.blocks = blocks
        self._kinds = bytearray(len(blocks))
        self.counts: array[int] = array("I", bytes(4 * len(blocks)))  # edges of each block
        self.edges: array[int] = array("I")
        self.offsets: array[int] = array("Q")  # start of each block's edges; set before marking
        self._roots: dict[int, int] = {}  # index: 1 a start reference, 2 an interior one, 3 both
        self.excluded = ExcludedWords(blocks, bytearray(), ())
        self._scanned = 0  # scan_blocks continues from here upwards
        self._segments, self._ends = spans(self.blocks)
        self._address_bytes = self._address_byte_table()
        self._noted: Optional[list[Noted]] = [] if heuristics & Heuristic.AUTO else None
        self._interior_bit = 0 if heuristics & Heuristic.EVERY else 1
        heuristics &= ~(Heuristic.AUTO | Heuristic.EVERY)
        self._heuristic_facts = HeuristicFacts(blocks, heuristics, vtables, types) if heuristics else None
        # Targets of interior references of roots and reachable blocks.
        self._interior: set[int] = set()
        self._work: list[int] = []  # blocks to visit
        self._settled = False
        # Set when all blocks that start references reach are marked.
        self._marker: Iterator[None] | None = None
        self._classifier: Iterator[None] | None = None
        self._marked = self._classified = False
        self.lost = Lost(blocks, self._kinds, self.edges_of, self._interior)

    def exclude_words(self, patterns: bytearray, exclusions: Sequence[Exclusion]) -> None:
        self._before_marking()
        self.excluded = ExcludedWords(self.blocks, patterns, exclusions)

    def set_labels(self, labels: array[int], ranks: array[int]) -> None:
        self._before_marking()
        shared.check_labels(len(labels), ranks, len(self.blocks))
        unlabelled = NO_NARROW_LABEL if labels.typecode == "H" else NO_LABEL
        if any(label >= len(ranks) for label in set(labels) - {unlabelled}):
            raise ValueError(f"a label is not below {len(ranks)}")
        self.lost.set_labels(labels, ranks)

    def scan_blocks(self, piece: Piece) -> None:
        if piece.address < self._scanned:
            raise ValueError(f"piece {piece.address:#x} lies below {self._scanned:#x}, the end of the scanned memory")
        self._before_marking()
        self._scanned = piece.address + len(piece.data)
        blocks = self.blocks
        starts, sizes, states = blocks.starts, blocks.sizes, blocks.states
        word, patterns = blocks.arch.word, self.excluded.patterns
        base, words = words_of(piece, blocks.arch)
        if self._heuristic_facts:
            self._heuristic_facts.facts(base, words)
        source = max(0, bisect_right(starts, base) - 1)
        source_end = 0  # end of the words of a source in use; 0: this block is not a source
        following = 0  # start of the next source
        number = len(starts)
        counts, edges, pages = self.counts, self.edges, blocks.pages
        for position in self.candidates(piece, words):
            address = base + position * word
            if address >= following:
                while True:
                    following = starts[source + 1] if source + 1 < number else blocks.arch.mask + 1
                    if address < following:
                        break
                    source += 1
                source_end = starts[source] + sizes[source] - word if states[source] == 0 else -1
            if not starts[source] <= address <= source_end:
                continue
            value = words[position]
            page = pages.get(value >> PAGE_BITS)
            if page is None:
                target = self._block_before(value)
            else:  # inlined: a call costs as much as the look-up
                low = page >> COUNT_BITS
                target = bisect_right(starts, value, low, low + (page & COUNT_MASK)) - 1
            if target < 0 or target == source or states[target]:
                continue
            if patterns and patterns[source] and self.excluded.has(source, address, target, value):
                continue
            offset = value - starts[target]
            if offset == 0 or (offset < sizes[target] and not self._interior_bit):
                edges.append(target << 1)
            elif offset < sizes[target]:
                if self._heuristic_facts:
                    self._heuristic_facts.edge(len(edges), target, value)
                if self._noted is not None:
                    self._noted.append(Noted(source, len(edges), target, min(offset, MAX_OFFSET), address))
                edges.append(target << 1 | 1)
            else:
                continue
            counts[source] += 1
        if len(edges) > shared.MAX_EDGES:
            raise shared.TooManyBlocks("references")

    def scan_roots(self, piece: Piece) -> None:
        base, words = words_of(piece, self.blocks.arch)
        for position in self.candidates(piece, words):
            self._root(words[position], base + position * self.blocks.arch.word)

    def root_words(self, words: Sequence[int]) -> None:
        for value in words:
            self._root(value, 0)

    def settle(self) -> None:
        if self._settled:
            return
        if self._heuristic_facts:
            self._heuristic_facts.settle(self.edges, self._roots)
        self.offsets = array("Q", accumulate(self.counts, initial=0))
        for index in sorted(self._roots):
            self._seed(index, self._roots[index])
        self._settled = True

    def mark_starts(self, budget: int) -> bool:
        self.settle()
        return self._marker is not None or run(self._mark_starts(), budget)

    def holds(self, words: Sequence[int]) -> bool:
        self._after_scanning()
        return all(edge < 0 or self._kinds[edge >> 1] == Kind.REACHABLE for edge in map(self.resolve, words))

    def find_unreferenced(self, smallest: int, largest: int, most: int) -> list[int]:
        self._after_scanning()
        blocks = self.blocks
        found = [
            index
            for index, size in enumerate(blocks.sizes)
            if blocks.states[index] == State.IN_USE
            and smallest <= size <= largest
            and self._kinds[index] != Kind.REACHABLE
            and index not in self._roots
        ]
        referred = {edge >> 1 for edge in self.edges} if len(found) <= most else set(found)
        return [index for index in found if index not in referred]

    def mark(self, budget: int) -> bool:
        if not self.mark_starts(budget):
            return False
        if self._marker is None:
            self._marker = self._mark_others()
        self._marked = run(self._marker, budget)
        if self._marked:
            self._heuristic_facts = None
        return self._marked

    def interiors(self) -> PureInteriors:
        if not self._marked or self._classified:
            raise RuntimeError("call this method after marking and before classifying")
        return PureInteriors(self.blocks, self._kinds, self.edges, self.edges_of, self._noted or (), self._interior)

    def classify(self, budget: int) -> bool:
        if not self._marked:
            raise RuntimeError("mark first")
        if self._classifier is None:
            self._classifier = self.lost.classify()
        self._classified = run(self._classifier, budget)
        return self._classified

    def leak_head_sizes(self) -> array[int]:
        self._after_classifying()
        return array("Q", compress(self.blocks.sizes, self._kinds.translate(_IS[Kind.DEFINITE])))

    def disguises(self, ranges: Sequence[Range], forms: Sequence[Form], most: int) -> PureDisguises:
        self._after_classifying()
        return PureDisguises(self.excluded, self._kinds, self.lost, ranges, forms, most)

    def connect(self, references: array[int]) -> None:
        if not self._marked:
            raise RuntimeError("mark first")
        offsets = self.offsets
        self.edges, rooted = connect(self.edges_of, self.counts, references)
        self.offsets = array("Q", accumulate(self.counts, initial=0))
        for target in rooted:
            self._roots[target] = self._roots.get(target, 0) | 1
        noted = self._noted if self._noted and not self._classified else ()
        self._noted = [one.after_adding(offsets, self.offsets) for one in noted]
        reached = [index for index, kind in enumerate(self._kinds) if kind == Kind.REACHABLE]
        self._kinds[:] = bytes(len(self._kinds))
        self._interior, self._work = set(), []
        self.lost = self.lost.started_anew(self._interior)
        self._marker = self._classifier = None
        self._marked = self._classified = False
        for index, sort in [*sorted(self._roots.items()), *((index, 1) for index in reached)]:
            self._seed(index, sort)

    def kind(self, index: int) -> Kind:
        return Kind(self._kinds[self.index(index)])

    def kinds(self) -> memoryview:
        return memoryview(self._kinds).toreadonly()

    def rows(self, rules: RowRules) -> None:
        """See contract.Graph."""

    def totals(self, kind: Kind) -> Totals:
        blocks = self.blocks
        used = blocks.states.translate(_IS_0)
        chosen = bytes(map(and_, used, self._kinds.translate(_IS[int(kind)])))
        return Totals(chosen.count(1), sum(compress(blocks.sizes, chosen)))

    def sizes(self, kind: Kind) -> list[tuple[int, int]]:
        blocks = self.blocks
        rows = zip(blocks.sizes, blocks.states, self._kinds)
        return sorted(Counter(size for size, state, own in rows if state == State.IN_USE and own == kind).items())

    def bytes_by_kind(self, ranges: array[int]) -> list[int]:
        return [figures.inside for figures in self.figures_by_kind(array("I", range(len(self.blocks))), ranges)]

    def figures_by_kind(self, indices: array[int], ranges: array[int]) -> list[KindFigures]:
        blocks, found, starts, ends = self.blocks, [KindFigures(0, 0, 0)] * len(Kind), ranges[::2], ranges[1::2]
        for index in indices:
            if blocks.states[index] == State.IN_USE:
                start, end, own = blocks.starts[index], blocks.starts[index] + blocks.sizes[index], found[self._kinds[index]]
                parts = zip(*(bounds[bisect_right(ends, start) : bisect_left(starts, end)] for bounds in (starts, ends)))
                inside = sum(max(min(end, high) - max(start, low), 0) for low, high in parts)
                found[self._kinds[index]] = KindFigures(own.blocks + 1, own.bytes + end - start, own.inside + inside)
        return found

    def has_kind(self, kind: Kind, number: int) -> bool:
        return self._kinds.count(int(kind)) >= number

    def referrers(self, index: int, limit: int = 0) -> list[int]:
        self._after_scanning()
        both = {self.index(index) << 1, self.index(index) << 1 | 1}
        users = (source for source, count in enumerate(self.counts) if count and not both.isdisjoint(self.edges_of(source)))
        return list(islice(users, limit or None))

    def references(self, index: int) -> list[tuple[int, bool]]:
        self._after_scanning()
        return [(edge >> 1, bool(edge & 1)) for edge in self.edges_of(self.index(index))]

    def path(self, index: int, starts: Sequence[int] = (), avoided: bytes = b"") -> list[int]:
        self._after_scanning()
        wanted = self.index(index)
        return self._find_path(wanted, starts, avoided, True) or self._find_path(wanted, starts, avoided, False)

    def _find_path(self, wanted: int, starts: Sequence[int], avoided: bytes, starts_only: bool) -> list[int]:
        rooted = sorted(one for one, sort in self._roots.items() if sort & 1 or not starts_only)
        level = [one for one in map(self.index, starts) if self.blocks.states[one] == State.IN_USE] if starts else rooted
        parents, marked = dict.fromkeys(level, -1), {label for label, mark in enumerate(avoided) if mark}
        while level and wanted not in parents:
            passed, level = [one for one in level if self.lost.label(one) not in marked], []
            for source, edge in ((one, edge) for one in passed for edge in self.edges_of(one)):
                if edge >> 1 not in parents and not (starts_only and edge & 1):
                    parents[edge >> 1] = source
                    level.append(edge >> 1)
        chain = [wanted] if wanted in parents else []
        while chain and parents[chain[-1]] >= 0:
            chain.append(parents[chain[-1]])
        return chain[::-1]

    def is_rooted(self, index: int) -> bool:
        return self.index(index) in self._roots

    def dominators(
        self, roots: int, bounds: Sequence[int] = (), owners: Sequence[int] = (), lost: bool = False, priorities: Sequence[int] = ()
    ) -> PureDominators:
        if not (self._classified if lost else self._settled):
            raise RuntimeError("classify first" if lost else "settle first")
        return PureDominators(self, roots, bounds, owners, lost, priorities)

    def edges_of(self, index: int) -> array[int]:
        return self.edges[self.offsets[index] : self.offsets[index + 1]]

    def _address_byte_table(self) -> bytes:
        """Return a table that is 1 for each possible sixth byte of a pointer; b"" if such a table
        does not help: for words that are not 8 bytes in little-endian order, and for blocks below
        2^40."""
        arch = self.blocks.arch
        if (arch.word, arch.byteorder) != (8, "little") or not self._segments or self._segments[0] >> 40 & 255 == 0:
            return b""
        wanted = {
            top & 255
            for start, end in zip(self._segments, self._ends)
            for top in range(start >> 40, min(end >> 40, (start >> 40) + 255) + 1)
        }
        return b"" if 0 in wanted else bytes(byte in wanted for byte in range(256))

    def candidates(self, piece: Piece, words: Sequence[int]) -> Iterator[int]:
        """Yield the positions of words that may point to blocks: all words that do, and few that do
        not."""
        if not self._segments:
            return iter(())
        if self._address_bytes:
            skip = -piece.address % 8
            return compress(range(len(words)), piece.data[skip + 5 :: 8].tobytes().translate(self._address_bytes))
        low, high = self._segments[0], self._ends[-1]
        return compress(range(len(words)), [low <= value < high for value in words])

    def _block_before(self, value: int) -> int:
        """Return the last block at or below `value`, if no block starts in the page of `value`; -1
        if no such block is near."""
        segment = bisect_right(self._segments, value) - 1
        if segment < 0 or value >= self._ends[segment]:
            return -1
        return bisect_right(self.blocks.starts, value) - 1

    def resolve(self, value: int) -> int:
        """Return the edge to the block in use that `value` refers to, or -1."""
        blocks = self.blocks
        page = blocks.pages.get(value >> PAGE_BITS)
        if page is None:
            index = self._block_before(value)
        else:
            low = page >> COUNT_BITS
            index = bisect_right(blocks.starts, value, low, low + (page & COUNT_MASK)) - 1
        if index < 0 or blocks.states[index]:
            return -1
        offset = value - blocks.starts[index]
        if offset == 0:
            return index << 1
        return index << 1 | self._interior_bit if offset < blocks.sizes[index] else -1

    def _root(self, value: int, address: int) -> None:
        edge = self.resolve(value)
        if edge < 0:
            return
        index = edge >> 1
        if edge & 1 and self._noted is not None and not self._marked:
            self._noted.append(Noted(-1, -1, index, min(value - self.blocks.starts[index], MAX_OFFSET), address))
        if edge & 1 and self._heuristic_facts:
            if not self._settled:
                self._heuristic_facts.root(index, value)
            elif self._heuristic_facts.counts(index, value):
                edge -= 1
        self._roots[index] = self._roots.get(index, 0) | 1 + (edge & 1)
        if self._settled and self._marker is None:
            self._seed(index, 1 + (edge & 1))

    def _seed(self, index: int, how: int) -> None:
        """Add a root block from which marking starts. For `how` see `_roots`."""
        if how & 2:
            self._interior.add(index)
        if how & 1 and not self._kinds[index]:
            self._kinds[index] = Kind.REACHABLE
            self._work.append(index)

    def _mark_starts(self) -> Iterator[None]:
        """Mark the blocks that start references reach. Each step visits one block."""
        kinds, offsets, edges, work = self._kinds, self.offsets, self.edges, self._work
        while work:
            source = work.pop()
            for edge in edges[offsets[source] : offsets[source + 1]]:
                if not kinds[edge >> 1]:
                    if edge & 1:
                        self._interior.add(edge >> 1)
                    else:
                        kinds[edge >> 1] = Kind.REACHABLE
                        work.append(edge >> 1)
            yield

    def _mark_others(self) -> Iterator[None]:
        """Mark the blocks that interior references reach. Each step visits one block."""
        kinds, offsets, edges, work = self._kinds, self.offsets, self.edges, self._work
        for index in self._interior:
            if not kinds[index]:
                kinds[index] = Kind.POSSIBLE
                work.append(index)
        while work:
            source = work.pop()
            for edge in edges[offsets[source] : offsets[source + 1]]:
                if not kinds[edge >> 1]:
                    kinds[edge >> 1] = Kind.POSSIBLE
                    work.append(edge >> 1)
            yield

    def index(self, index: int) -> int:
        """Return the index. IndexError if there is no such block."""
        if not 0 <= index < len(self._kinds):
            raise IndexError(f"no block {index}")
        return index

    def _before_marking(self) -> None:
        if self._settled:
            raise RuntimeError("scan before marking")

    def _after_scanning(self) -> None:
        if not self._settled:
            raise RuntimeError("mark first")

    def _after_classifying(self) -> None:
        if not self._classified:
            raise RuntimeError("classify first")
