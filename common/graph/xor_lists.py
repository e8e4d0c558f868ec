"""Find lists whose nodes are linked by XOR. The link of a node combines the addresses of both
neighbours in one word, so no word equals the address of a node, except at the ends.

A node at an end has the plain address of its only neighbour. From there, the link of each node,
XORed with the address of the node before it, gives the address of the next node. If a plain pointer
refers to one node, the program can reach the others from it, in both directions. Lists without an
end (rings) are not found."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from findleaks.engine.contract import Blocks, Graph
from findleaks.engine.disguises import Disguise, Form
from findleaks.engine.terms import Kind, State
from findleaks.graph.disguise_numbers import SHARE
from findleaks.graph.disguises import LEAST, NOT_DISGUISED, DisguiseConvention, Disguised
from findleaks.target.base import Target
from findleaks.target.words import word_at, words_at
from findleaks.value_classes import NamedTuple

ENDS = 512  # leaked blocks that are examined as ends of lists: the first and the last ones
HELD_ENDS = 128  # reachable blocks of each of MOST_SIZES sizes that are examined as ends
MOST_SIZES = 4
LARGEST = 1 << 16  # bytes of these blocks, and bytes of a node that are searched for its link
# Numbers of blocks of one size among which reachable blocks are looked for: the larger number only
# if there are too few among the first ones.
MOST_BLOCKS = (1 << 10, 1 << 20)
TAIL = 1 << 16  # number of blocks at the end of the heap among which the last ones are searched for
STEPS = 200_000  # maximum number of nodes that are visited, which takes 2 s

_LEADS = re.compile(b"\\x%02x" % Kind.DEFINITE)


class _Node(NamedTuple):
    block: int  # index
    address: int


def search_xor_lists(graph: Graph, blocks: Blocks, target: Target) -> tuple[Disguised, array[int]]:
    """Return the XOR lists among the leaked blocks of a classified graph, in the form of
    `search_disguises`."""
    found: list[tuple[int, int, int]] = []  # source, target, address of the link
    reached: Counter[int] = Counter()
    steps, seen = STEPS, set[int]()
    for end in [*_ends(graph), *_held_ends(graph, blocks)]:
        if steps <= 0:
            break
        nodes, offset = _list_from(graph, blocks, target, end, steps)
        steps -= len(nodes)
        if not nodes or nodes[len(nodes) // 2].block in seen:
            continue  # a list has two ends
        seen.update(node.block for node in nodes)
        held = next((at for at, node in enumerate(nodes) if graph.kind(node.block) not in (Kind.DEFINITE, Kind.INDIRECT)), -1)
        lost = sum(graph.kind(node.block) == Kind.DEFINITE for node in nodes)
        if held >= 0 and lost and len(nodes) > LEAST:
            reached[blocks.size(end)] += lost
            found += list(_links(nodes, held, offset))
    if not found:
        return NOT_DISGUISED, array("Q")
    sizes = Counter(graph.leak_head_sizes())
    shown = tuple(size for size, count in reached.most_common() if count >= SHARE * sizes[size])
    found = sorted(one for one in found if blocks.size(one[0]) in shown)
    if not found:
        return NOT_DISGUISED, array("Q")
    edges = array("Q", [source << 32 | target for source, target, _ in found])
    conventions = [DisguiseConvention(Form(Disguise.LINKED), 0, shown, 0, 0)]
    return Disguised(conventions, places=array("Q", [place for *_, place in found]), edges=edges, numbers=[0] * len(found)), edges


def _links(nodes: list[_Node], held: int, offset: int) -> Iterator[tuple[int, int, int]]:
    """Yield the references between neighbours that lead away from node `held`, to which a plain
    pointer refers."""
    for at, node in enumerate(nodes):
        target = nodes[at + 1 : at + 2] if at >= held else []
        for one in [*target, *(nodes[at - 1 : at] if 0 < at <= held else [])]:
            yield node.block, one.block, node.address + offset


def _ends(graph: Graph) -> Iterator[int]:
    """Return the first and the last leak heads, by index."""
    kinds = graph.kinds()
    tail = max(0, len(kinds) - TAIL)
    first = [match.start() for match in islice(_LEADS.finditer(kinds), ENDS // 2)]
    last = [tail + match.start() for match in _LEADS.finditer(kinds[tail:])][-ENDS // 2 :]
    some = sorted({*first, *last})
    return (index for index in some if graph.indirect_totals(index).blocks and graph.cycle(index) == 1)


def _held_ends(graph: Graph, blocks: Blocks) -> Iterator[int]:
    """Return reachable blocks of the sizes that most leak heads have, by index: if the program has
    the addresses of both ends, no end leaked."""
    kinds = graph.kinds()
    for size, count in Counter(graph.leak_head_sizes()).most_common(MOST_SIZES):
        if count >= LEAST and size <= LARGEST:
            for most in MOST_BLOCKS:
                some = blocks.of_sizes(size, size, most)
                found = list(islice((index for index in some if kinds[index] == Kind.REACHABLE), HELD_ENDS))
                if len(found) == HELD_ENDS or len(some) < most:
                    break
            yield from found


def _list_from(graph: Graph, blocks: Blocks, target: Target, end: int, most: int) -> tuple[list[_Node], int]:
    """Return the nodes of a list that begins at this end, and the offset of the link. Return no
    nodes if there is no list."""
    address, size = blocks.address(end), blocks.size(end)
    starts = {blocks.address(index): index for index, interior in graph.references(end) if not interior and blocks.size(index) == size}
    for at, start in enumerate(words_at(target, address, min(size, LARGEST)) if starts else ()):
        if start in starts:
            nodes = _walk(blocks, target, [_Node(end, address), _Node(starts[start], start)], at * target.arch.word, most)
            if len(nodes) > 2:
                return nodes, at * target.arch.word
    return [], 0


def _walk(blocks: Blocks, target: Target, nodes: list[_Node], offset: int, most: int) -> list[_Node]:
    """Return `nodes`, the first two nodes of a list, and all nodes that follow."""
    seen = {node.block for node in nodes}
    size = blocks.size(nodes[0].block)
    while len(nodes) < most:
        following = word_at(target, nodes[-1].address + offset) ^ nodes[-2].address
        index, start, found_size, state = blocks.lookup(following) or (-1, 0, 0, State.FREE)
        if start != following or found_size != size or state != State.IN_USE or index in seen:
            break
        seen.add(index)
        nodes.append(_Node(index, start))
    return nodes
