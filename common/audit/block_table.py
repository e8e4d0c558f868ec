"""Blocks as a table: columns that numpy, pandas, pyarrow and polars wrap without a copy."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cached_property
from typing import Literal, Optional

from findleaks.audit.block_batches import BlockNames
from findleaks.audit.block_rows import BlockRows, Filters
from findleaks.engine.columns import NO_GROUP, BlockColumns
from findleaks.errors import TargetError
from findleaks.session import Session
from findleaks.value_classes import NamedTuple


class BlockTable:
    """Columns of the same length, one value a block, as read-only buffers of machine numbers.

    `address`, `size` and `state` are made with the table, in some 20 ns a block. The other columns
    are made when they are first used, in up to 1 µs a block, because names need the blocks'
    contents. TargetError if the process was closed before that."""

    def __init__(self, session: Session, filters: Filters, limit: int = 0, largest: bool = False) -> None:
        """The blocks that pass `filters`, by address, or the `largest` first; the first `limit` of
        them (0: all)."""
        self._session, self._filters, self._limit = session, filters, limit
        self._order = BlockRows(session, filters).largest_first(limit) if largest else None
        self._indices = self._order if self._order is not None else _chosen(session, filters, limit)
        blocks = session.directory.blocks
        self._columns: BlockColumns = blocks.columns() if self._indices is None else blocks.columns_of(self._indices)

    @property
    def address(self) -> memoryview:
        """ "Q": where each block begins."""
        return self._columns.address

    @property
    def size(self) -> memoryview:
        """ "Q": usable bytes."""
        return self._columns.size

    @property
    def state(self) -> memoryview:
        """ "B": values of terms.State."""
        return self._columns.state

    @property
    def kind(self) -> memoryview:
        """ "B": values of terms.Kind; UNKNOWN: not in use."""
        return self._kind

    @property
    def owner(self) -> memoryview:
        """ "I": index into `owners`."""
        return self._named.owner

    @property
    def type(self) -> memoryview:
        """ "I": index into `types`."""
        return self._named.type

    @property
    def site(self) -> memoryview:
        """ "I": number of the allocation site; 0: not recorded."""
        return self._named.site

    @property
    def group(self) -> memoryview:
        """ "I": the same number for the blocks of one leak, a leak head and what is counted under
        it; NO_GROUP for blocks that are not leaked. It is the head's index in the heap."""
        return self._group

    @property
    def owners(self) -> Sequence[tuple[str, str]]:
        """Names of allocators and of their arenas, not escaped."""
        return self._named.owners

    @property
    def types(self) -> Sequence[str]:
        """Names of types, not escaped; the first is "": not known."""
        return self._named.types

    @cached_property
    def _kind(self) -> memoryview:
        return _picked("B", self._open.graph().kinds(), self._indices)

    @cached_property
    def _group(self) -> memoryview:
        return _picked("I", self._open.graph().leaders(), self._indices)

    @cached_property
    def _named(self) -> _Named:
        rows = BlockRows(self._open, self._filters)
        numbers = _Numbers(rows.names)
        owner, type_number, site = array("I"), array("I"), array("I")
        for batch in rows.batches(self._order, self._limit, hints=False):
            for column, values in zip((owner, type_number), zip(*map(numbers.__getitem__, batch.names))):
                column.extend(values)
            site.extend(batch.sites or bytes(len(batch.names)))
        return _Named(_view(owner), _view(type_number), _view(site), list(numbers.owners), list(numbers.types))

    @property
    def _open(self) -> Session:
        if self._session.is_closed:
            raise TargetError("the process is closed: use this column of its blocks inside its `with` block first")
        return self._session


class _Named(NamedTuple):
    """The columns that names belong to, and the names."""

    owner: memoryview
    type: memoryview
    site: memoryview
    owners: Sequence[tuple[str, str]]
    types: Sequence[str]


class _Numbers(dict[int, tuple[int, int]]):
    """Owner and type of each number of names."""

    def __init__(self, names: dict[int, BlockNames]) -> None:
        super().__init__()
        self._names = names
        self.owners: dict[tuple[str, str], int] = {}
        self.types = {"": 0}

    def __missing__(self, number: int) -> tuple[int, int]:
        names = self._names[number]
        owner = self.owners.setdefault((names.allocator, names.arena), len(self.owners))
        found = self[number] = owner, self.types.setdefault(names.type, len(self.types))
        return found


def _chosen(session: Session, filters: Filters, limit: int) -> Optional[array[int]]:
    """Indices of the blocks that pass, ascending; None: all of the process."""
    if filters.passes_all and not limit:
        return None
    if filters.by_bytes:
        kinds = bytearray(session.latest.kinds())
        found = session.directory.blocks.indices_with(filters.state_bits, kinds, filters.kind_bits)
        return found[:limit] if limit else found
    rows, found = BlockRows(session, filters), array("I")
    for some in rows.index_batches():
        found += some
        if limit and len(found) >= limit:
            return found[:limit]
    return found


def _picked(typecode: Literal["B", "I"], column: memoryview, indices: Optional[array[int]]) -> memoryview:
    """The elements of a column at these indices; None: all."""
    if indices is None:
        return _view(array(typecode, column.tobytes()))
    return _view(array(typecode, map(column.__getitem__, indices)))


def _view(column: array[int]) -> memoryview:
    return memoryview(column).toreadonly()


__all__ = ["NO_GROUP", "BlockTable", "Filters"]
