"""Blocks as a table: columns that numpy, pandas, pyarrow and polars use without a copy."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cached_property
from typing import Literal, Optional

from findleaks.audit.block_batches import BlockNames
from findleaks.audit.block_rows import BlockFilters, BlockRows
from findleaks.engine.columns import NO_GROUP, BlockColumns
from findleaks.errors import TargetError
from findleaks.session import Session
from findleaks.value_classes import NamedTuple


class BlockTable:
    """Columns of equal length, one value for each block, in read-only buffers of machine numbers.

    `address`, `size` and `state` are computed when the table is created, in about 20 ns for each
    block. The other columns are computed at their first use, in up to 1 µs for each block, because
    names depend on the contents of blocks. If the process was closed before this first use, these
    columns raise TargetError."""

    def __init__(self, session: Session, filters: BlockFilters, limit: int = 0, largest: bool = False) -> None:
        """Select the blocks that pass `filters`, by address or the `largest` first.
        `limit`: the maximum number of blocks (0: all)."""
        self._session, self._filters, self._limit = session, filters, limit
        self._order = BlockRows(session, filters).largest_first(limit) if largest else None
        self._indices = self._order if self._order is not None else _select(session, filters, limit)
        blocks = session.directory.blocks
        self._columns: BlockColumns = blocks.columns() if self._indices is None else blocks.columns_of(self._indices)

    @property
    def address(self) -> memoryview:
        """ "Q": address of the first byte."""
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
        """ "B": values of terms.Kind; UNKNOWN for blocks that are not in use."""
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
    def type_source(self) -> memoryview:
        """ "I": index into `type_sources`."""
        return self._named.type_source

    @property
    def site(self) -> memoryview:
        """ "I": number of the allocation site; 0 if it was not recorded."""
        return self._named.site

    @property
    def group(self) -> memoryview:
        """ "I": the group of a leaked block, as the index of the group's leak head in the heap.
        A leak head and the blocks counted under it have the same number. Blocks that are not leaked
        have NO_GROUP."""
        return self._group

    @property
    def owners(self) -> Sequence[tuple[str, str]]:
        """Pairs of allocator name and arena name, not escaped."""
        return self._named.owners

    @property
    def types(self) -> Sequence[str]:
        """Names of types, not escaped. The first is "", for unknown types."""
        return self._named.types

    @property
    def type_sources(self) -> Sequence[tuple[str, Optional[bool]]]:
        """How types are known, as pairs of `type_from` and `type_sure` of a Block. The first is
        ("", None), for unknown types."""
        return self._named.type_sources

    @cached_property
    def _kind(self) -> memoryview:
        return _pick("B", self._open.graph().kinds(), self._indices)

    @cached_property
    def _group(self) -> memoryview:
        return _pick("I", self._open.graph().leak_heads(), self._indices)

    @cached_property
    def _named(self) -> _Named:
        rows = BlockRows(self._open, self._filters)
        numbers = _Numbers(rows.names)
        owner, type_number, source, site = array("I"), array("I"), array("I"), array("I")
        for batch in rows.batches(self._order, self._limit, hints=False):
            for column, values in zip((owner, type_number, source), zip(*map(numbers.__getitem__, batch.names))):
                column.extend(values)
            site.extend(batch.sites or bytes(len(batch.names)))
        columns = _view(owner), _view(type_number), _view(source), _view(site)
        return _Named(*columns, list(numbers.owners), list(numbers.types), list(numbers.sources))

    @property
    def _open(self) -> Session:
        if self._session.is_closed:
            raise TargetError("the process is closed: read this column before the end of its `with` statement")
        return self._session


class _Named(NamedTuple):
    """The columns that contain numbers of names, and the names."""

    owner: memoryview
    type: memoryview
    type_source: memoryview
    site: memoryview
    owners: Sequence[tuple[str, str]]
    types: Sequence[str]
    type_sources: Sequence[tuple[str, Optional[bool]]]


class _Numbers(dict[int, tuple[int, int, int]]):
    """Maps a number in a NameTable to three numbers: of the owner, of the type, and of how the type
    is known."""

    def __init__(self, names: dict[int, BlockNames]) -> None:
        super().__init__()
        self._names = names
        self.owners: dict[tuple[str, str], int] = {}
        self.types = {"": 0}
        self.sources: dict[tuple[str, Optional[bool]], int] = {("", None): 0}

    def __missing__(self, number: int) -> tuple[int, int, int]:
        names = self._names[number]
        owner = self.owners.setdefault((names.allocator, names.arena), len(self.owners))
        known = names.type_from, names.type_sure == "true" if names.type_sure else None
        source = self.sources.setdefault(known, len(self.sources))
        found = self[number] = owner, self.types.setdefault(names.type, len(self.types)), source
        return found


def _select(session: Session, filters: BlockFilters, limit: int) -> Optional[array[int]]:
    """Return the indices of the blocks that pass, ascending; None if all blocks pass."""
    if filters.passes_all and not limit:
        return None
    if filters.by_bytes:
        kinds = bytearray(session.graph().kinds())
        found = session.directory.blocks.indices_with(filters.state_bits, kinds, filters.kind_bits)
        return found[:limit] if limit else found
    rows, found = BlockRows(session, filters), array("I")
    for some in rows.index_batches():
        found += some
        if limit and len(found) >= limit:
            return found[:limit]
    return found


def _pick(typecode: Literal["B", "I"], column: memoryview, indices: Optional[array[int]]) -> memoryview:
    """Return the values of a column at these indices; all values if `indices` is None."""
    if indices is None:
        return _view(array(typecode, column.tobytes()))
    return _view(array(typecode, map(column.__getitem__, indices)))


def _view(column: array[int]) -> memoryview:
    return memoryview(column).toreadonly()


__all__ = ["NO_GROUP", "BlockFilters", "BlockTable"]
