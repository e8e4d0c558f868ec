"""Signatures: what the same leak has in common in many cores, whatever the addresses and however
the program was built.

A signature is a digest of the program's name, and of what the lost blocks are: their type; of text,
the word that it begins with; of others the size, the classes of their first words (shapes.py), and
whether they are in a cycle. Numbers of blocks are no part of it: they grow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from findleaks.allocators.memory import Memory
from findleaks.audit.leak_groups import hint_of, lost_groups
from findleaks.engine.contract import Graph
from findleaks.engine.terms import Group, Kind
from findleaks.formatting import number
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.target.ranges import inside
from findleaks.triage.clusters import Cluster, Leader, clusters
from findleaks.triage.row import LeakSum
from findleaks.triage.shapes import DATA, LOST, ZEROS_LABEL, Shapes

SAMPLED = 50_000  # lost blocks that are looked at one by one, at most: about a second
EACH = 2_000  # of one size, type and cycle
SIZES = 8  # sizes of one shape, few blocks each, from which on it is one leak of varying size
OWN_SIZE = 0.1  # share of a shape's blocks that a size needs to be a leak of its own

_LEADS = re.compile(re.escape(bytes([Kind.DEFINITE])))
_Key = tuple[int, int, bool]


def leak_sums(session: Session, program: str) -> list[LeakSum]:
    """The definite leaks of a core by signature, most bytes first."""
    graph = session.latest
    groups = [group for group in lost_groups(session, graph) if group.kind == Kind.DEFINITE]
    sums: dict[str, LeakSum] = {}
    for size, cluster in _varying(clusters(list(_leaders(session, graph, groups)))):
        one = _summed(session, program, size, cluster)
        before = sums.get(one.signature)
        sums[one.signature] = _added(before, one) if before is not None else one
    return sorted(sums.values(), key=lambda one: (-one.bytes, one.signature))


def _leaders(session: Session, graph: Graph, groups: Sequence[Group]) -> Iterator[Leader]:
    """The leaders, or of very many a sample in which each represents several."""
    blocks, shapes = session.directory.blocks, Shapes(session, graph)
    for group, starts in zip(groups, _members(session, graph, groups)):
        whole = len(starts) == group.blocks
        part = 1 / max(len(starts), 1)
        for count, start in enumerate(starts):
            if count % 256 == 0:
                session.report_progress("comparing the lost", 0.0)
            index = blocks.find(start)
            shape = shapes.of(start, group.size, group.cycle > 1, group.indirect_blocks > 0)
            if whole:
                hanging = graph.indirect_totals(index)
                yield Leader(shape, group.size, start, 1, 1 + hanging.blocks, group.size + hanging.bytes)
            else:
                every = group.blocks + group.indirect_blocks, group.bytes + group.indirect_bytes
                yield Leader(shape, group.size, start, part * group.blocks, part * every[0], part * every[1])


def _members(session: Session, graph: Graph, groups: Sequence[Group]) -> list[list[int]]:
    """Addresses of the blocks of each group: all of up to EACH, else a sample; the group's
    examples at least."""
    at_key = {(_key(group), group.type_word): at for at, group in enumerate(groups)}
    found: list[list[int]] = [[] for _ in groups]
    blocks, types = session.directory.blocks, session.types.ranges()
    memory = Memory(session.target)
    kinds = graph.kinds()
    step = 1 + sum(group.blocks for group in groups) // SAMPLED
    for count, match in enumerate(_LEADS.finditer(kinds)):
        if count % 4096 == 0:
            session.report_progress("looking at the lost", match.start() / max(len(kinds), 1))
        if count % step:
            continue
        index = match.start()
        start, size = blocks.address(index), blocks.size(index)
        key = size, graph.cycle(index), graph.indirect_totals(index).blocks > 0
        at = at_key.get((key, _type_word(memory, types, start, size)))
        if at is not None and (len(found[at]) < EACH or groups[at].blocks <= EACH):
            found[at].append(start)
    return [starts or list(group.examples) for group, starts in zip(groups, found)]


def _key(group: Group) -> _Key:
    return group.size, group.cycle, group.indirect_blocks > 0


def _type_word(memory: Memory, types: Sequence[Range], start: int, size: int) -> int:
    """A block's first word as the engine groups by it: 0 for one that is no type."""
    if size < memory.size or start % memory.size:
        return 0
    first = memory.word(start) or 0
    return first if first and inside(types, first) is not None else 0


def _varying(found: Iterable[Cluster]) -> Iterator[tuple[int, Cluster]]:
    """The clusters with their size; 0 for those that are the same leak in varying sizes."""
    alike: dict[tuple[str, bool, tuple[str, ...]], list[Cluster]] = {}
    for cluster in found:
        alike.setdefault((cluster.label, cluster.ring, cluster.words), []).append(cluster)
    for several in alike.values():
        total = sum(cluster.weight for cluster in several)
        small = {cluster.size for cluster in several if cluster.weight < OWN_SIZE * total}
        for cluster in several:
            yield (0 if len(small) >= SIZES and cluster.size in small else cluster.size), cluster


def _summed(session: Session, program: str, size: int, cluster: Cluster) -> LeakSum:
    words = cluster.words
    key = "\n".join([program, cluster.label, str(size), "ring" if cluster.ring else "", *words])
    leaks, blocks, held = (round(sum(values)) for values in zip(*(leader[3:6] for leader in cluster.members)))
    first = min(cluster.members, key=lambda leader: leader.start)
    return LeakSum(
        signature=blake2b(key.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest(),
        what=described(cluster.label, size, cluster.ring, words),
        hint=hint_of(session, first.start, first.size) if not cluster.label or cluster.label.startswith("text") else "",
        leaks=leaks,
        blocks=blocks,
        bytes=held,
        example=first.start,
    )


def described(label: str, size: int, ring: bool, words: Sequence[str]) -> str:
    """What a signature is of, for a reader: "48 B → text, 48 B", "cycle of 64 B", "Foo"."""
    sized = f"{number(size)} B" if size else ""
    if label == ZEROS_LABEL:
        text = f"{sized or 'blocks'} of zeros"
    elif label:
        text = f"{label} ({sized})" if sized else label
    else:
        text = sized or "blocks of varying size"
    targets = list(dict.fromkeys(word[len(LOST) :] for word in words if word.startswith(LOST)))
    others = list(dict.fromkeys(word for word in words if word != DATA and not word.startswith(LOST)))
    if targets:
        text += f" → {', '.join(targets)}"
    if others:
        text += f"; refers to {', '.join(others)}"
    return f"cycle of {text}" if ring else text


def _added(one: LeakSum, other: LeakSum) -> LeakSum:
    return one._replace(
        leaks=one.leaks + other.leaks,
        blocks=one.blocks + other.blocks,
        bytes=one.bytes + other.bytes,
        example=min(one.example, other.example),
    )
