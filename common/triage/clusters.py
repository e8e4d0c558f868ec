"""Lost blocks of one size sorted into clusters, one for each leak.

Not all blocks that one line of code loses look alike: a pointer of some of them is null, and words
that the program never wrote hold remains of former blocks. What distinguishes leaks is that words
differ together: where one has a function, the next has a string. Remains differ each on their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import sqrt
from typing import NamedTuple, Optional

from findleaks.triage.shapes import DATA, HELD, LOST, OWN, TEXT_LABEL, UNCLEAR, ZERO, Shape

LEAST = 4  # fewest leaders of a cluster that is split off by how its words go together
REPEATED = 4  # blocks for each combination of words, from which on they hold no remains
TOGETHER = 0.6  # distance between distributions of a word's classes from which on they go together
CHANCE = 1.0
"""Factor of sqrt((classes - 1) · (1/m + 1/n)), some twice the distance that chance gives samples of
m and n leaders: many are compared, and the largest counts."""
ALONE = 0.2  # share of the leaders of either side where only a single word differs
MIXED = 0.05  # share of the leaders from which on a word is a pointer in some of them
AGREED = 0.9  # share of a cluster's leaders with a word that is not zero that agree on its class
PRESENT = 0.1  # share of a cluster's leaders in which a word is not zero, for it to count
TOKEN = 0.1  # share of the texts that begin with one word, for it to be named
LARGER = 16
"""Bytes by which some blocks of a size are larger: glibc gives a chunk whole where the rest would
be no chunk (malloc/malloc.c, MINSIZE)."""
OWN_SIZE = 0.1  # share of the leaders of one shape that a size needs to be a leak of its own
LARGER_PART, LARGER_DATA = 0.5, 0.35
"""Such blocks for one of the usual size, at most; and where only the size is known of them."""


MOST_WORK = 50_000_000
"""Words of leaders that are compared in one core, at most: 50,000 leaders whose words are of 6
classes take some 16 million. In a core of thousands of modules each could be a leak of its own."""


class Leader(NamedTuple):
    """A lost block that leads: its shape, and how many leaders, blocks and bytes it represents."""

    shape: Shape
    size: int
    start: int
    leaks: float
    blocks: float
    bytes: float


class Cluster:
    """Leaders of one leak. `size`: of the blocks; 0: they vary. `words`: the class of each of their
    first words, UNCLEAR where they do not agree on one. `ring`: most of them lead cycles."""

    def __init__(self, size: int, members: Sequence[Leader]) -> None:
        self.size, self.members, self.label = size, list(members), members[0].shape.label
        self.weight = sum(leader.leaks for leader in members)
        self.ring = 2 * sum(leader.leaks for leader in members if leader.shape.ring) > self.weight
        self.words = _words(members, self.weight)

    def joined(self, other: Cluster) -> Cluster:
        """Both, with the size and the words of this one."""
        made = Cluster(self.size, [*self.members, *other.members])
        made.words = self.words
        return made


class _Work:
    """What may still be compared."""

    def __init__(self) -> None:
        self.left = MOST_WORK

    def take(self, amount: int) -> bool:
        """Whether so much may be."""
        self.left -= amount
        return self.left >= 0


def clusters(leaders: Sequence[Leader]) -> list[Cluster]:
    """All leaders in clusters."""
    work = _Work()
    groups: dict[tuple[str, int], list[Leader]] = {}
    for leader in common_tokens(leaders):
        size = 0 if leader.shape.strong else leader.size
        groups.setdefault((leader.shape.label, size), []).append(leader)
    return with_larger(Cluster(size, members) for (_, size), several in groups.items() for members in _split(several, work))


# -- different leaks of one size


def _split(leaders: list[Leader], work: _Work) -> Iterator[list[Leader]]:
    """The leaders of each leak."""
    left = [leaders]
    while left:
        several = left.pop()
        parts = _halves(several, work) if len(several) >= 2 * LEAST else None
        if parts is not None:
            left += parts
        elif len(several) < 2 * LEAST or _hold_no_remains(several, work):
            yield from _of_few(several)
        else:
            yield several


def _hold_no_remains(leaders: Sequence[Leader], work: _Work) -> bool:
    """Whether each combination of words is in several; False if to compare them takes too long."""
    combinations = len({tuple(map(said, leader.shape.words)) for leader in leaders})
    return len(leaders) >= REPEATED * combinations and work.take(combinations * len(leaders))


def _halves(leaders: list[Leader], work: _Work) -> Optional[list[list[Leader]]]:
    """The leaders with one class of some word, and the others, if that is another leak; None if all
    are of one leak, or there is no more time for more."""
    best, chosen = TOGETHER, None
    width = max(len(leader.shape.words) for leader in leaders)
    columns = [[_broad(leader.shape.words[at]) if at < len(leader.shape.words) else ZERO for leader in leaders] for at in range(width)]
    # Where remains are, they are in several words; and blocks that all have one pointer are alike.
    parts = [_pointers(column) for column in columns]
    mixed = [at for at, part in enumerate(parts) if part >= MIXED]
    lone = mixed if len(mixed) == 1 and parts[mixed[0]] <= 1 - MIXED else []
    for at, column in enumerate(columns):
        for word, count in sorted(Counter(column).items()):
            if word in (ZERO, DATA) or count < LEAST or column.count(ZERO) + count > len(column) - LEAST:
                continue
            if not work.take(width * len(leaders)):
                return None
            inside = [one == word for one in column]
            others = [one not in (word, ZERO) for one in column]
            apart = max((_distance(other, inside, others) for index, other in enumerate(columns) if index != at), default=0.0)
            if lone == [at] and word not in (HELD, OWN) and min(sum(inside), sum(others)) >= ALONE * len(leaders):
                apart = max(apart, TOGETHER + 0.01)
            if apart > best:
                best, chosen = apart, (at, word)
    if chosen is None:
        return None
    at, word = chosen
    has = [leader for leader, one in zip(leaders, columns[at]) if one == word]
    rest = [leader for leader, one in zip(leaders, columns[at]) if one != word]
    return [has, rest]


def _pointers(column: Sequence[str]) -> float:
    """Share of a word that is a pointer to a lost block, or into a module, where it is not zero."""
    present = [word for word in column if word != ZERO]
    return sum(word not in (DATA, HELD, OWN) for word in present) / max(len(present), 1)


def _broad(word: str) -> str:
    """All lost blocks are of one class: what one pointer points to may vary in size."""
    return LOST if word.startswith(LOST) else word


def _distance(column: Sequence[str], inside: Sequence[bool], others: Sequence[bool]) -> float:
    """Total variation between a word's classes in the leaders of two sides; zeros say nothing. 0 if
    it may be chance: of few leaders and many classes, it is large for no reason."""
    sides = [Counter(word for word, is_in in zip(column, side) if is_in and word != ZERO) for side in (inside, others)]
    totals = [sum(side.values()) for side in sides]
    if min(totals) < LEAST:
        return 0.0
    classes = {*sides[0], *sides[1]}
    apart = sum(abs(sides[0][word] / totals[0] - sides[1][word] / totals[1]) for word in classes) / 2
    return apart if apart > CHANCE * sqrt((len(classes) - 1) * (1 / totals[0] + 1 / totals[1])) else 0.0


def _of_few(leaders: Sequence[Leader]) -> Iterator[list[Leader]]:
    """The leaders of each leak where they are too few to see what goes together."""
    found: list[list[Leader]] = []
    for leader in sorted(leaders, key=lambda one: (one.shape.words.count(ZERO), one.shape.words, one.start)):
        near = next((several for several in found if alike(several[0].shape.words, leader.shape.words)), None)
        if near is None:
            found.append([leader])
        else:
            near.append(leader)
    yield from found


def alike(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether blocks with these words may be of one leak: of the words that are a pointer in one of
    them, most are the same in both. A null pointer says nothing, nor does what is not clear."""
    agree, contradict = compared(one, other)
    return contradict < agree or not contradict


