"""The blocks of a process that pass filters, either one by one or as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Optional

from findleaks.audit.address_info import STATES, Describer
from findleaks.audit.block_rows import BlockFilters, BlockRows
from findleaks.audit.block_table import BlockTable
from findleaks.audit.typed_places import list_members
from findleaks.engine.terms import Kind
from findleaks.errors import FindleaksError, TargetError
from findleaks.results.addresses import Block, Member
from findleaks.results.amounts import Amount
from findleaks.session import Session

if TYPE_CHECKING:
    import pandas
    import pyarrow

_STATE_WORDS: list[Optional[str]] = [STATES[state] for state in sorted(STATES)]
_KIND_WORDS = [kind.name.lower() if kind else None for kind in Kind]


class Blocks:
    """The blocks of a process that pass the filters of `Process.blocks`.

    `len()` counts them, and iteration yields a `Block` for each. `columns()`, `to_pandas()` and
    `to_arrow()` return all of them at once, which is faster for many blocks. TargetError is raised
    if the process was closed before the blocks are read."""

    def __init__(self, session: Session, filters: BlockFilters, limit: int = 0, largest: bool = False) -> None:
        self._session, self._filters, self._limit, self._largest = session, filters, limit, largest

    def __len__(self) -> int:
        count = self._rows.totals().blocks
        return min(count, self._limit) if self._limit else count

    def __iter__(self) -> Iterator[Block]:
        describer = Describer(self._session)
        if self._largest:
            yield from (with_members(self._session, describer.block(index).result()) for index in self._rows.largest_first(self._limit))
            return
        for count, index in enumerate(self._rows.indices(), 1):
            yield with_members(self._session, describer.block(index).result())
            if count == self._limit:
                return

    def __repr__(self) -> str:
        total = self.total()
        return f"<Blocks: {total.blocks} blocks of {total.bytes} bytes>"

    def total(self) -> Amount:
        """The number of blocks that pass the filters, and their usable bytes. `limit` does not
        apply."""
        return Amount.of(self._rows.totals())

    def columns(self) -> BlockTable:
        """Return all blocks as columns. numpy wraps a column without a copy:
        `numpy.frombuffer(blocks.columns().size, "u8")`."""
        return self._table

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with the columns address, size, state, kind, allocator, arena, type,
        type_from, type_sure, site and group. Text columns have the type category. `group` is the
        same number for all blocks of one leak, and 2**32 - 1 for blocks that are not leaked. `site`
        is 0 for blocks without a recorded call stack. `address` and `size` (usable bytes) are
        unsigned numbers of 64 bits, `site` and `group` of 32 bits. There is one row for each block.
        Raises FindleaksError if pandas is not installed, and TargetError if the process was closed
        before."""
        pd: Any = _module("pandas")
        np: Any = _module("numpy")
        table = self._table
        owner, sources = np.frombuffer(table.owner, "u4"), np.frombuffer(table.type_source, "u4")

        def words(codes: Any, names: list[Optional[str]]) -> Any:
            """Return a column of categories. Empty names become missing values."""
            known = list(dict.fromkeys(name for name in names if name))
            places = np.array([known.index(name) if name else -1 for name in names] or [-1], "i4")
            return pd.Categorical.from_codes(places[codes] if len(codes) else np.array([], "i4"), known)

        return pd.DataFrame(
            {
                "address": np.frombuffer(table.address, "u8"),
                "size": np.frombuffer(table.size, "u8"),
                "state": words(np.frombuffer(table.state, "u1"), _STATE_WORDS),
                "kind": words(np.frombuffer(table.kind, "u1"), _KIND_WORDS),
                "allocator": words(owner, [name for name, _ in table.owners]),
                "arena": words(owner, [arena for _, arena in table.owners]),
                "type": words(np.frombuffer(table.type, "u4"), list(table.types)),
                "type_from": words(sources, [name for name, _ in table.type_sources]),
                "type_sure": pd.array([None if sure is None else sure for _, sure in table.type_sources], "boolean").take(sources),
                "site": np.frombuffer(table.site, "u4"),
                "group": np.frombuffer(table.group, "u4"),
            },
            copy=False,
        )

    def to_arrow(self) -> pyarrow.Table:
        """Return an Arrow table with the columns of `to_pandas`. Text columns are
        dictionary-encoded. Raises FindleaksError if pyarrow is not installed, and TargetError if
        the process was closed before."""
        pa: Any = _module("pyarrow")
        table, count = self._table, len(self._table.address)

        def numbers(column: memoryview, type_: Any) -> Any:
            return pa.Array.from_buffers(type_, count, [None, pa.py_buffer(column)])

        def words(codes: Any, names: list[Optional[str]]) -> Any:
            return pa.DictionaryArray.from_arrays(codes.cast(pa.int32()), pa.array([name or None for name in names], pa.string()))

        owner, type_, sources = (numbers(column, pa.uint32()) for column in (table.owner, table.type, table.type_source))
        is_sure = pa.array([sure for _, sure in table.type_sources], pa.bool_())
        return pa.table(
            {
                "address": numbers(table.address, pa.uint64()),
                "size": numbers(table.size, pa.uint64()),
                "state": words(numbers(table.state, pa.uint8()), _STATE_WORDS),
                "kind": words(numbers(table.kind, pa.uint8()), _KIND_WORDS),
                "allocator": words(owner, [name for name, _ in table.owners]),
                "arena": words(owner, [arena for _, arena in table.owners]),
                "type": words(type_, list(table.types)),
                "type_from": words(sources, [name for name, _ in table.type_sources]),
                "type_sure": is_sure.take(sources),
                "site": numbers(table.site, pa.uint32()),
                "group": numbers(table.group, pa.uint32()),
            }
        )

    @property
    def _rows(self) -> BlockRows:
        return BlockRows(_check_open(self._session), self._filters)

    @cached_property
    def _table(self) -> BlockTable:
        return BlockTable(_check_open(self._session), self._filters, self._limit, self._largest)


def with_members(session: Session, block: Block) -> Block:
    """Return the block, whose `members` are now read from a session at their first use. This use
    raises TargetError if the session is closed."""

    def read() -> Sequence[Member]:
        index = _check_open(session).directory.blocks.find(block.address)
        return list_members(session, index) if block.kind and index >= 0 else []

    return block.read_members_by(read)


def _check_open(session: Session) -> Session:
    if session.is_closed:
        raise TargetError("the process is closed: read its blocks before the end of its `with` statement")
    return session


def _module(name: str) -> Any:
    """Import an optional library."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise FindleaksError(f"{name} is not usable here: {error}; install it with: pip install {name}") from None
