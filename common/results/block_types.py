"""The result of `blocks --by type`: number and bytes of the blocks of each type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.results.amounts import Amount
from findleaks.results.record import ADDRESS, Record
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class BlocksOfType(Record):
    """The blocks of one type, or those of one size whose type is not known."""

    type: Optional[str]
    """The type; None if it is not known."""
    size: Optional[int]
    """The usable size in bytes of each block, if the type is not known."""
    blocks: int
    """Number of blocks."""
    bytes: int
    """Usable bytes of these blocks."""
    leaked: Amount
    """The definitely or indirectly lost blocks among them."""
    example: int = field(metadata=ADDRESS)
    """The lowest address of these blocks."""
    contents: Optional[str]
    """What the block at `example` contains, if its type is not known: "→ inflate, libz.so.1"."""


@dataclass(frozen=True, eq=False, repr=False)
class BlockTypes(Record):
    """The result of `blocks --by type`."""

    by: str
    """The word of --by: "type"."""
    total: Amount
    """All blocks that pass the filters."""
    typed: Amount
    """The blocks among them whose type is known."""
    rows: int
    """Number of rows without --limit."""
    types: Sequence[BlocksOfType]
    """Rows, the most bytes first."""
