"""Compute signatures: what a leak has in common in many cores, at all addresses and in all builds
of the program.

A signature is a digest of the program's name and of the leaked blocks. For typed blocks it includes
the type; for text, the first word; for other blocks the size, and which of the first words are
pointers and what they point to (shapes.py). The number of blocks is not included, because it grows.

A core may have too few blocks of a leak to show what all of them have in common. Therefore same.py
compares the leaks of all cores."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from findleaks.allocators.memory import Memory
from findleaks.audit.block_contents import describe_untyped
from findleaks.audit.leak_groups import group_leaked_blocks
from findleaks.engine.contract import Graph
from findleaks.engine.terms import NO_LABEL, Group, Kind
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.target.ranges import range_at
from findleaks.triage.clusters import Cluster, LeakHead, clusters, describe_word, varying
from findleaks.triage.identity import describe_signature, signature_of
from findleaks.triage.rings import head
from findleaks.triage.row import LeakSum
from findleaks.triage.shapes import TEXT_LABEL, Shapes

SAMPLED = 50_000  # leaked blocks that are examined one by one at most: about a second
EACH = 2_000  # maximum number of these blocks with the same size, type and cycle
# If one shape occurs in this many sizes with few blocks each, the sizes in a core are merged.
SIZES = 64

_LEADS = re.compile(re.escape(bytes([Kind.DEFINITE])))
_Key = tuple[int, int, bool]


def leak_sums(session: Session, program: str) -> list[LeakSum]:
    """Return the definite leaks of a core by signature, those with the most bytes first."""
    graph = session.graph()
    groups = [group for group in group_leaked_blocks(session, graph) if group.kind == Kind.DEFINITE]
    sums: dict[str, LeakSum] = {}
    for size, cluster in varying(clusters(list(_leak_heads(session, graph, groups))), SIZES):
        one = _sum_leaks(session, program, size, cluster)
        before = sums.get(one.signature)
        sums[one.signature] = before.join(one) if before is not None else one
    return sorted(sums.values(), key=lambda one: (-one.bytes, one.signature))


def _leak_heads(session: Session, graph: Graph, groups: Sequence[Group]) -> Iterator[LeakHead]:
    """Yield the leak heads. If there are very many, yield a sample in which each represents
    several."""
    blocks, shapes = session.directory.blocks, Shapes(session, graph)
    for group, starts in zip(groups, _members(session, graph, groups)):
        whole = len(starts) == group.blocks
        part = 1 / max(len(starts), 1)
        for count, start in enumerate(starts):
            if count % 256 == 0:
                session.report_progress("comparing leaked blocks", 0.0)
            index = graph.leak_head(blocks.find(start))  # an example of a group represents a cycle
            chief = head(graph, blocks, index) if group.cycle > 1 and group.label == NO_LABEL else index
            size = blocks.size(chief)
            shape = shapes.of(blocks.address(chief), size, group.cycle > 1, group.indirect_blocks > 0)
            if whole:
                hanging = graph.indirect_totals(index)
                yield LeakHead(shape, size, start, 1, 1 + hanging.blocks, blocks.size(index) + hanging.bytes)
            else:
                every = group.blocks + group.indirect_blocks, group.bytes + group.indirect_bytes
                yield LeakHead(shape, size, start, part * group.blocks, part * every[0], part * every[1])


def _members(session: Session, graph: Graph, groups: Sequence[Group]) -> list[list[int]]:
    """Return the addresses of the blocks of each group. If a group has more than EACH blocks,
    return a sample that includes the group's examples."""
    at_key: dict[tuple[_Key, int], int] = {}
    at_label: dict[int, int] = {}
    for at, group in enumerate(groups):
        if group.label == NO_LABEL:
            at_key[_key(group), group.type_word] = at
        else:
            at_label[group.label] = at
    labels = session.object_types.types if session.object_types is not None else None
    found: list[list[int]] = [[] for _ in groups]
    blocks, types = session.directory.blocks, session.types.ranges()
    memory = Memory(session.target)
    kinds = graph.kinds()
    step = 1 + sum(group.blocks for group in groups) // SAMPLED
    for count, match in enumerate(_LEADS.finditer(kinds)):
        if count % 4096 == 0:
            session.report_progress("examining leaked blocks", match.start() / max(len(kinds), 1))
        if count % step:
            continue
        index = match.start()
        start = blocks.address(index)
        if labels is not None and labels[index] != NO_LABEL:
            mine = at_label.get(labels[index])
        else:
            shown = graph.representative(index)
            size = blocks.size(shown)
            key = size, graph.cycle(index), graph.indirect_totals(index).blocks > 0
            mine = at_key.get((key, _type_word(memory, types, blocks.address(shown), size)))
        if mine is not None and (len(found[mine]) < EACH or groups[mine].blocks <= EACH):
            found[mine].append(start)
    return [starts or list(group.examples) for group, starts in zip(groups, found)]


def _key(group: Group) -> _Key:
    return group.size, group.cycle, group.indirect_blocks > 0


def _type_word(memory: Memory, types: Sequence[Range], start: int, size: int) -> int:
    """Return the first word of a block as the engine groups by it; 0 if the word is not a type."""
    if size < memory.size or start % memory.size:
        return 0
    first = memory.word(start) or 0
    return first if first and range_at(types, first) is not None else 0


def _sum_leaks(session: Session, program: str, size: int, cluster: Cluster) -> LeakSum:
    leaks, blocks, held = (round(sum(values)) for values in zip(*(leak_head[3:6] for leak_head in cluster.members)))
    first = _typical(cluster)
    known = session.directory.blocks
    return LeakSum(
        signature=signature_of(program, cluster.label, size, cluster.words),
        what=describe_signature(cluster.label, size, cluster.ring, cluster.words),
        hint=_hint(session, cluster.label, first, known.size(known.find(first))),
        leaks=leaks,
        blocks=blocks,
        bytes=held,
        example=first,
        label=cluster.label,
        size=size,
        ring=cluster.ring,
        words=cluster.words,
    )


def _hint(session: Session, label: str, start: int, size: int) -> str:
    """Return the text in a block, or else a description of its content; "" if the block's label is
    a type."""
    return describe_untyped(session, start, size) if not label or label.startswith(TEXT_LABEL) else ""


def _typical(cluster: Cluster) -> int:
    """Return the first of the blocks whose words are the most common."""
    patterns = Counter(tuple(map(describe_word, leak_head.shape.words)) for leak_head in cluster.members)
    usual, _ = min(patterns.items(), key=lambda item: (-item[1], item[0]))
    return min(leak_head.start for leak_head in cluster.members if tuple(map(describe_word, leak_head.shape.words)) == usual)
