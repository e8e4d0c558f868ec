"""Blocks as a table: columns that numpy, pandas, pyarrow and polars use without a copy."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from findleaks.audit.address_info import STATES
from findleaks.audit.block_batches import BlockNames
from findleaks.audit.block_rows import BlockFilters, BlockRows
from findleaks.engine.columns import NO_GROUP
from findleaks.engine.terms import Kind
from findleaks.session import Session

_STATES = {word: state for state, word in STATES.items()}


@dataclass(frozen=True)
class BlockTable:
    """Columns of equal length, one value for each block, in read-only buffers of machine
    numbers."""

    address: memoryview
    """ "Q": address of the first byte."""
    size: memoryview
    """"Q": usable bytes."""
    state: memoryview
    """"B": values of terms.State."""
    kind: memoryview
    """ "B": values of terms.Kind; UNKNOWN for blocks that are not in use."""
    owner: memoryview
    """"I": index into `owners`."""
    type: memoryview
    """"I": index into `types`."""
    site: memoryview
    """ "I": number of the allocation site; 0 if it was not recorded."""
    group: memoryview
    """ "I": the group of a leaked block: the index of its leak head in the heap.
    A leak head and the blocks counted under it have the same number. NO_GROUP for blocks that are
    not leaked."""
    owners: Sequence[tuple[str, str]]
    """Pairs of allocator name and arena name, not escaped."""
    types: Sequence[str]
    """Names of types, not escaped. The first is "", for unknown types."""


class _Numbers(dict[int, tuple[int, int, int, int]]):
    """Maps a number of names to state, kind, owner and type, as numbers."""

    def __init__(self, names: dict[int, BlockNames]) -> None:
        super().__init__()
        self._names = names
        self.owners: dict[tuple[str, str], int] = {}
        self.types = {"": 0}

    def __missing__(self, number: int) -> tuple[int, int, int, int]:
        state, kind, allocator, arena, type_name = self._names[number]
        owner = self.owners.setdefault((allocator, arena), len(self.owners))
        known = self.types.setdefault(type_name, len(self.types))
        found = self[number] = int(_STATES[state]), int(Kind[kind.upper()]) if kind else 0, owner, known
        return found


def build_block_table(session: Session, filters: BlockFilters, limit: int = 0, largest: bool = False) -> BlockTable:
    """Return the blocks that pass `filters`, by address or the largest first.

    limit: the most blocks, 0 for all. Takes about 1 µs for each block; Blocks.columns, which has no
    names, takes 10 ns."""
    rows = BlockRows(session, filters)
    order = rows.largest_first(limit) if largest else None
    address, size, state, kind = array("Q"), array("Q"), array("B"), array("B")
    owner, type_number, site, group = array("I"), array("I"), array("I"), array("I")
    leaders = rows.graph.leaders()
    numbers = _Numbers(rows.names)
    for batch in rows.batches(order, limit, hints=False):
        address += batch.addresses
        size += batch.sizes
        for column, values in zip((state, kind, owner, type_number), zip(*map(numbers.__getitem__, batch.names))):
            column.extend(values)
        site.extend(batch.sites or bytes(len(batch.names)))
        group.extend(map(leaders.__getitem__, batch.indices))
    return BlockTable(
        address=_view(address),
        size=_view(size),
        state=_view(state),
        kind=_view(kind),
        owner=_view(owner),
        type=_view(type_number),
        site=_view(site),
        group=_view(group),
        owners=list(numbers.owners),
        types=list(numbers.types),
    )


def _view(column: array[int]) -> memoryview:
    return memoryview(column).toreadonly()


__all__ = ["NO_GROUP", "BlockFilters", "BlockTable", "build_block_table"]
