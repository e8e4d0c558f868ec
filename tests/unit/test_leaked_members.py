"""Findings about the blocks of a runtime if some of the blocks are leaked."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import cast

import pytest

from findleaks.audit.findings import exclude_leaked_blocks
from findleaks.engine.contract import Blocks, Graph
from findleaks.engine.terms import Kind, KindFigures
from findleaks.runtimes.finding import Finding

BLOCK = 1 << 20


def make_graph(leaked: int) -> Graph:
    """Return a graph in which the blocks with the lowest indices are leaked. Each block has BLOCK bytes."""

    def count(indices: array[int], ranges: array[int]) -> list[KindFigures]:
        assert len(set(indices)) == len(indices) and not ranges
        counts = {Kind.DEFINITE: sum(one < leaked for one in indices), Kind.REACHABLE: sum(one >= leaked for one in indices)}
        return [KindFigures(counts.get(kind, 0), counts.get(kind, 0) * BLOCK, 0) for kind in Kind]

    return cast(Graph, SimpleNamespace(figures_by_kind=count))


@pytest.mark.parametrize(
    ("leaked", "expected"),
    [
        (0, [("In use, not leaked: pools have 10 MiB.", 10, "")]),
        (3, [("Mostly in use, not leaked: pools have 10 MiB.", 7, " 3.0 MiB of this memory is leaked.")]),
        (5, []),
    ],
)
def test_leaked_members(leaked: int, expected: list[tuple[str, int, str]]) -> None:
    """The finding covers only memory that is not leaked. A damaged list may contain a block twice."""
    finding = Finding("pools", 10 * BLOCK, "In use, not leaked: pools have 10 MiB.", "Cause.", of_blocks=True, members=[*range(10), 9])
    found = exclude_leaked_blocks(make_graph(leaked), cast(Blocks, None), finding)
    assert [(one.title, one.bytes // BLOCK, one.cause.removeprefix("Cause.")) for one in found] == expected
