"""Blocks as columns: buffers that numpy, pandas, pyarrow and polars wrap without a copy."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from findleaks.audit.address_info import STATES
from findleaks.commands.blocks_rows import BlockRows, Filters
from findleaks.engine.terms import Kind
from findleaks.session import Session

_STATES = {word: state for state, word in STATES.items()}


@dataclass(frozen=True)
class BlockTable:
    """Columns of the same length, one value a block, as read-only buffers of machine numbers."""

    address: memoryview
    """"Q": where each block begins."""
    size: memoryview
    """"Q": usable bytes."""
    state: memoryview
    """"B": 0 in use, 1 in a thread cache, 2 free, 3 metadata."""
    kind: memoryview
    """"B": 0 not in use, 1 reachable, 2 possible, 3 definite, 4 indirect."""
    owner: memoryview
    """"I": index into `owners`."""
    type: memoryview
    """"I": index into `types`."""
    site: memoryview
    """"I": number of the allocation site; 0: not recorded."""
    owners: Sequence[tuple[str, str]]
    """Names of allocators and of their arenas."""
    types: Sequence[str]
    """Names of types; the first is "": not known."""


def block_table(session: Session, filters: Filters, limit: int = 0, largest: bool = False) -> BlockTable:
    """The blocks that pass `filters`, by address, or the largest first; the first `limit` of them
    (0: all)."""
    rows = BlockRows(session, filters)
    order = rows.largest_first(limit) if largest else None
    address, size, state, kind = array("Q"), array("Q"), array("B"), array("B")
    owner, type_, site = array("I"), array("I"), array("I")
    owners: dict[tuple[str, str], int] = {}
    types = {"": 0}
    for text in rows.json(order, limit):
        for line in text.splitlines():
            row = json.loads(line)
            address.append(int(row["address"], 16))
            size.append(row["size"])
            state.append(_STATES[row["state"]])
            kind.append(Kind[row["kind"].upper()] if row["kind"] else Kind.UNKNOWN)
            owner.append(owners.setdefault((row["allocator"], row["arena"]), len(owners)))
            type_.append(types.setdefault(row["type"] or "", len(types)))
            site.append(row["site"] or 0)
    return BlockTable(
        _buffer(address),
        _buffer(size),
        _buffer(state),
        _buffer(kind),
        _buffer(owner),
        _buffer(type_),
        _buffer(site),
        owners=list(owners),
        types=list(types),
    )


def _buffer(column: array[int]) -> memoryview:
    return memoryview(column).toreadonly()
