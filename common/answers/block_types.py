"""Answer the question "how much memory do blocks of each type have?"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Optional

from findleaks.audit.block_batches import Batch
from findleaks.audit.block_contents import describe_untyped, find_hint, is_text
from findleaks.audit.block_rows import BlockFilters, BlockRows
from findleaks.audit.leak_groups import NAMED
from findleaks.engine.terms import Kind, State, Totals
from findleaks.results.amounts import Amount
from findleaks.results.block_types import BlocksOfType, BlockTypes
from findleaks.session import Session
from findleaks.session.known_types import known_types
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.audit.untyped_reasons import Reason

_LEAKED = ("definite", "indirect")
EXPLAINED = 16
"""Maximum number of rows of unknown type that are explained.

Each explanation may search root memory."""


class _Key(NamedTuple):
    """The key of a row. For blocks of unknown type, `type` is "" and each `size` has a row. For all
    other blocks, `size` is 0."""

    type: str
    size: int


class _Sum:
    """The blocks with the same key."""

    def __init__(self) -> None:
        self.blocks = self.bytes = self.leaked_blocks = self.leaked_bytes = 0
        self.example: Optional[int] = None


def sum_by_type(session: Session, filters: BlockFilters, limit: int = 0) -> BlockTypes:
    """Sum the blocks that pass `filters` by type. `limit`: maximum number of rows (0: all)."""
    rows = BlockRows(session, filters)
    sums: dict[_Key, _Sum] = {}
    # The key is the number of a block's names, and its size.
    known: dict[tuple[int, int], _Sum] = {}
    for batch in rows.batches(hints=False):
        _add(batch, rows, sums, known)
    ordered = sorted(sums.items(), key=lambda item: (-item[1].bytes, item[0]))
    typed = [one for key, one in ordered if key.type]
    found: list[BlocksOfType] = []
    explained = 0
    for at, (key, one) in enumerate(ordered[: limit or None]):
        contents = None if key.type else _contents(session, one.example, at)
        reason = _explain(session, one.example or 0) if not key.type and explained < EXPLAINED else None
        explained += reason is not None
        size, leaked = None if key.type else key.size, Amount(one.leaked_blocks, one.leaked_bytes)
        why = (reason.text, reason.candidates) if reason is not None else (None, ())
        found.append(BlocksOfType(key.type or None, size, one.blocks, one.bytes, leaked, one.example or 0, contents, *why))
    return BlockTypes("type", _total(sums.values()), _total(typed), len(ordered), found)


def _add(batch: Batch, rows: BlockRows, sums: dict[_Key, _Sum], known: dict[tuple[int, int], _Sum]) -> None:
    """Add a batch to the sums. Equal pairs of (names, size) are counted first, because this takes a
    tenth of the time of adding block by block."""
    counts = Counter(zip(batch.names, batch.sizes))
    for (number, size), count in counts.items():
        names, one = rows.names[number], known.get((number, size))
        if one is None:
            one = known[number, size] = sums.setdefault(_Key(names.type, 0 if names.type else size), _Sum())
        one.blocks += count
        one.bytes += count * size
        if names.kind in _LEAKED:
            one.leaked_blocks += count
            one.leaked_bytes += count * size
    if any(known[pair].example is None for pair in counts):
        for address, pair in zip(batch.addresses, zip(batch.names, batch.sizes)):
            one = known[pair]
            if one.example is None or address < one.example:
                one.example = address


def _contents(session: Session, example: Optional[int], at: int) -> Optional[str]:
    """Describe the contents of the block that is the example of row `at`; None for rows beyond the
    first NAMED."""
    index = session.directory.blocks.find(example) if example is not None and at < NAMED else -1
    if index < 0 or example is None:
        return None
    size = session.directory.blocks.size(index)
    return describe_untyped(session, example, size) or None


def _explain(session: Session, example: int) -> Optional[Reason]:
    """Return why a block in use has no type. Return None for text, or without debug information."""
    index = session.directory.blocks.find(example) if known_types(session) is not None else -1
    if index < 0 or session.directory.blocks.state(index) != State.IN_USE:
        return None
    if is_text(find_hint(session, example, session.directory.blocks.size(index))):
        return None
    from findleaks.audit.untyped_reasons import explain_untyped, find_typed_reference

    is_leaked = session.graph().kind(index) in (Kind.DEFINITE, Kind.INDIRECT)
    return explain_untyped(session, index, None if is_leaked else find_typed_reference(session, index), is_leaked)


def _total(sums: Iterable[_Sum]) -> Amount:
    return Amount.of(Totals.sum_of(Totals(one.blocks, one.bytes) for one in sums))
