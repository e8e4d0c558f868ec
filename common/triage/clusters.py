"""Group leaked blocks of one size into clusters, one for each leak.

Blocks that one line of code leaks do not all look alike: a pointer is null in some of them, and
words that the program never wrote contain remains of former blocks. Two leaks are distinguished by
words that differ together. Example: all blocks with a function in word 0 have a string in word 3,
and all others have a lock there. These are two leaks. Remains vary independently of other words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import sqrt
from typing import NamedTuple, Optional

from findleaks.triage.shapes import DATA, HELD, LOST, OWN, TEXT_LABEL, UNCLEAR, ZERO, Shape

LEAST = 4  # Fewest leak heads of a cluster that is split off because its words differ together.
REPEATED = 4  # If each combination of words occurs in this many blocks, the words are not remains.
# Two sides differ together in a word if the distance between their distributions of classes is at
# least this large.
TOGETHER = 0.6
CHANCE = 1.0
"""Factor of sqrt((classes - 1) · (1/m + 1/n)). The product is about twice the distance that chance
alone gives for samples of m and n leak heads. Twice is needed because many words are compared, and
the largest distance counts."""
# If the sides differ in only one word, each side must have this fraction of the leak heads.
ALONE = 0.2
MIXED = 0.05  # A word is sometimes a pointer if it is one in this fraction of the leak heads.
AGREED = 0.9  # Fraction of the leak heads with a non-zero word that must agree on its class.
PRESENT = 0.1  # A word counts only if it is non-zero in this fraction of a cluster's leak heads.
# The first word of a text becomes part of the name if this fraction of the texts begins with it.
TOKEN = 0.1
LARGER = 16
"""Some blocks of a size may be larger by this number of bytes, because glibc does not split a chunk
if the rest is smaller than a chunk (malloc/malloc.c, MINSIZE)."""
OWN_SIZE = 0.1  # A size is a separate leak if it has this fraction of the leak heads of one shape.
LARGER_PART, LARGER_DATA = 0.5, 0.35
"""Maximum number of blocks that are LARGER bytes larger, for each block of the usual size.
LARGER_DATA applies if only the size of the larger blocks is known."""


MOST_WORK = 50_000_000
"""Maximum number of words of leak heads that are compared in one core. 50,000 leak heads whose
words have 6 classes take about 16 million. In a core with thousands of modules, each module could
be a separate class."""


class LeakHead(NamedTuple):
    """A leak head: its shape, and the number of leak heads, blocks and bytes that it represents."""

    shape: Shape
    size: int
    start: int
    leaks: float
    blocks: float
    bytes: float


class Cluster:
    """The leak heads of one leak.

    `size`: usable bytes of the blocks; 0 if they differ. `words`: for each of the first words, the
    class on which most blocks agree; UNCLEAR if they do not agree. `ring`: whether most of the leak
    heads are heads of cycles."""

    def __init__(self, size: int, members: Sequence[LeakHead]) -> None:
        self.size, self.members, self.label = size, list(members), members[0].shape.label
        self.weight = sum(head.leaks for head in members)
        self.ring = 2 * sum(head.leaks for head in members if head.shape.ring) > self.weight
        self.words = _words(members, self.weight)

    def join(self, other: Cluster) -> Cluster:
        """Return both clusters as one, with the size and the words of this one."""
        made = Cluster(self.size, [*self.members, *other.members])
        made.words = self.words
        return made


class _Work:
    """The number of comparisons that are still allowed."""

    def __init__(self) -> None:
        self.left = MOST_WORK

    def take(self, amount: int) -> bool:
        """Use this number of comparisons. Returns whether they were still allowed."""
        self.left -= amount
        return self.left >= 0


def clusters(heads: Sequence[LeakHead]) -> list[Cluster]:
    """Divide all leak heads into clusters."""
    work = _Work()
    groups: dict[tuple[str, int], list[LeakHead]] = {}
    for head in common_tokens(heads):
        size = 0 if head.shape.strong else head.size
        groups.setdefault((head.shape.label, size), []).append(head)
    return with_larger(Cluster(size, members) for (_, size), several in groups.items() for members in _split(several, work))


# -- different leaks of one size


def _split(heads: list[LeakHead], work: _Work) -> Iterator[list[LeakHead]]:
    """Divide leak heads of one size into leaks."""
    left = [heads]
    while left:
        several = left.pop()
        parts = _halves(several, work) if len(several) >= 2 * LEAST else None
        if parts is not None:
            left += parts
        elif len(several) < 2 * LEAST or _hold_no_remains(several, work):
            yield from _of_few(several)
        else:
            yield several


def _hold_no_remains(heads: Sequence[LeakHead], work: _Work) -> bool:
    """Whether each combination of words occurs in several blocks. The result is False if the
    comparison takes too long."""
    combinations = len({tuple(map(describe_word, head.shape.words)) for head in heads})
    return len(heads) >= REPEATED * combinations and work.take(combinations * len(heads))


def _halves(heads: list[LeakHead], work: _Work) -> Optional[list[list[LeakHead]]]:
    """Divide the leak heads into two sides: those that have a chosen class of value in a chosen
    word, and the others. Returns None if all leak heads belong to one leak, or if the allowed
    number of comparisons is used up."""
    best, chosen = TOGETHER, None
    width = max(len(head.shape.words) for head in heads)
    columns = [[_broad(head.shape.words[at]) if at < len(head.shape.words) else ZERO for head in heads] for at in range(width)]
    # A (word, class) divides the leak heads into two sides. The division is accepted if the classes
    # of another word differ between the sides. Example: "word 0 is libfoo code" is accepted if word
    # 3 is text on this side and a pointer to the block itself on the other. Remains usually fill
    # several words. Therefore a single word that varies (`lone`) is accepted only if no other word
    # is sometimes a pointer.
    parts = [_pointers(column) for column in columns]
    mixed = [at for at, part in enumerate(parts) if part >= MIXED]
    lone = mixed if len(mixed) == 1 and parts[mixed[0]] <= 1 - MIXED else []
    for at, column in enumerate(columns):
        for word, count in sorted(Counter(column).items()):
            if word in (ZERO, DATA) or count < LEAST or column.count(ZERO) + count > len(column) - LEAST:
                continue
            if not work.take(width * len(heads)):
                return None
            inside = [one == word for one in column]
            others = [one not in (word, ZERO) for one in column]
            apart = max((_distance(other, inside, others) for index, other in enumerate(columns) if index != at), default=0.0)
            if lone == [at] and word not in (HELD, OWN) and min(sum(inside), sum(others)) >= ALONE * len(heads):
                apart = max(apart, TOGETHER + 0.01)
            if apart > best:
                best, chosen = apart, (at, word)
    if chosen is None:
        return None
    at, word = chosen
    has = [head for head, one in zip(heads, columns[at]) if one == word]
    rest = [head for head, one in zip(heads, columns[at]) if one != word]
    return [has, rest]


def _pointers(column: Sequence[str]) -> float:
    """Return the fraction of the leak heads in which a word is a pointer to a leaked block or into
    a module. Only leak heads in which the word is not zero count."""
    present = [word for word in column if word != ZERO]
    return sum(word not in (DATA, HELD, OWN) for word in present) / max(len(present), 1)


def _broad(word: str) -> str:
    """Return the class of a word. Pointers to leaked blocks all have one class, because the size of
    their targets may vary."""
    return LOST if word.startswith(LOST) else word


def _distance(column: Sequence[str], inside: Sequence[bool], others: Sequence[bool]) -> float:
    """Return the total variation distance between a word's classes on the two sides. Zeros do not
    count.

    Example: 3 of 4 are DATA on one side, and 1 of 4 on the other, so the distance is 0.5. The
    result is 0 if chance may explain the distance. This is often the case for few leak heads and
    many classes."""
    sides = [Counter(word for word, is_in in zip(column, side) if is_in and word != ZERO) for side in (inside, others)]
    totals = [sum(side.values()) for side in sides]
    if min(totals) < LEAST:
        return 0.0
    classes = {*sides[0], *sides[1]}
    apart = sum(abs(sides[0][word] / totals[0] - sides[1][word] / totals[1]) for word in classes) / 2
    return apart if apart > CHANCE * sqrt((len(classes) - 1) * (1 / totals[0] + 1 / totals[1])) else 0.0


def _of_few(heads: Sequence[LeakHead]) -> Iterator[list[LeakHead]]:
    """Divide leak heads into leaks if there are too few to find words that differ together."""
    found: list[list[LeakHead]] = []
    for head in sorted(heads, key=lambda one: (one.shape.words.count(ZERO), one.shape.words, one.start)):
        near = next((several for several in found if alike(several[0].shape.words, head.shape.words)), None)
        if near is None:
            found.append([head])
        else:
            near.append(head)
    yield from found


def alike(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether blocks with these words may be of one leak. Of the words that are a pointer in either
    block, most must be the same in both. Null pointers and unclear words are not compared."""
    agree, contradict = compare_words(one, other)
    return contradict < agree or not contradict


