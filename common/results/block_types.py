"""The result of `blocks --by type`: number and bytes of the blocks of each type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.results.amounts import Amount
from findleaks.results.record import ADDRESS, Record
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class BlocksOfType(Record):
    """The blocks of one type. Blocks of unknown type form one row for each size."""

    type: Optional[str]
    """The type; None if unknown."""
    size: Optional[int]
    """The usable size of each block in bytes, if the type is unknown."""
    blocks: int
    """Number of blocks."""
    bytes: int
    """Usable bytes of these blocks."""
    leaked: Amount
    """Number and bytes of the definitely or indirectly lost blocks of this type."""
    example: int = field(metadata=ADDRESS)
    """The lowest address of these blocks."""
    contents: Optional[str]
    """What the block at `example` contains, if its type is unknown: "→ inflate, libz.so.1"."""
    reason: Optional[str]
    """Why the block at `example` has no type: "the pointer is void *". None if the type is known,
    if there is no debug information, for text, and after the first 16 rows of unknown type."""
    candidates: Sequence[str]
    """The types that the block at `example` may have; see UntypedSource."""


@dataclass(frozen=True, eq=False, repr=False)
class BlockTypes(Record):
    """The result of `blocks --by type`."""

    by: str
    """The word of --by: "type"."""
    total: Amount
    """All blocks that pass the filters."""
    typed: Amount
    """Number and bytes of those blocks in `total` whose type is known."""
    rows: int
    """Number of rows that would be listed without --limit."""
    types: Sequence[BlocksOfType]
    """Rows, the most bytes first."""
