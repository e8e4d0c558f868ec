"""Name a group of blocks of one size, such as those that several fields of an owner reach."""

from __future__ import annotations

from findleaks.audit.block_type import find_block_type
from findleaks.engine.dominators import SHARED, Dominators, Spread
from findleaks.engine.terms import NO_BLOCK
from findleaks.formatting import number, size
from findleaks.session import Session

UNTYPED = "block of "  # prefix of the name of a block whose type is unknown
_MOST = 1 << 11  # children that are examined: those that retain most; each costs about 10 µs
_SAMPLE, _LEAST = 64, 2  # largest and smallest number of blocks whose types are compared


def name_similar_blocks(session: Session, tree: Dominators, group: Spread, count: int, name: str) -> str:
    """Return "20,000 of struct request", or "20,000 blocks of 136 B such as struct request" if the
    types of the blocks differ, or if fewer than _LEAST blocks were examined; without a type, return
    "20,000 blocks of 136 B". `group`: blocks of one size that several nodes of `tree` reach;
    `count`: their number; `name`: the name of the example.
    """
    if name.startswith(UNTYPED):
        return f"{number(count)} blocks of {size(group.size)}"
    children = [child.block for child in tree.children(SHARED, _MOST)]
    sizes = session.directory.blocks.size
    alike = [block for block in children if block != NO_BLOCK and sizes(block) == group.size]
    step = max(len(alike) // _SAMPLE, 1)
    types = {find_block_type(session, block) for block in alike[::step]}
    if len(types) == 1 and len(alike) >= min(_LEAST, count):
        return f"{number(count)} of {name}"
    return f"{number(count)} blocks of {size(group.size)} such as {name}"
