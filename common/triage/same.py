"""Find the same leak in many cores.

A core may have a single block of a leak. This block does not show which of its words are always
pointers and which are stale. In another core, all blocks of a leak may refer to blocks that were
reachable by chance. Therefore the leaks of all cores are compared, those with the most blocks
first. Each leak joins the leak with which it has the most in common, unless both are in the same
cores, because two signatures in one core are two leaks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from findleaks.triage.clusters import Cluster, LeakHead, alike, common_tokens, compare_words, describe_word, pointers, varying, with_larger
from findleaks.triage.row import LeakSum
from findleaks.triage.shapes import LOST, UNCLEAR, ZERO, Shape

# If one shape occurs in this many sizes with few blocks each, it is one leak whose size varies.
SIZES = 8
BESIDE = 0.5  # Leaks are different if this fraction of the cores of one has the other, too.


class Same(NamedTuple):
    """One leak. `signatures`: its signatures in the single cores. `size`: 0 if it varies."""

    label: str
    size: int
    ring: bool
    words: tuple[str, ...]
    signatures: tuple[str, ...]


@dataclass
class _Seen:
    """A signature: a leak head that represents all leaks with this signature, and the cores that
    have them."""

    leak_head: LeakHead
    cores: set[int] = field(default_factory=set)


def same_leaks(leaks: Iterable[tuple[int, LeakSum]]) -> list[Same]:
    """Group the leaks of one program. `leaks`: pairs of the core's number and a leak. Each group
    contains the leaks that are the same."""
    seen = _by_signature(leaks)
    names = list(seen)
    by_kind: dict[tuple[str, int], list[LeakHead]] = {}
    for leak_head in common_tokens([one.leak_head for one in seen.values()]):
        by_kind.setdefault((leak_head.shape.label, leak_head.size), []).append(leak_head)
    cores = [one.cores for one in seen.values()]
    found = [Cluster(size, members) for (_, size), several in sorted(by_kind.items()) for members in _join_leaks(several, cores)]
    same: dict[tuple[str, int, tuple[str, ...]], Cluster] = {}
    for size, one in varying(with_larger(found), SIZES):
        key = one.label, size, tuple(map(describe_word, one.words))
        same[key] = same[key].join(one) if key in same else one
    return [
        Same(label, size, one.ring, one.words, tuple(sorted(names[leak_head.start] for leak_head in one.members)))
        for (label, size, _), one in same.items()
    ]


def _by_signature(leaks: Iterable[tuple[int, LeakSum]]) -> dict[str, _Seen]:
    """Return the leaks by signature, in order. `start` of each leak head is its position in this
    order."""
    found: dict[str, list[tuple[int, LeakSum]]] = {}
    for core, leak in leaks:
        found.setdefault(leak.signature, []).append((core, leak))
    seen = {}
    for number, (signature, several) in enumerate(sorted(found.items())):
        label, size = several[0][1].label, several[0][1].size
        words = tuple(_common(column) for column in zip(*(leak.words for _, leak in several)))
        count = sum(leak.leaks for _, leak in several)
        ring = 2 * sum(leak.leaks for _, leak in several if leak.ring) > count
        leak_head = LeakHead(Shape(label, not size, ring, words), size, number, count, 0, 0)
        seen[signature] = _Seen(leak_head, {core for core, _ in several})
    return seen


def _common(column: Iterable[str]) -> str:
    """Return one class for a word of leaks with the same signature. `column`: the class of the word
    in each of these leaks."""
    classes = set(column)
    if len(classes) == 1:
        return classes.pop()
    return f"{LOST}blocks" if all(describe_word(one) == LOST for one in classes) else min(classes - {UNCLEAR, ZERO}, default=UNCLEAR)


def _join_leaks(leak_heads: Sequence[LeakHead], cores: Sequence[set[int]]) -> list[list[LeakHead]]:
    """Group leaks with the same label and size. Leaks with the most blocks come first. Each group
    contains leaks that are the same."""
    found: list[list[LeakHead]] = []
    inside: list[set[int]] = []
    for leak_head in sorted(leak_heads, key=lambda one: (-one.leaks, one.shape.words, one.start)):
        own = cores[leak_head.start]
        near = []
        for at, several in enumerate(found):
            agree, contradict = compare_words(several[0].shape.words, leak_head.shape.words)
            if _same(several[0].shape.words, leak_head.shape.words) and len(own & inside[at]) < max(BESIDE * len(own), 1):
                near.append((agree - contradict, -at))
        if near:
            at = -max(near)[1]
            found[at].append(leak_head)
            inside[at] |= own
        else:
            found.append([leak_head])
            inside.append(set(own))
    return found


def _same(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two leaks are alike. If both have pointers, they must have a pointer in common."""
    return alike(one, other) and (not pointers(one) or not pointers(other) or compare_words(one, other)[0] > 0)
