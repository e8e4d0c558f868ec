"""Headers of the program's own: to which offset of their blocks a program's pointers aim, where it is not the start.

SQLite, MariaDB, talloc, C++'s new[] and many more put something of their own in front of what they hand out, so that every pointer to such
a block is an interior one, and by memcheck's rules the block is *possible*. What tells such a custom from stray numbers is that it is one:
of the possible blocks that interior pointers lead to, nearly all have one to the same offset. That is looked at for all blocks together and
for each usable size, as a custom may be that of one library in a program, or of one structure (a list's links inside its nodes). An offset
that is the rule in several sizes is a library's; it then counts in every size, so that rare ones (large buffers) are recognised, too.

Most of what is held of these sizes must be such blocks: where a few blocks of a size are held by their middle and the many by their start,
the middle is not the custom.

Blocks are counted and not pointers: a pool or a text buffer that begins with a header has one pointer behind it, and hundreds to what is
in it. Stray pointers have no favourite offset; PART leaves room for a few of them.

This only decides between possible and reachable: whether a block is lost is not asked of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.engine import shared
from findleaks.engine.contract import Blocks, Engine, Graph
from findleaks.engine.interiors import MOST_OFFSET, Interiors, Row, Rule
from findleaks.engine.terms import Heuristic, Kind, Totals

LEAST = 16
"""Blocks from which on one offset can be called a custom: a handful may agree by chance."""

FEW = 4
"""Blocks of one size from which on its favourite offset counts as a voice for this offset in all sizes."""

FINE = 18
"""Of 2^18 references and more, sizes and offsets with fewer blocks than one in as many are left out: a bound on what is looked at."""

PART = 0.9
"""Part of the blocks looked at that have a pointer to this offset."""

SIZES = 4
"""Sizes in which an offset is the favourite, in LEAST blocks together, from which on it is one for blocks of any size."""

MOST_ROWS = 1 << 16
"""Sizes with a rule of their own, the most frequent first: of more, a damaged or contrived heap is the likelier cause."""

SAMPLE = 1 << 11
"""Keys whose blocks' contents are read, at even distances, to name a custom."""

MOSTLY = 2 / 3
"""Part of the held blocks of the sizes concerned that have a pointer to this offset."""

HALF, WORTH = 0.5, 0.1
"""Part of what no offset explains, and part of the whole sample, that a heuristic must explain to be applied to every block."""

BY_CONTENT = {
    "length64": Heuristic.LENGTH64,
    "stdstring": Heuristic.STDSTRING,
    "multipleinheritance": Heuristic.MULTIPLE_INHERITANCE,
    "newarray": Heuristic.NEWARRAY,
}
"""memcheck's heuristics, those first that say more of a block."""


class Convention(NamedTuple):
    """Pointers to `offset` count as pointers to the start of blocks of these usable sizes (none: of any). `heuristic` is memcheck's name
    for it where the blocks' contents fit, else "". `blocks` and `bytes` are those that such pointers lead to and that are reachable
    by it."""

    offset: int
    sizes: tuple[int, ...]
    heuristic: str
    blocks: int
    bytes: int


class Learned(NamedTuple):
    """What was found; `heuristics` were applied to the whole heap, by contents; `held` are the blocks that are reachable by all of this and
    would be possible without, what hangs from them included."""

    conventions: tuple[Convention, ...] = ()
    heuristics: Heuristic = Heuristic.NONE
    held: Totals = Totals(0, 0)


NO_CONVENTIONS = Learned()

HeuristicMatcher = Callable[[int, int, int], Heuristic]
"""Which of memcheck's heuristics fit a block at an address, of a usable size, for a pointer to an offset."""


class Candidate(NamedTuple):
    """An offset that may be a custom, with the sizes that speak for it, and how many of their blocks have a pointer to it. `common`: it
    would count in every size. `anywhere`: it does not show in single sizes."""

    offset: int
    sizes: tuple[int, ...]
    blocks: int
    common: bool
    anywhere: bool = False


