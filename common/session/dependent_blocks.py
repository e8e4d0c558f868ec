"""Mark blocks that other blocks keep in use without references (see Runtime.dependents)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from findleaks.engine.contract import Graph
from findleaks.engine.terms import State
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.session import Session

# Maximum number of owners that are checked, as a multiple of the number of dependent blocks.
# Graph.connect finds the blocks that are left.
MOST_CHECKS = 8


class DependentBlock(NamedTuple):
    """Indices of a block and of the block that keeps it in use; see Dependent."""

    owner: int
    block: int
    phrase: str


def find_dependent_blocks(session: Session) -> Sequence[DependentBlock]:
    """Return the dependent blocks in use, by the owner's index. If an owner is not in a block in
    use, the dependent block is its own owner."""
    blocks, found = session.directory.blocks, []
    for one in (one for runtime in session.runtimes for one in runtime.dependents()):
        index, owner = blocks.find(one.address), blocks.find(one.owner)
        if index >= 0 and blocks.state(index) == State.IN_USE:
            found.append(DependentBlock(owner if owner >= 0 and blocks.state(owner) == State.IN_USE else index, index, one.phrase))
    return sorted(found)


def mark_dependent_blocks(session: Session, graph: Graph, dependents: Sequence[DependentBlock]) -> None:
    """Mark the blocks that reachable blocks keep in use, and what these blocks refer to. Call it
    after Graph.mark_starts.

    Each turn finds the owners that the previous one marked. In a long chain, where each owner is
    reachable only through the handlers of the one before, blocks are left for Graph.connect."""
    address = session.directory.blocks.address
    pending = [one for one in dependents if one.owner != one.block]
    graph.root_words([address(one.block) for one in dependents if one.owner == one.block])
    checks = MOST_CHECKS * len(pending)
    while dependents:
        while not graph.mark_starts(session.budget):
            session.report_progress("following pointers", 0.0)
        held = [graph.holds([address(one.owner)]) for one in pending] if checks > 0 else []
        if not any(held):
            return
        checks -= len(pending)
        graph.root_words([address(one.block) for one, is_held in zip(pending, held) if is_held])
        pending = [one for one, is_held in zip(pending, held) if not is_held]
