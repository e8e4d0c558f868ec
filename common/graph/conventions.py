"""Conventions: offsets in blocks to which a program's pointers point, instead of the start.

SQLite, MariaDB, talloc, C++'s new[] and others put a header before the memory that they return.
Every pointer to such a block is interior, so by memcheck's rules the block is *possibly lost*
(Kind.POSSIBLE).

A convention is identified by counting: of the possible blocks with interior pointers, nearly all
have a pointer to the same offset. A convention may belong to a library, or to one structure (links
inside list nodes). So blocks are counted twice: all together, and by usable size. An offset that is
found in several sizes belongs to a library. It is then accepted in every size, because a library's
rare sizes (large buffers) have too few blocks to show it. Most reachable or possible blocks of
these sizes must have such a pointer. If most are referred to by their start, the offset is no
convention.

Tags in a pointer's low bits look like offsets below two words. Pointers to blocks of one size may
have several different tags, and tag 0 looks like no offset. Therefore all low offsets are counted
together (LOW_BITS), and blocks of the same size that are referred to by their start are not
evidence against tags.

Blocks are counted, not pointers: a pool or text buffer with a header has one pointer right behind
it, and hundreds into its contents. Stray pointers point to random offsets; MIN_SHARE tolerates a
few blocks without a pointer to the offset.

A convention only decides whether a block is possibly lost or reachable. It never decides whether a
block is definitely lost."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from functools import partial
from typing import Optional

from findleaks.engine import shared
from findleaks.engine.contract import Blocks, Engine, Graph
from findleaks.engine.interiors import LOW_BITS, MAX_OFFSET, Interiors, Row, Rule
from findleaks.engine.terms import Heuristic, Kind, Totals
from findleaks.value_classes import NamedTuple

MIN_BLOCKS = 16  # minimum number of blocks of a convention; fewer may agree by chance
# the least number of blocks of one size for its best offset to count in every size
MIN_BLOCKS_A_SIZE = 4
# sizes and offsets with fewer than 1 block in 2^18 are left out, to limit the work
MIN_SHARE_BITS = 18
MIN_SHARE = 0.9  # share of the examined blocks that must have a pointer to the offset
# An offset counts in any size if it is the best offset of this many sizes, with MIN_BLOCKS blocks.
MIN_SIZES = 4
# the largest number of rules, most frequent first; more mean a damaged or artificial heap
MAX_RULES = 1 << 16
# keys sampled at equal distances, whose blocks' contents give the name of a convention
SAMPLE = 1 << 11
_SEARCHED = 1 << 16  # keys that are searched for pointers to one offset, or blocks for lengths
_LEAST_LENGTH = 64  # bytes of a block; a reference count often looks like a smaller length
LENGTH_BYTES = 8  # bytes of the length in front of a block of LENGTH64
# the least share of a size's reachable and possible blocks with such a pointer
MIN_HELD_SHARE = 2 / 3

HALF, WORTH = 0.5, 0.1
"""The share of the unexplained pointers (HALF) and of the sample (WORTH) that a heuristic must
explain to be used."""

BY_CONTENT = {
    "length64": Heuristic.LENGTH64,
    "stdstring": Heuristic.STDSTRING,
    "multipleinheritance": Heuristic.MULTIPLE_INHERITANCE,
    "newarray": Heuristic.NEWARRAY,
}
"""memcheck's heuristics, the most specific first."""


class Convention(NamedTuple):
    """Pointers to `offset` count as pointers to the start of blocks of these sizes."""

    offset: int
    sizes: tuple[int, ...]  # usable sizes; empty: any size
    heuristic: str  # memcheck's name if it fits the contents of the blocks, else ""
    blocks: int  # blocks (and `bytes`) that the convention makes reachable
    bytes: int
    is_of_runtime: bool = False  # whether it is that of a runtime, not of the program