def candidates(rows: Iterable[Row]) -> list[Candidate]:
    """Offsets that nearly all possible blocks of a size, or of all sizes, have a pointer to."""
    looked: dict[int, int] = {}
    best: dict[int, tuple[int, int]] = {}
    for size, offset, blocks in rows:
        if not offset:
            looked[size] = blocks
        elif (blocks, -offset) > best.get(size, (0, 0)):
            best[size] = (blocks, -offset)
    voices: dict[int, list[tuple[int, int]]] = {}
    for size, (blocks, less) in sorted(best.items()):
        if blocks >= FEW and blocks >= PART * looked.get(size, blocks + 1):
            voices.setdefault(-less, []).append((size, blocks))
    found: list[Candidate] = []
    for offset, its in voices.items():
        every = next((blocks for size, blocks in its if not size), 0)
        single = [(size, blocks) for size, blocks in its if size]
        total = sum(blocks for _, blocks in single)
        if every >= LEAST and 2 * total < every:
            found.append(Candidate(offset, (), every, True, True))
        elif every >= LEAST or (len(single) >= SIZES and total >= LEAST):
            found.append(Candidate(offset, tuple(size for size, _ in single), total, True))
        else:
            found += [Candidate(offset, (size,), blocks, False) for size, blocks in single if blocks >= LEAST]
    return sorted(found, key=lambda one: (not one.common, -one.blocks, one.offset, one.sizes))[:MOST_ROWS]


def rules_of(found: Iterable[Candidate], held: Callable[[int], int]) -> list[Rule]:
    """Those candidates whose blocks are most of what is `held` of their sizes (0: of all sizes together), as rules; ascending."""
    rules: list[Rule] = []
    for one in found:
        every = held(0) if one.anywhere else sum(held(size) for size in one.sizes)
        if one.blocks >= MOSTLY * every:
            rules += [(0, one.offset)] if one.common else [(size, one.offset) for size in one.sizes]
    return sorted(rules)


