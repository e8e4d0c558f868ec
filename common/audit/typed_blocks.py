"""List blocks in use whose first word identifies a type, by type and kind. Reachable blocks are
included."""

from __future__ import annotations

from typing import NamedTuple

from findleaks.session import Session


class TypedBlocks(NamedTuple):
    """Blocks of one type and kind ("reachable", "definite" …)."""

    type: str
    kind: str
    blocks: int
    bytes: int


def list_typed_blocks(session: Session) -> list[TypedBlocks]:
    """Return blocks by type and kind, the most bytes first."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for group in session.graph().group_typed(session.pieces(session.heap_ranges(), "reading types"), session.types.ranges()):
        name = session.types.name(group.type_word)
        if not name:  # the word points into a range of type descriptions, but not to one
            continue
        key = name, group.kind.name.lower()
        blocks, size = found.get(key, (0, 0))
        found[key] = blocks + group.blocks, size + group.bytes
    rows = [TypedBlocks(*key, *held) for key, held in found.items()]
    return sorted(rows, key=lambda row: (-row.bytes, row.type, row.kind))
