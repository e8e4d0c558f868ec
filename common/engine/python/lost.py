"""Lost blocks in pure Python: leaders, the indirect blocks counted under them, and groups."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence

from findleaks.engine import shared
from findleaks.engine.python.blocks import PureBlocks
from findleaks.engine.python.words import words_of
from findleaks.engine.terms import Group, Kind, State, Totals
from findleaks.target.base import Piece, Range

_UNKNOWN = re.compile(b"\\x%02x" % Kind.UNKNOWN)
_POSSIBLE_OR_DEFINITE = re.compile(b"[\\x%02x\\x%02x]" % (Kind.POSSIBLE, Kind.DEFINITE))


class Lost:
    """The lost blocks (left by marking), by block index; memory grows with their number only."""

    def __init__(self, blocks: PureBlocks, kinds: bytearray, edges_of: Callable[[int], array[int]]) -> None:
        self._blocks = blocks
        self._kinds = kinds
        self._edges_of = edges_of
        self._component: dict[int, int] = {}  # kept, as a cycle's blocks have the same
        self._leaders: dict[int, int] = {}
        self._cycles: dict[int, int] = {}  # leader: blocks in its cycle
        self._hanging: dict[int, tuple[int, int]] = {}

    def classify(self) -> Iterator[None]:
        """Classify as definite or indirect; about one step a block."""
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
        leads = set()
        for index in lost:  # ascending, so the first of a component is its lowest
            number = component[index]
            if number in referred or number in leads:
                kinds[index] = Kind.INDIRECT
            else:
                kinds[index] = Kind.DEFINITE
                leads.add(number)
                self._cycles[index] = members[number]
        yield
        for leader in self._cycles:
            self._leaders[leader] = leader
            count = total = 0
            work = [leader]
            while work:
                for edge in self._edges_of(work.pop()):
                    target = edge >> 1
                    if kinds[target] == Kind.INDIRECT and target not in self._leaders:
                        self._leaders[target] = leader
                        count += 1
                        total += sizes[target]
                        work.append(target)
                yield
            self._hanging[leader] = (count, total)

    def _components(self, lost: list[int]) -> Iterator[None]:
        """A strongly connected component's number for each lost block (Tarjan, with a stack)."""
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

    def leader(self, index: int) -> int:
        return self._leaders.get(index, -1)

    def indices(self) -> Iterable[int]:
        """The lost blocks, ascending."""
        return sorted(self._component)

    def in_cycle_of(self, index: int, leader: int) -> bool:
        """Whether both are in the same strongly connected component."""
        return self._component[index] == self._component[leader]

    def cycle(self, index: int) -> int:
        return self._cycles.get(index, 1)

    def indirect_totals(self, index: int) -> Totals:
        return Totals(*self._hanging.get(index, (0, 0)))

    def groups(self, pieces: Iterable[Piece], types: Sequence[Range]) -> list[Group]:
        blocks = self._blocks
        lost = [match.start() for match in _POSSIBLE_OR_DEFINITE.finditer(self._kinds)]
        type_words = self._type_words(lost, pieces, shared.RangeSet(types))
        found: dict[tuple[int, int, int, int, bool], list[int]] = {}
        for index in lost:
            kind = self._kinds[index]
            key = (kind, type_words.get(index, 0), blocks.sizes[index], self._cycles.get(index, 1), self.indirect_totals(index).blocks > 0)
            found.setdefault(key, []).append(index)
        groups = []
        for (kind, type_word, size, cycle, _), members in found.items():
            hanging = [self._hanging.get(index, (0, 0)) for index in members]
            counts = [count for count, _ in hanging]
            groups.append(
                Group(
                    kind=Kind(kind),
                    type_word=type_word,
                    size=size,
                    cycle=cycle,
                    blocks=len(members),
                    bytes=size * len(members),
                    indirect_blocks=sum(counts),
                    indirect_bytes=sum(total for _, total in hanging),
                    least_indirect=min(counts),
                    most_indirect=max(counts),
                    examples=tuple(blocks.starts[index] for index in members[:3]),
                )
            )
        return shared.ordered(groups)

    def typed(self, pieces: Iterable[Piece], types: Sequence[Range]) -> list[Group]:
        blocks = self._blocks
        used = [index for index, state in enumerate(blocks.states) if state == State.IN_USE]
        found: dict[tuple[int, int, int], list[int]] = {}
        for index, type_word in self._type_words(used, pieces, shared.RangeSet(types)).items():
            found.setdefault((self._kinds[index], type_word, blocks.sizes[index]), []).append(index)
        return shared.ordered(
            Group(Kind(kind), word, size, 1, len(of), size * len(of), 0, 0, 0, 0, tuple(blocks.starts[index] for index in sorted(of)[:3]))
            for (kind, word, size), of in found.items()
        )

    def _type_words(self, lost: list[int], pieces: Iterable[Piece], types: shared.RangeSet) -> dict[int, int]:
        """First words of the lost blocks, where they lie in `types`."""
        out: dict[int, int] = {}
        if not types:
            return out
        blocks = self._blocks
        word = blocks.arch.word
        at, floor = 0, 0
        for piece in pieces:
            if piece.address < floor:
                raise ValueError(f"piece {piece.address:#x} lies below the one before it")
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
