"""Name the managed objects through which native blocks are reachable."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple, Optional

from findleaks.arg_types import SizeRange
from findleaks.audit.block_rows import BlockFilters, BlockRows
from findleaks.audit.managed_graph import find_object
from findleaks.audit.references import find_root_references
from findleaks.engine.terms import Kind, State
from findleaks.session import Session

_TRIED = 16  # maximum number of root words that are tried for one block


class ManagedPath(NamedTuple):
    """The path, as text, to the managed object through which a block is reachable. `address`: the
    address of the block."""

    address: int
    path: str


def find_managed_path(session: Session, size: int, count: int) -> Optional[ManagedPath]:
    """Choose one of the `count` reachable blocks of this usable size, and return the path to the
    managed object through which the block is reachable. Returns None if no managed object refers
    to the first block of the path from a root to this block."""
    if not session.runtimes:
        return None
    filters = BlockFilters({Kind.REACHABLE}, {State.IN_USE}, SizeRange(size, size), None, None)
    index = next(islice(BlockRows(session, filters).indices(), count // 2, None), -1)
    chain = session.path(index) if index >= 0 else []
    if not chain:
        return None
    blocks = session.directory.blocks
    low = blocks.address(chain[0])
    for one in islice(find_root_references(session, low, low + blocks.size(chain[0])), _TRIED):
        found = find_object(session, one.address) if one.address else None
        path = found.graph.describe_path(found.object.block) if found is not None and found.graph.graph is not None else ""
        if path:
            return ManagedPath(blocks.address(index), path)
    return None