class Learned(NamedTuple):
    """The conventions and heuristics by which a program's interior pointers refer to its blocks."""

    conventions: tuple[Convention, ...] = ()
    heuristics: Heuristic = Heuristic.NONE  # rules applied to the whole heap, by contents
    # blocks reachable only by these conventions and heuristics, directly or through other blocks
    held: Totals = Totals(0, 0)
    # whether the blocks that NEWARRAY explains have elements (ArrayTest)
    has_arrays: bool = False


NO_CONVENTIONS = Learned()

HeuristicMatcher = Callable[[int, int, int], Heuristic]
"""(address, usable size, offset) -> memcheck's heuristics that fit a pointer to that offset."""

ArrayTest = Callable[[int, int], bool]
"""(address, usable size) -> whether the elements of `new T[n]` follow the number in the first word.
A number that can be the count of elements is not evidence: reference counts, kinds and lengths in C
programs look the same."""


class Candidate(NamedTuple):
    """An offset that may be a convention."""

    offset: int
    sizes: tuple[int, ...]  # sizes in which it was found
    blocks: int  # blocks of these sizes with a pointer to the offset
    common: bool  # whether the offset counts in every size
    anywhere: bool = False  # whether the offset is found only if all sizes are counted together
    each: tuple[int, ...] = ()  # the blocks of each of `sizes`


def candidates(rows: Iterable[Row]) -> list[Candidate]:
    """Return the offsets to which nearly all possible blocks of a size, or of all sizes, have a
    pointer. LOW_BITS is returned if only several low offsets together reach MIN_SHARE."""
    looked: dict[int, int] = {}
    tagged: dict[int, int] = {}
    best: dict[int, tuple[int, int]] = {}
    for size, offset, blocks in rows:
        if not offset:
            looked[size] = blocks
        elif offset == LOW_BITS:
            tagged[size] = blocks
        elif (blocks, -offset) > best.get(size, (0, 0)):
            best[size] = (blocks, -offset)
    for size, blocks in tagged.items():
        if best.get(size, (0, 0))[0] < MIN_SHARE * looked.get(size, blocks + 1):
            best[size] = (blocks, -LOW_BITS)
    votes: dict[int, list[tuple[int, int]]] = {}
    for size, (blocks, less) in sorted(best.items()):
        if blocks >= MIN_BLOCKS_A_SIZE and blocks >= MIN_SHARE * looked.get(size, blocks + 1):
            votes.setdefault(-less, []).append((size, blocks))
    found: list[Candidate] = []
    for offset, its in votes.items():
        every = next((blocks for size, blocks in its if not size), 0)
        single = [(size, blocks) for size, blocks in its if size]
        total = sum(blocks for _, blocks in single)
        if every >= MIN_BLOCKS and 2 * total < every:
            found.append(Candidate(offset, (), every, True, True))
        elif every >= MIN_BLOCKS or (len(single) >= MIN_SIZES and total >= MIN_BLOCKS):
            sizes, each = zip(*single)
            found.append(Candidate(offset, sizes, total, True, each=each))
        else:
            found += [Candidate(offset, (size,), blocks, False, each=(blocks,)) for size, blocks in single if blocks >= MIN_BLOCKS]
    return sorted(found, key=lambda one: (not one.common, -one.blocks, one.offset, one.sizes))[:MAX_RULES]


def rules_of(found: Iterable[Candidate], held: Callable[[int], int], word: int) -> list[Rule]:
    """Return the rules of the accepted candidates, ascending. A candidate is an offset in a block.
    It is accepted if most reachable and possible blocks of its sizes are referenced at this offset,
    or if the low bits of tagged pointers explain it. If a common offset is not accepted, the rule
    is examined in each size with MIN_BLOCKS blocks: other parts of a program may allocate many
    small blocks without the header of a library.

    `held(size)` is the number of reachable and possible blocks of a size (0: of all sizes). `word`
    is the size of a pointer in bytes."""
    rules: set[Rule] = set()
    for one in found:
        every = held(0) if one.anywhere else sum(held(size) for size in one.sizes)
        if one.offset < word or one.offset == LOW_BITS or one.blocks >= MIN_HELD_SHARE * every:
            offsets = range(1, 2 * word) if one.offset == LOW_BITS else (one.offset,)
            rules.update((size, offset) for size in ((0,) if one.common else one.sizes) for offset in offsets)
        elif one.common:
            its = zip(one.sizes, one.each)
            rules.update((size, one.offset) for size, blocks in its if blocks >= max(MIN_BLOCKS, MIN_HELD_SHARE * held(size)))
    return sorted(rules)