def compare_words(one: Sequence[str], other: Sequence[str]) -> tuple[int, int]:
    """Return the number of words in which both blocks have the same pointer, and the number in
    which one block contradicts the other. It does not matter whether the target is leaked, because
    other blocks may refer to it."""
    both = [(describe_word(a), describe_word(b)) for a, b in zip(one, other)]
    clear = [(a, b) for a, b in both if a and b and (a, b) != (DATA, DATA)]
    agree = sum(a == b for a, b in clear)
    return agree, len(clear) - agree


def describe_word(word: str) -> str:
    """Return the part of a word's class that identifies a leak; "" if there is none."""
    return "" if word in (ZERO, UNCLEAR) else LOST if word == HELD else _broad(word)


# -- the description of a cluster


def _words(members: Sequence[LeakHead], weight: float) -> tuple[str, ...]:
    width = max(len(head.shape.words) for head in members)
    counts: list[dict[str, float]] = [{} for _ in range(width)]
    for head in members:
        for at, word in enumerate(head.shape.words):
            counts[at][word] = counts[at].get(word, 0) + head.leaks
    return tuple(_agree(one, weight) for one in counts)


def _agree(counts: dict[str, float], weight: float) -> str:
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
    """Return the clusters. Clusters of blocks that are LARGER bytes larger are joined with those of
    the smaller blocks."""
    left = dict(enumerate(sorted(found, key=lambda one: (-one.weight, one.words))))
    groups: dict[tuple[str, int], list[int]] = {}
    for number, one in left.items():
        groups.setdefault((one.label, one.size), []).append(number)
    for at in sorted(left, key=lambda number: left[number].weight):
        small = left[at]  # Both clusters include those that were joined with them before.
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
            left[other] = left[other].join(small)
            del left[at]
    return list(left.values())