def compared(one: Sequence[str], other: Sequence[str]) -> tuple[int, int]:
    """How many words agree on a pointer, and how many contradict. Whether the block that is pointed
    to is lost or held is another matter: others may hold it."""
    both = [(said(a), said(b)) for a, b in zip(one, other)]
    clear = [(a, b) for a, b in both if a and b and (a, b) != (DATA, DATA)]
    agree = sum(a == b for a, b in clear)
    return agree, len(clear) - agree


def said(word: str) -> str:
    """What a word's class says about a leak; "" for nothing."""
    return "" if word in (ZERO, UNCLEAR) else LOST if word == HELD else _broad(word)


# -- what a cluster is


def _words(members: Sequence[Leader], weight: float) -> tuple[str, ...]:
    width = max(len(leader.shape.words) for leader in members)
    counts: list[dict[str, float]] = [{} for _ in range(width)]
    for leader in members:
        for at, word in enumerate(leader.shape.words):
            counts[at][word] = counts[at].get(word, 0) + leader.leaks
    return tuple(_agreed(one, weight) for one in counts)


def _agreed(counts: dict[str, float], weight: float) -> str:
    present = {word: count for word, count in counts.items() if word not in (ZERO, UNCLEAR)}
    total = sum(present.values())
    if not present or total < PRESENT * weight:
        return ZERO if counts.get(ZERO, 0) >= AGREED * weight else UNCLEAR
    word = max(present, key=lambda one: (present[one], one))
    if present[word] >= AGREED * total:
        return word
    blocks = sum(count for one, count in present.items() if one == HELD or one.startswith(LOST))
    return LOST + "blocks" if blocks >= AGREED * total else UNCLEAR


