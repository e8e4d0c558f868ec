"""Labelled blocks and the representatives of cycles: both engines return the same results, which are those of the definition."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from itertools import permutations
from typing import Any

import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.engine.contract import Engine, Graph
from findleaks.engine.terms import NO_LABEL, Kind, State
from findleaks.target.arch import X86_64, Arch

TYPES = 4
ENGINES = [graphs.native, graphs.pure]


def classify(engine: Engine, heap: graphs.Heap, labels: array[int], ranks: array[int]) -> Graph:
    """Return the graph of the heap with these labels, after the representatives of cycles are chosen.

    Labels have 2 bytes if the number of blocks is even, to test both widths."""
    graph = graphs.scan_graph(engine, heap)
    narrow = array("H", (label & 0xFFFF for label in labels))
    graph.set_labels(labels if len(labels) % 2 else narrow, ranks)
    graphs.mark(graph, 3)
    ranges = graph.cycle_ranges()
    assert bool(ranges) == graph.has_cycles()
    pieces = [one for one in heap.pieces if any(low < one.address + len(one.data) and one.address < high for low, high in ranges)]
    graph.represent_cycles(pieces, graphs.VTABLES)
    return graph


def read_results(graph: Graph, heap: graphs.Heap) -> dict[str, Any]:
    number = range(len(heap.blocks))
    return {
        **graphs.said_of(graph, heap),
        "representatives": [graph.representative(i) for i in number],
        "ranges": graph.cycle_ranges(),
        "labelled": [graph.label_totals(kinds) for kinds in ((), (Kind.DEFINITE, Kind.INDIRECT), tuple(Kind))],
    }


def random_labels(heap: graphs.Heap, seed: int) -> tuple[array[int], array[int]]:
    rng = random.Random(seed)
    ranks = array("I", [rng.randrange(1, 4) for _ in range(TYPES)])
    return array("I", [rng.choice([NO_LABEL, *range(TYPES)]) for _ in heap.blocks]), ranks


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.sampled_from((4, 12, 30)),
    granule=st.sampled_from((4, 8, 16)),
    density=st.sampled_from((0.1, 0.4)),
    arch=st.sampled_from(graphs.MOSTLY_64),
)
@settings(max_examples=graphs.share(60))
def test_both_engines_and_the_definition_agree(seed: int, count: int, granule: int, density: float, arch: Arch) -> None:
    heap = graphs.random_heap(seed, count, granule, 3, density, arch=arch)
    labels, ranks = random_labels(heap, seed)
    graph = classify(graphs.native(arch), heap, labels, ranks)
    found = read_results(graph, heap)
    assert found == read_results(classify(graphs.pure(arch), heap, labels, ranks), heap)
    oracle = graphs.Oracle(heap)
    for leader, ring in oracle.cycles.items():
        labelled = [index for index in ring if labels[index] != NO_LABEL]
        head = min(labelled, key=lambda index: (-ranks[labels[index]], index)) if labelled else leader
        assert [index for index in ring if found["kinds"][index] == Kind.DEFINITE] == [head]
        assert found["cycle"][head] == len(ring)
        shown = head
        if not labelled and len(ring) > 1:
            word = {index: oracle.type_word(heap.blocks[index]) for index in ring}
            shown = min(ring, key=lambda index: (not word[index], -heap.blocks[index].size, word[index], index))
        assert found["representatives"][head] == shown
    for group in found["groups"]:
        assert group.label == NO_LABEL or group.type_word == 0
    plain = [(g.kind, g.type_word, g.size, g.cycle, g.indirect_blocks > 0) for g in found["groups"] if g.label == NO_LABEL]
    labelled = [(g.kind, g.label) for g in found["groups"] if g.label != NO_LABEL]
    assert len({*plain, *labelled}) == len(found["groups"])
    for kind in (Kind.DEFINITE, Kind.POSSIBLE):
        mine = [g for g in found["groups"] if g.kind == kind]
        below = kind == Kind.POSSIBLE  # other possible blocks are counted under leak heads
        sums = (sum(g.blocks + below * g.indirect_blocks for g in mine), sum(g.bytes + below * g.indirect_bytes for g in mine))
        assert sums == found["totals"][kind]
        leading = graph.heads() if below else None
        for label in range(TYPES):
            heads = [i for i, one in enumerate(labels) if one == label and found["kinds"][i] == kind]
            heads = heads if leading is None else [i for i in heads if i in leading]
            sizes = [heap.blocks[i].size for i in heads if heap.blocks[i].state == State.IN_USE]
            wanted = [(len(sizes), min(sizes), max(sizes))] if sizes else []
            assert [(g.blocks, g.size, g.largest) for g in mine if g.label == label] == wanted
    lost = found["labelled"][1]
    for label in range(TYPES):
        sizes = [
            block.size
            for block, kind, one in zip(heap.blocks, found["kinds"], labels)
            if one == label and kind in (Kind.DEFINITE, Kind.INDIRECT) and block.state == State.IN_USE
        ]
        assert lost[label] == (len(sizes), sum(sizes))


SIZES = (64, 48, 48, 32)
WORDS = (0, graphs.VTABLES[0].start, graphs.VTABLES[0].start + 16, 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cycle_is_one_group_whatever_the_order_of_its_blocks(engine: Callable[[Arch], Engine]) -> None:
    """Four blocks that refer to each other in a ring, in all 24 orders of addresses: one group, represented by the
    block with the lowest type word."""
    blocks, memory, at = [], [], 0x10000
    for order in permutations(range(4)):
        starts = {part: at + 0x100 * place for place, part in enumerate(order)}
        for part in order:
            words = [WORDS[part], starts[(part + 1) % 4]]
            blocks.append(graphs.Block(starts[part], SIZES[part], State.IN_USE))
            memory.append((starts[part], X86_64.pack(words).ljust(SIZES[part], b"\0")))
        at += 0x1000
    heap = graphs.Heap(16, blocks, memory, [], [], arch=X86_64)
    heap.pieces = [graphs.piece(start, data) for start, data in memory]
    graph = classify(engine(X86_64), heap, array("I", [NO_LABEL]) * len(blocks), array("I"))
    (group,) = graph.groups(heap.pieces, graphs.VTABLES)
    assert (group.blocks, group.cycle, group.size, group.type_word) == (24, 4, 48, WORDS[1])
    assert group.bytes == graph.totals(Kind.DEFINITE).bytes
    assert all(
        graph.leak_head(index) == index // 4 * 4 for index in range(len(blocks))
    )  # the block with the lowest address, as in memcheck


@pytest.mark.parametrize("engine", ENGINES)
def test_labels_are_checked(engine: Callable[[Arch], Engine]) -> None:
    heap = graphs.random_heap(1, 12, 16, 1)
    count = len(heap.blocks)
    wrong = {"labels": ([0] * (count + 1), [1]), "not below": ([1] * count, [1]), "rank 0": ([0] * count, [0])}
    for words, (labels, ranks) in wrong.items():
        graph = graphs.scan_graph(engine(X86_64), heap)
        with pytest.raises(ValueError, match=words):
            graph.set_labels(array("I", labels), array("I", ranks))