def varying(found: Iterable[Cluster], sizes: int) -> Iterator[tuple[int, Cluster]]:
    """Yield the clusters, each with its size. Several clusters are the same leak in varying sizes
    if there are at least `sizes` of them; their size is then 0."""
    same: dict[tuple[str, tuple[str, ...]], list[Cluster]] = {}
    for cluster in found:
        same.setdefault((cluster.label, tuple(map(describe_word, cluster.words))), []).append(cluster)
    for several in same.values():
        total = sum(cluster.weight for cluster in several)
        small = {cluster.size for cluster in several if cluster.weight < OWN_SIZE * total}
        for cluster in several:
            yield (0 if len(small) >= sizes and cluster.size in small else cluster.size), cluster


def pointers(words: Iterable[str]) -> int:
    """Return the number of a cluster's words that are pointers."""
    return sum(describe_word(word) not in ("", DATA) for word in words)


def common_tokens(heads: Sequence[LeakHead]) -> list[LeakHead]:
    """Return the leak heads. A text whose first word is rare gets the label "text" only: texts of
    one origin may be names, each with a different first word."""
    counts: dict[str, float] = {}
    for head in heads:
        if head.shape.label.startswith(TEXT_LABEL) and head.shape.strong:
            counts[head.shape.label] = counts.get(head.shape.label, 0) + head.leaks
    total = sum(counts.values())
    rare = {label for label, count in counts.items() if count < TOKEN * total or (count <= 1 < total)}
    return [head._replace(shape=head.shape._replace(label=TEXT_LABEL)) if head.shape.label in rare else head for head in heads]
