"""Leaked blocks in pure Python: leak heads, the indirect blocks counted under them, and groups."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Optional

from findleaks.engine import shared
from findleaks.engine.columns import NO_GROUP, Numbers
from findleaks.engine.reference.blocks import PureBlocks
from findleaks.engine.reference.words import words_of
from findleaks.engine.terms import NO_LABEL, NO_NARROW_LABEL, Group, Kind, State, Totals, mark_of
from findleaks.target.base import Piece, Range

_UNKNOWN = re.compile(b"\\x%02x" % Kind.UNKNOWN)
_POSSIBLE_OR_DEFINITE = re.compile(b"[\\x%02x\\x%02x]" % (Kind.POSSIBLE, Kind.DEFINITE))


class Lost:
    """The leaked blocks (those not marked), by block index. Its memory is proportional to their
    number."""

    def __init__(self, blocks: PureBlocks, kinds: bytearray, edges_of: Callable[[int], array[int]], interior: set[int]) -> None:
        """Collect the leaked blocks. `interior` contains at least all targets of interior
        references from reachable blocks."""
        self._blocks = blocks
        self._kinds = kinds
        self._edges_of = edges_of
        # Component of each block. It is kept because queries need to know which blocks are in one
        # cycle.
        self._component: dict[int, int] = {}
        self._leak_heads: dict[int, int] = {}
        self._cycles: dict[int, int] = {}  # leak head: number of blocks in its cycle
        self._hanging: dict[int, tuple[int, int]] = {}
        self._labels: array[int] = array("I")  # empty if no labels are set
        self._ranks: array[int] = array("I")
        self.members: dict[int, int] = {}  # leak head, by member of an unlabelled cycle
        self._shown: dict[int, tuple[int, int]] = {}  # leak head: representative, its type word
        self._interior = interior
        self._heads: Optional[list[int]] = None

    def started_anew(self, interior: set[int]) -> Lost:
        """Return the state before classifying; `interior` as in `__init__`."""
        made = Lost(self._blocks, self._kinds, self._edges_of, interior)
        made.set_labels(self._labels, self._ranks)
        return made

    def set_labels(self, labels: array[int], ranks: array[int]) -> None:
        if labels.typecode == "H":
            labels = array("I", (NO_LABEL if label == NO_NARROW_LABEL else label for label in labels))
        self._labels, self._ranks = labels, ranks

    def label(self, index: int) -> int:
        return self._labels[index] if self._labels else NO_LABEL

    def classify(self) -> Iterator[None]:
        """Classify blocks as DEFINITE or INDIRECT. Each step classifies about one block."""
        kinds, states, sizes = self._kinds, self._blocks.states, self._blocks.sizes
        lost = [match.start() for match in _UNKNOWN.finditer(kinds) if states[match.start()] == State.IN_USE]
        yield
        yield from self._components(lost)
        component = self._component
        members: dict[int, int] = {}
        referred = set()
        for index in lost:
            members[component[index]] = members.get(component[index], 0) + 1
            for edge in self._edges_of(index):
                target = edge >> 1
                if target in component and component[target] != component[index]:
                    referred.add(component[target])
            yield
        best = self._best_labelled(lost)
        # Lowest blocks of components that are leak heads, without labelled blocks.
        first: dict[int, int] = {}
        for index in lost:  # ascending, so the first block of a component is its lowest
            number = component[index]
            kinds[index] = Kind.INDIRECT
            if number in referred:
                continue
            leak_head = best[number] if number in best else first.setdefault(number, index)
            if leak_head == index:
                kinds[index] = Kind.DEFINITE
                self._cycles[index] = members[number]
            if number in first and members[number] > 1:
                self.members[index] = leak_head
        yield
        for leak_head in self._cycles:
            self._leak_heads[leak_head] = leak_head
            count = total = 0
            work = [leak_head]
            while work:
                for edge in self._edges_of(work.pop()):
                    target = edge >> 1
                    if kinds[target] == Kind.INDIRECT and target not in self._leak_heads:
                        self._leak_heads[target] = leak_head
                        count += 1
                        total += sizes[target]
                        work.append(target)
                yield
            self._hanging[leak_head] = (count, total)
        yield from self._find_heads()

    def _best_labelled(self, lost: list[int]) -> dict[int, int]:
        """Return, for each component, its labelled block with the highest rank; if several have
        this rank, the lowest."""
        best: dict[int, int] = {}
        if not self._labels:
            return best
        for index in lost:
            label, number = self._labels[index], self._component[index]
            if label == NO_LABEL:
                continue
            if number not in best or self._ranks[label] > self._ranks[self._labels[best[number]]]:
                best[number] = index
        return best

    def _find_heads(self) -> Iterator[None]:
        """Find the heads of POSSIBLE blocks; see Graph.heads."""
        kinds, sizes = self._kinds, self._blocks.sizes
        heads = sorted(index for index in self._interior if kinds[index] == Kind.POSSIBLE)
        if len(heads) == kinds.count(int(Kind.POSSIBLE)):
            return
        self._heads, seen = heads, set(heads)
        for head in heads:
            count = total = 0
            work = [head]
            while work:
                for edge in self._edges_of(work.pop()):
                    target = edge >> 1
                    if kinds[target] == Kind.POSSIBLE and target not in seen:
                        seen.add(target)
                        count += 1
                        total += sizes[target]
                        work.append(target)
                yield
            self._hanging[head] = (count, total)

    def heads(self) -> Optional[array[int]]:
        return None if self._heads is None else array("Q", self._heads)

    def _components(self, lost: list[int]) -> Iterator[None]:
        """Assign each leaked block the number of its strongly connected component (Tarjan, with an
        explicit stack)."""
        candidates = set(lost)
        component = self._component
        order: dict[int, int] = {}
        low: dict[int, int] = {}
        open_: list[int] = []
        for root in lost:
            if root in order:
                continue
            order[root] = low[root] = len(order)
            open_.append(root)
            calls = [(root, iter(self._edges_of(root)))]
            while calls:
                index, rest = calls[-1]
                for edge in rest:
                    target = edge >> 1
                    if target not in candidates:
                        continue
                    if target not in order:
                        order[target] = low[target] = len(order)
                        open_.append(target)
                        calls.append((target, iter(self._edges_of(target))))
                        break
                    if target not in component:
                        low[index] = min(low[index], order[target])
                else:
                    calls.pop()
                    if calls:
                        low[calls[-1][0]] = min(low[calls[-1][0]], low[index])
                    if low[index] == order[index]:
                        while True:
                            member = open_.pop()
                            component[member] = order[index]
                            if member == index:
                                break
                    yield

    def leak_head(self, index: int) -> int:
        return self._leak_heads.get(index, -1)

    def leak_heads(self) -> array[int]:
        """Return the leak head of each block of the heap, or NO_GROUP ("I")."""
        return array("I", (self._leak_heads.get(index, NO_GROUP) for index in range(len(self._blocks))))

    def indices(self) -> Iterable[int]:
        """Return the leaked blocks, ascending."""
        return sorted(self._component)

    def in_cycle_of(self, index: int, leak_head: int) -> bool:
        """Return whether both blocks are in the same strongly connected component."""
        return self._component[index] == self._component[leak_head]

    def cycle(self, index: int) -> int:
        return self._cycles.get(index, 1)

    def indirect_totals(self, index: int) -> Totals:
        return Totals(*self._hanging.get(index, (0, 0)))

    def label_totals(self, kinds: frozenset[Kind]) -> list[Totals]:
        blocks = self._blocks
        counts, sums = [0] * len(self._ranks), [0] * len(self._ranks)
        for index, label in enumerate(self._labels):
            if label != NO_LABEL and self._kinds[index] in kinds and blocks.states[index] == State.IN_USE:
                counts[label] += 1
                sums[label] += blocks.sizes[index]
        return list(map(Totals, counts, sums))

    def cycle_ranges(self) -> list[Range]:
        word, ranges = self._blocks.arch.word, list[Range]()
        for index in self.members:
            start = self._blocks.starts[index]
            if ranges and start - ranges[-1].end <= shared.CYCLE_GAP:
                ranges[-1] = Range(ranges[-1].start, start + word)
            else:
                ranges.append(Range(start, start + word))
        return ranges

    def represent_cycles(self, pieces: Iterable[Piece], types: Sequence[Range]) -> None:
        sizes = self._blocks.sizes
        words = self._type_words(list(self.members), pieces, shared.RangeSet(types))

        def key(index: int) -> tuple[bool, int, int, int]:
            return not words.get(index), -sizes[index], words.get(index, 0), index

        best: dict[int, int] = {}
        for index, leak_head in self.members.items():
            best[leak_head] = min(best.get(leak_head, index), index, key=key)
        self._shown = {leak_head: (index, words.get(index, 0)) for leak_head, index in best.items()}

    def representative(self, index: int) -> int:
        return self._shown[index][0] if index in self._shown else index

    def groups(self, pieces: Iterable[Piece], types: Sequence[Range], marks: Optional[Numbers] = None) -> list[Group]:
        blocks = self._blocks
        lost = [match.start() for match in _POSSIBLE_OR_DEFINITE.finditer(self._kinds)]
        if self._heads is not None:
            heads = set(self._heads)
            lost = [index for index in lost if self._kinds[index] == Kind.DEFINITE or index in heads]
        type_words = self._type_words(lost, pieces, shared.RangeSet(types))
        found: dict[tuple[int, int, int, int, int, bool, int], list[int]] = {}
        for index in lost:
            kind, label = self._kinds[index], self.label(index)
            shown, type_word = self._shown.get(index, (index, type_words.get(index, 0)))
            mark = mark_of(marks[shown], type_word) if marks is not None and label == NO_LABEL else 0
            type_word = 0 if mark else type_word
            plain = (type_word, blocks.sizes[shown], self._cycles.get(index, 1), self.indirect_totals(index).blocks > 0, mark)
            key = (kind, label, *plain) if label == NO_LABEL else (kind, label, 0, 0, 0, False, 0)
            found.setdefault(key, []).append(index)
        groups = []
        for (kind, label, type_word, _, _, _, mark), members in found.items():
            shown_sizes = [blocks.sizes[self.representative(index)] for index in members]
            cycles = {self._cycles.get(index, 1) for index in members}
            hanging = [self._hanging.get(index, (0, 0)) for index in members]
            counts = [count for count, _ in hanging]
            groups.append(
                Group(
                    kind=Kind(kind),
                    type_word=type_word,
                    size=min(shown_sizes),
                    cycle=cycles.pop() if len(cycles) == 1 else 0,
                    blocks=len(members),
                    bytes=sum(blocks.sizes[index] for index in members),
                    indirect_blocks=sum(counts),
                    indirect_bytes=sum(total for _, total in hanging),
                    least_indirect=min(counts),
                    most_indirect=max(counts),
                    examples=tuple(sorted(blocks.starts[self.representative(index)] for index in members)[:3]),
                    largest=max(shown_sizes),
                    label=label,
                    mark=mark,
                )
            )
        return shared.sort_groups(groups)

    def group_typed(self, pieces: Iterable[Piece], types: Sequence[Range]) -> list[Group]:
        blocks = self._blocks
        used = [index for index, state in enumerate(blocks.states) if state == State.IN_USE]
        found: dict[tuple[int, int, int], list[int]] = {}
        for index, type_word in self._type_words(used, pieces, shared.RangeSet(types)).items():
            found.setdefault((self._kinds[index], type_word, blocks.sizes[index]), []).append(index)
        return shared.sort_groups(
            Group(
                Kind(kind),
                word,
                size,
                1,
                len(of),
                size * len(of),
                0,
                0,
                0,
                0,
                tuple(blocks.starts[index] for index in sorted(of)[:3]),
                size,
                NO_LABEL,
            )
            for (kind, word, size), of in found.items()
        )

    def _type_words(self, lost: list[int], pieces: Iterable[Piece], types: shared.RangeSet) -> dict[int, int]:
        """Return the first word of each leaked block, by block, if this word is in `types`."""
        out: dict[int, int] = {}
        if not types:
            return out
        blocks = self._blocks
        word = blocks.arch.word
        at, floor = 0, 0
        for piece in pieces:
            if piece.address < floor:
                raise ValueError(f"piece {piece.address:#x} lies below the previous one")
            floor = piece.address + len(piece.data)
            base, words = words_of(piece, blocks.arch)
            while at < len(lost) and blocks.starts[lost[at]] < base:
                at += 1
            while at < len(lost) and blocks.starts[lost[at]] < floor:
                index = lost[at]
                position, odd = divmod(blocks.starts[index] - base, word)
                if not odd and position < len(words) and blocks.sizes[index] >= word and words[position] in types:
                    out[index] = words[position]
                at += 1
        return out