def learn_conventions(
    graph: Graph,
    blocks: Blocks,
    engine: Engine,
    word: int,
    fits: HeuristicMatcher,
    has_elements: ArrayTest,
    budget: int,
    progress: Callable[[str, float], None],
    known: Sequence[Rule] = (),
) -> Learned:
    """Find and apply the conventions of a marked graph that was built with Heuristic.AUTO. `known`:
    rules that apply in any case, because runtimes know the structures.

    If there are no conventions, but one of memcheck's heuristics explains most of a sample, the
    graph is not changed, and `heuristics` of the result contains the heuristic. The caller must
    then build the graph again with it."""
    if not graph.has_kind(Kind.POSSIBLE, 1 if known else MIN_BLOCKS):
        return NO_CONVENTIONS

    def report(part: float = 0.0) -> None:
        progress("looking for headers", part)

    interiors = graph.interiors()
    keys = _all(interiors, engine, budget, report)
    fits = _exclude_members(graph, blocks, keys, fits)
    for at in range(0, len(keys), budget):
        report(at / len(keys))
        interiors.count(keys[at : at + budget])
    found = candidates(interiors.rows(max(MIN_BLOCKS_A_SIZE, len(keys) >> MIN_SHARE_BITS)))
    rules = rules_of(found, _count_held(interiors, found, len(blocks), budget, report), word) if found else []
    is_common = any(one.common and one.offset == LENGTH_BYTES for one in found)
    if is_common and (0, LENGTH_BYTES) not in rules and _have_length(blocks, keys, fits):
        rules.append((0, LENGTH_BYTES))
    rules = sorted({*rules, *known})
    sample = list(_sample_pointers(blocks, keys, frozenset(rules), fits, has_elements))
    unexplained = _by_content(sample, len(keys))
    if unexplained:
        counted = [one.has_elements for one in sample if not one.explained and one.fitting & Heuristic.NEWARRAY]
        return Learned(heuristics=unexplained, has_arrays=sum(counted) > HALF * len(counted))
    if not rules:
        return NO_CONVENTIONS
    before = graph.totals(Kind.POSSIBLE)
    while not interiors.accept(rules, budget):
        report()
    while not interiors.promote(budget):
        report()
    after = graph.totals(Kind.POSSIBLE)
    effects = interiors.effect(keys, rules)
    names = {offset: _name_convention(sample, offset) for offset in {offset for _, offset in rules}}
    return Learned(tuple(_conventions(rules, effects, names, frozenset(known))), held=before.minus(after))


def _all(interiors: Interiors, engine: Engine, budget: int, report: Callable[[], None]) -> array[int]:
    """Return all keys, ascending and without repetition."""
    keys, done = interiors.keys(budget)
    while not done:
        report()
        more, done = interiors.keys(budget)
        keys += more
    return engine.sum_by_value(keys, array("Q"))[0]


def _count_held(
    interiors: Interiors, found: Sequence[Candidate], count: int, budget: int, report: Callable[[float], None]
) -> Callable[[int], int]:
    """Count the reachable and possible blocks of the sizes of all candidates. Return a function
    from size to count; size 0 gives the count of all blocks."""
    sizes = sorted({size for one in found for size in one.sizes})
    counts = array("Q", bytes(8 * len(sizes) + 8))
    at = 0
    while at < count:
        report(at / count)
        at = interiors.count_held(sizes, counts, at, budget)
    return dict(zip([*sizes, 0], counts)).__getitem__