def with_larger(found: Iterable[Cluster]) -> list[Cluster]:
    """Clusters joined with those of blocks that are LARGER."""
    left = dict(enumerate(sorted(found, key=lambda one: (-one.weight, one.words))))
    groups: dict[tuple[str, int], list[int]] = {}
    for number, one in left.items():
        groups.setdefault((one.label, one.size), []).append(number)
    for at in sorted(left, key=lambda number: left[number].weight):
        small = left[at]  # with those that were joined with it
        if not small.size:
            continue
        usual = [(other, left[other]) for other in groups.get((small.label, small.size - LARGER), ()) if other in left]
        near = [
            (len(set(enumerate(one.words)) ^ set(enumerate(small.words))), other)
            for other, one in usual
            if small.weight <= (LARGER_PART if pointers(one.words) else LARGER_DATA) * one.weight
            and (alike(one.words, small.words) or small.weight < LEAST)
        ]
        if near:
            _, other = min(near)
            left[other] = left[other].joined(small)
            del left[at]
    return list(left.values())


def varying(found: Iterable[Cluster], sizes: int) -> Iterator[tuple[int, Cluster]]:
    """The clusters with their size; 0 for those that are the same leak in varying sizes, of which
    there are so many at least."""
    same: dict[tuple[str, tuple[str, ...]], list[Cluster]] = {}
    for cluster in found:
        same.setdefault((cluster.label, tuple(map(said, cluster.words))), []).append(cluster)
    for several in same.values():
        total = sum(cluster.weight for cluster in several)
        small = {cluster.size for cluster in several if cluster.weight < OWN_SIZE * total}
        for cluster in several:
            yield (0 if len(small) >= sizes and cluster.size in small else cluster.size), cluster


def pointers(words: Iterable[str]) -> int:
    """How many of a cluster's words are pointers."""
    return sum(said(word) not in ("", DATA) for word in words)


def common_tokens(leaders: Sequence[Leader]) -> list[Leader]:
    """The leaders; texts that begin with a word that few others do are "text" only: texts of one
    origin may be names, each with a beginning of its own."""
    counts: dict[str, float] = {}
    for leader in leaders:
        if leader.shape.label.startswith(TEXT_LABEL) and leader.shape.strong:
            counts[leader.shape.label] = counts.get(leader.shape.label, 0) + leader.leaks
    total = sum(counts.values())
    rare = {label for label, count in counts.items() if count < TOKEN * total or (count <= 1 < total)}
    return [leader._replace(shape=leader.shape._replace(label=TEXT_LABEL)) if leader.shape.label in rare else leader for leader in leaders]
