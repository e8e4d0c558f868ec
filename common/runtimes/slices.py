"""Run long work of the engine on a managed heap in slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from findleaks.engine.contract import Graph
from findleaks.errors import Interrupted
from findleaks.target.base import Target

SLICE = 1 << 20  # objects that the engine visits between two checks for Ctrl-C


def run_in_slices(step: Callable[[int], bool], target: Target) -> None:
    """Call `step` of the engine with a number of objects until it returns True. Raises Interrupted
    if the user has asked to stop."""
    while not step(SLICE):
        if target.is_interrupted():
            raise Interrupted


def stoppable_referrers(graph: Graph, target: Target) -> Callable[[int, int], Sequence[int]]:
    """Return `graph.referrers` with a check for Ctrl-C before each search of all references. The
    returned function raises Interrupted."""

    def list_referrers(block: int, limit: int) -> Sequence[int]:
        if target.is_interrupted():
            raise Interrupted
        return graph.referrers(block, limit)

    return list_referrers