def _find_behind_length(keys: Sequence[int]) -> list[int]:
    """Return the indices of possible blocks with a pointer behind their first word, which may be
    their length. Of many keys, only each one at a distance of `_step` is examined."""
    return [key >> 32 for key in keys[:: _step(keys)] if key & MAX_OFFSET == LENGTH_BYTES]


def _step(items: Sized) -> int:
    return max(1, len(items) // _SEARCHED)


def _begins_with_length(blocks: Blocks, fits: HeuristicMatcher, index: int) -> bool:
    return bool(fits(blocks.address(index), blocks.size(index), LENGTH_BYTES) & Heuristic.LENGTH64)


def _exclude_members(graph: Graph, blocks: Blocks, keys: Sequence[int], fits: HeuristicMatcher) -> HeuristicMatcher:
    """Return `fits`, but no heuristic fits a length at the start of a block if such lengths are
    members of structs.

    The program then refers to more than a third of the blocks that begin with their length by their
    start. A pointer behind the length may be an old one, and the block may be leaked."""
    begins_with_length = partial(_begins_with_length, blocks, fits)
    possible = [index for index in _find_behind_length(keys) if blocks.size(index) >= _LEAST_LENGTH]
    sample = possible[:: max(1, len(possible) // SAMPLE)]
    fitting = list(filter(begins_with_length, sample))
    if not fitting:
        return fits
    kinds, sizes, apart = graph.kinds(), {blocks.size(index) for index in fitting}, _step(blocks)
    reachable = [index for index in range(0, len(blocks), apart) if kinds[index] == Kind.REACHABLE and blocks.size(index) in sizes]
    with_header = _step(keys) * len(possible) * len(fitting) / len(sample)
    if with_header >= MIN_HELD_SHARE * (with_header + apart * sum(map(begins_with_length, reachable))):
        return fits

    def fits_without_length(start: int, size: int, offset: int) -> Heuristic:
        found = fits(start, size, offset)
        # A length is also the number of elements of one byte.
        return found & ~(Heuristic.LENGTH64 | Heuristic.NEWARRAY) if found & Heuristic.LENGTH64 else found

    return fits_without_length


def _have_length(blocks: Blocks, keys: Sequence[int], fits: HeuristicMatcher) -> bool:
    """Return whether the possible blocks with a pointer behind their first word begin with their
    lengths. This is proof enough for a common offset, although other parts of the program refer to
    most blocks of the same sizes by their start, as CPython does beside SQLite."""
    possible = _find_behind_length(keys)
    sample = possible[:: max(1, len(possible) // SAMPLE)]
    fitting = sum(_begins_with_length(blocks, fits, index) for index in sample)
    return len(sample) >= MIN_BLOCKS and fitting >= MIN_SHARE * len(sample)


class Sampled(NamedTuple):
    """A sampled pointer to a block: its offset in the block, and what explains it."""

    offset: int
    explained: bool  # a rule explains the pointer
    fitting: Heuristic  # heuristics that fit the block's contents
    has_elements: bool  # whether NEWARRAY fits, and the elements as well


def _sample_pointers(
    blocks: Blocks, keys: Sequence[int], rules: frozenset[Rule], fits: HeuristicMatcher, has_elements: ArrayTest
) -> Iterator[Sampled]:
    """Yield a sample of the pointers in `keys`, at equal distances.

    If a block begins with its length, and has a pointer behind it that no rule explains, the length
    also explains the pointers to other offsets of the block: statements of SQLite have many of
    them."""
    for key in keys[:: max(1, len(keys) // SAMPLE)]:
        index, offset = key >> 32, key & MAX_OFFSET
        address, size = blocks.address(index), blocks.size(index)
        explained = (0, offset) in rules or (size, offset) in rules
        fitting = fits(address, size, offset)
        behind = key - offset + LENGTH_BYTES
        at = bisect_left(keys, behind)
        if not rules & {(0, LENGTH_BYTES), (size, LENGTH_BYTES)} and keys[at : at + 1] == array("Q", [behind]):
            fitting |= fits(address, size, LENGTH_BYTES) & Heuristic.LENGTH64
        yield Sampled(offset, explained, fitting, bool(fitting & Heuristic.NEWARRAY) and has_elements(address, size))


def _by_content(sample: Sequence[Sampled], count: int) -> Heuristic:
    """Return the heuristics that explain most of the pointers that no rule explains. Each must
    explain HALF of the pointers that are left, and MIN_BLOCKS blocks. The first must explain WORTH
    of the sample, because the graph must then be built again. Each further one must explain
    MIN_BLOCKS_A_SIZE pointers of the sample: one pointer may stand for thousands, and may fit by
    chance. `count` is the number of all keys."""
    left, accepted = [one.fitting for one in sample if not one.explained], Heuristic.NONE
    while left:
        found: Counter[Heuristic] = Counter()
        for fitting, number in Counter(left).items():  # few are different, and `&` is slow
            found.update({one: number for one in BY_CONTENT.values() if fitting & one})
        best = max(found, key=lambda one: found[one], default=Heuristic.NONE)
        most = found[best]
        enough = most * max(1, count // max(1, len(sample))) >= MIN_BLOCKS
        if not enough or most < max(HALF * len(left), MIN_BLOCKS_A_SIZE if accepted else WORTH * len(sample)):
            break
        accepted |= best
        left = [fitting for fitting in left if not fitting & best]
    return accepted


def _name_convention(sample: Sequence[Sampled], offset: int) -> str:
    """Return memcheck's name for a convention if the contents of nearly all sampled blocks fit its
    rule; otherwise "". For newarray, the elements must fit as well."""
    named = (one for one in sample if one.explained and one.offset == offset)
    its = Counter(one.fitting if one.has_elements else one.fitting & ~Heuristic.NEWARRAY for one in named)
    least = max(1, MIN_SHARE * sum(its.values()))
    fitting = ((name, sum(number for one, number in its.items() if one & heuristic)) for name, heuristic in BY_CONTENT.items())
    return next((name for name, number in fitting if number >= least), "")


def _conventions(rules: Sequence[Rule], effects: Sequence[Totals], names: dict[int, str], known: frozenset[Rule]) -> Iterator[Convention]:
    """Yield the conventions that changed the kind of a block, most bytes first. `known`: the rules
    of runtimes."""
    sizes: dict[tuple[int, bool], list[int]] = {}
    sums: dict[tuple[int, bool], Totals] = {}
    for rule, effect in zip(rules, effects):
        size, offset = rule
        if effect.blocks:
            key = (offset, rule in known)
            sums[key] = Totals.sum_of((sums.get(key, Totals(0, 0)), effect))
            sizes.setdefault(key, []).append(size)
    for key in sorted(sums, key=lambda one: (-sums[one].bytes, one)):
        offset, is_of_runtime = key
        of = () if 0 in sizes[key] else tuple(sizes[key])
        yield Convention(offset, of, names[offset], *sums[key], is_of_runtime)


def heuristic_matcher(word: int, read: Callable[[int, int], Optional[int]], vtables: Callable[[int], bool]) -> HeuristicMatcher:
    """Make a matcher that reads words with `read` (address, bytes; None if missing); see
    terms.Heuristic.

    The element count of an array must be at least 2, because 1 is a common reference count."""
    slack = shared.SLACK_WORDS * word

    def fits(start: int, size: int, offset: int) -> Heuristic:
        found = Heuristic.NONE
        length = read(start, LENGTH_BYTES) if offset == LENGTH_BYTES else None
        if length is not None and 0 <= size - LENGTH_BYTES - length < slack:
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
