"""Finds lists whose nodes are linked by XOR: each has one word, the addresses of both neighbours
combined, so that no word equals the address of a node but at the ends.

A node at an end has the plain address of its only neighbour. From there, each node's word and the
address of the node before give the address of the next. If a plain pointer holds one of them, the
program reaches the others from there, in both directions.
Lists without an end (rings) are not found."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Optional

from findleaks.engine.contract import Blocks, Graph
from findleaks.engine.disguises import Disguise, Form
from findleaks.engine.terms import Kind, State
from findleaks.graph.disguises import LEAST, NOT_DISGUISED, SHARE, DisguiseConvention, Disguised
from findleaks.value_classes import NamedTuple

ENDS = 512  # leaked blocks examined as ends of lists, at most: the first and the last
TAIL = 1 << 16  # blocks among which the last are looked for
STEPS = 200_000  # nodes visited, at most: 2 s

_LEADS = re.compile(b"\\x%02x" % Kind.DEFINITE)

ReadWord = Callable[[int], Optional[int]]


class _Node(NamedTuple):
    block: int  # index
    address: int


def search_xor_lists(graph: Graph, blocks: Blocks, word: int, read: ReadWord) -> tuple[Disguised, array[int]]:
    """The XOR lists among the leaked blocks of a classified graph, as `search_disguises` returns
    what it finds; `word`: bytes of a pointer."""
    found: list[tuple[int, int, int]] = []  # source, target, address of the link
    reached: Counter[int] = Counter()
    steps = STEPS
    for end in _ends(graph):
        if steps <= 0:
            break
        nodes, offset = _list_from(graph, blocks, end, word, read, steps)
        steps -= len(nodes)
        held = next((at for at, node in enumerate(nodes) if graph.kind(node.block) not in (Kind.DEFINITE, Kind.INDIRECT)), -1)
        if held > 0 and len(nodes) > LEAST:
            reached[blocks.size(end)] += sum(graph.kind(node.block) == Kind.DEFINITE for node in nodes)
            found += list(_links(nodes, held, offset))
    if not found:
        return NOT_DISGUISED, array("Q")
    sizes = Counter(graph.leader_sizes())
    shown = tuple(size for size, count in reached.most_common() if count >= SHARE * sizes[size])
    found = sorted(one for one in found if blocks.size(one[0]) in shown)
    if not found:
        return NOT_DISGUISED, array("Q")
    edges = array("Q", [source << 32 | target for source, target, _ in found])
    conventions = [DisguiseConvention(Form(Disguise.LINKED), 0, shown, 0, 0)]
    return Disguised(conventions, places=array("Q", [place for *_, place in found]), edges=edges, numbers=[0] * len(found)), edges


def _links(nodes: list[_Node], held: int, offset: int) -> Iterator[tuple[int, int, int]]:
    """The references between neighbours, away from the node that is held."""
    for at, node in enumerate(nodes):
        target = nodes[at + 1 : at + 2] if at >= held else []
        for one in [*target, *(nodes[at - 1 : at] if 0 < at <= held else [])]:
            yield node.block, one.block, node.address + offset


def _ends(graph: Graph) -> Iterator[int]:
    """Leaked blocks that others are leaked with, the first and the last ones."""
    kinds = graph.kinds()
    tail = max(0, len(kinds) - TAIL)
    first = [match.start() for match in islice(_LEADS.finditer(kinds), ENDS // 2)]
    last = [tail + match.start() for match in _LEADS.finditer(kinds[tail:])][-ENDS // 2 :]
    some = sorted({*first, *last})
    return (index for index in some if graph.indirect_totals(index).blocks and graph.cycle(index) == 1)


def _list_from(graph: Graph, blocks: Blocks, end: int, word: int, read: ReadWord, most: int) -> tuple[list[_Node], int]:
    """The nodes of a list from a leaked end on, and the offset of the link; no nodes without a
    list."""
    address, size = blocks.address(end), blocks.size(end)
    for index, interior in graph.references(end):
        start = blocks.address(index)
        if interior or blocks.size(index) != size:
            continue
        for offset in range(0, size - word + 1, word):
            if read(address + offset) == start:
                nodes = _walk(blocks, [_Node(end, address), _Node(index, start)], offset, read, most)
                if len(nodes) > 2:
                    return nodes, offset
    return [], 0


def _walk(blocks: Blocks, nodes: list[_Node], offset: int, read: ReadWord, most: int) -> list[_Node]:
    """`nodes`, the first two of a list, and all that follow."""
    seen = {node.block for node in nodes}
    size = blocks.size(nodes[0].block)
    while len(nodes) < most:
        link = read(nodes[-1].address + offset) or 0
        following = link ^ nodes[-2].address
        index, start, found_size, state = blocks.lookup(following) or (-1, 0, 0, State.FREE)
        if start != following or found_size != size or state != State.IN_USE or index in seen:
            break
        seen.add(index)
        nodes.append(_Node(index, start))
    return nodes