def learn_conventions(
    graph: Graph, blocks: Blocks, engine: Engine, fits: HeuristicMatcher, budget: int, tell: Callable[[str, float], None]
) -> Learned:
    """Find the customs of a marked graph that was made with Heuristic.AUTO, and apply them. Where no offset is the rule, and one of
    memcheck's heuristics explains most of a sample, `heuristics` names it, and nothing is changed: the graph is to be made again with
    it."""
    if graph.totals(Kind.POSSIBLE).blocks < LEAST:
        return NO_CONVENTIONS
    interiors = graph.interiors()
    keys = _all(interiors, engine, budget, tell)
    for at in range(0, len(keys), budget):
        tell(PHASE, at / len(keys))
        interiors.count(keys[at : at + budget])
    found = candidates(interiors.rows(max(FEW, len(keys) >> FINE)))
    rules = rules_of(found, _held(interiors, found, len(blocks), budget, tell)) if found else []
    chosen = keys[:: max(1, len(keys) // SAMPLE)]
    unexplained = _by_content(blocks, chosen, rules, fits, len(keys))
    if unexplained:
        return Learned(heuristics=unexplained)
    if not rules:
        return NO_CONVENTIONS
    before = graph.totals(Kind.POSSIBLE)
    while not interiors.accept(rules, budget):
        tell(PHASE, 0.0)
    while not interiors.promote(budget):
        tell(PHASE, 0.0)
    after = graph.totals(Kind.POSSIBLE)
    effects = interiors.effect(keys, rules)
    names = {offset: _named(blocks, chosen, rules, offset, fits) for offset in {offset for _, offset in rules}}
    return Learned(tuple(_conventions(rules, effects, names)), held=Totals(before.blocks - after.blocks, before.bytes - after.bytes))


PHASE = "looking for headers"


def _all(interiors: Interiors, engine: Engine, budget: int, tell: Callable[[str, float], None]) -> array[int]:
    """All keys, ascending, each once."""
    keys, done = interiors.keys(budget)
    while not done:
        tell(PHASE, 0.0)
        more, done = interiors.keys(budget)
        keys += more
    return engine.sum_by_value(keys, array("Q"))[0]


def _held(
    interiors: Interiors, found: Sequence[Candidate], count: int, budget: int, tell: Callable[[str, float], None]
) -> Callable[[int], int]:
    """How many blocks of a size are reachable or possible, for the sizes of these candidates; of size 0: all."""
    sizes = sorted({size for one in found for size in one.sizes})
    counts = array("Q", bytes(8 * len(sizes) + 8))
    at = 0
    while at < count:
        tell(PHASE, at / count)
        at = interiors.held(sizes, counts, at, budget)
    return dict(zip([*sizes, 0], counts)).__getitem__


def _explained(size: int, offset: int, rules: frozenset[Rule]) -> bool:
    return (0, offset) in rules or (size, offset) in rules


def _by_content(blocks: Blocks, keys: Sequence[int], rules: Sequence[Rule], fits: HeuristicMatcher, count: int) -> Heuristic:
    """The heuristic that explains most of what no rule does, if that is HALF of it, WORTH the while, and LEAST blocks; of `count` keys
    these are a sample."""
    known = frozenset(rules)
    found: dict[Heuristic, int] = {}
    left = 0
    for key in keys:
        index, offset = key >> 32, key & MOST_OFFSET
        size = blocks.size(index)
        if _explained(size, offset, known):
            continue
        left += 1
        fitting = fits(blocks.address(index), size, offset)
        for one in BY_CONTENT.values():
            if fitting & one:
                found[one] = found.get(one, 0) + 1
    best = max(found, key=lambda one: found[one], default=Heuristic.NONE)
    most = found.get(best, 0)
    enough = most * max(1, count // max(1, len(keys))) >= LEAST
    return best if enough and most >= max(HALF * left, WORTH * len(keys)) else Heuristic.NONE


def _named(blocks: Blocks, keys: Iterable[int], rules: Sequence[Rule], offset: int, fits: HeuristicMatcher) -> str:
    """memcheck's name for a custom, where the contents of nearly all blocks of a sample fit."""
    known = frozenset(rules)
    seen = 0
    found = dict.fromkeys(BY_CONTENT, 0)
    for key in keys:
        size = blocks.size(key >> 32)
        if key & MOST_OFFSET != offset or not _explained(size, offset, known):
            continue
        fitting = fits(blocks.address(key >> 32), size, offset)
        for name, one in BY_CONTENT.items():
            found[name] += bool(fitting & one)
        seen += 1
    return next((name for name in BY_CONTENT if seen and found[name] >= PART * seen), "")


def _conventions(rules: Sequence[Rule], effects: Sequence[Totals], names: dict[int, str]) -> Iterator[Convention]:
    """One for each offset that made a difference, the most bytes first."""
    sizes: dict[int, list[int]] = {}
    sums: dict[int, Totals] = {}
    for (size, offset), effect in zip(rules, effects):
        before = sums.get(offset, Totals(0, 0))
        sums[offset] = Totals(before.blocks + effect.blocks, before.bytes + effect.bytes)
        if effect.blocks:
            sizes.setdefault(offset, []).append(size)
    for offset in sorted(sums, key=lambda one: (-sums[one].bytes, one)):
        if sums[offset].blocks:
            of = () if 0 in sizes[offset] else tuple(sizes[offset])
            yield Convention(offset, of, names[offset], *sums[offset])


def heuristic_matcher(word: int, read: Callable[[int, int], Optional[int]], vtables: Callable[[int], bool]) -> HeuristicMatcher:
    """Which heuristics fit, by the words that `read` gives (address, bytes; None where memory is missing); see terms.Heuristic. An array's
    count must be 2 or more, as 1 is what reference counts are."""
    slack = shared.SLACK_WORDS * word

    def fits(start: int, size: int, offset: int) -> Heuristic:
        found = Heuristic.NONE
        length = read(start, 8) if offset == 8 else None
        if length is not None and 0 <= size - 8 - length < slack:
            found |= Heuristic.LENGTH64
        first = read(start, word)
        if first is None:
            return found
        if offset == word and 2 <= first <= size - word and (size - word) % first < slack:
            found |= Heuristic.NEWARRAY
        if offset == 3 * word:
            capacity = read(start + word, word)
            if capacity is not None and first <= capacity and 0 <= size - 3 * word - 1 - capacity < slack:
                found |= Heuristic.STDSTRING
        if offset % word == 0 and vtables(first):
            inner = read(start + offset, word)
            if inner is not None and vtables(inner):
                found |= Heuristic.MULTIPLE_INHERITANCE
        return found

    return fits
