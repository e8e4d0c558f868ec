"""The head of a cycle is the block to which the other blocks refer, whatever the order of addresses is."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from findleaks.triage.rings import head


class Blocks:
    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes

    def size(self, index: int) -> int:
        return self._sizes[index]


class Graph:
    """All blocks are reachable from one leak head."""

    def __init__(self, references: Mapping[int, Sequence[int]], leak_head: int) -> None:
        self._references, self._leak_head = references, leak_head

    def references(self, index: int) -> list[tuple[int, bool]]:
        return [(other, False) for other in self._references.get(index, ())]

    def leak_head(self, index: int) -> int:
        return self._leak_head


def make_document(parts: int) -> tuple[list[int], dict[int, list[int]]]:
    """Return a document of 184 bytes. Its parts of 120 bytes refer to it and to their neighbours. Each part has a text."""
    nodes = range(1, parts + 1)
    sizes = [184] + [120] * parts + [24] * parts
    return sizes, {0: [1, parts], **{at: [0, at - 1, at % parts + 1, parts + at] for at in nodes}}


def make_list(parts: int) -> tuple[list[int], dict[int, list[int]]]:
    """Return a list without a head: all nodes are alike."""
    return [48] * parts, {at: [(at + 1) % parts, (at - 1) % parts] for at in range(parts)}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("made", "size"), [(make_document, 184), (make_list, 48)])
@pytest.mark.parametrize("parts", [2, 9])
def test_head_of_a_ring(made, size: int, parts: int, seed: int) -> None:  # type: ignore[no-untyped-def]
    sizes, references = made(parts)
    places = list(range(len(sizes)))
    random.Random(seed).shuffle(places)
    blocks = Blocks([size for _, size in sorted(zip(places, sizes))])
    moved = {places[at]: [places[to] for to in others] for at, others in references.items()}
    leak_head = min(moved)
    found = head(Graph(moved, leak_head), blocks, leak_head)  # type: ignore[arg-type]
    assert blocks.size(found) == size and found in moved
    if made is make_list:
        assert found == leak_head
