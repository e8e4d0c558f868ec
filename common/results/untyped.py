"""The result of `find --untyped`: where blocks without a type begin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.results.amounts import Amount
from findleaks.results.record import ADDRESS, Record
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class UntypedSource(Record):
    """A source: blocks without a type that one member, or one variable, refers to, and that retain
    other blocks without a type."""

    origin: Optional[str]
    """The member or variable that refers to these blocks: "dictEntry.v.val", "handle"; None if it
    is unknown, or if the blocks are leak heads."""
    leaked: bool
    """Whether these blocks are leak heads."""
    reason: str
    """Why the block at `example` has no type: "the pointer is void *", "struct item has 48
    bytes"."""
    candidates: Sequence[str]
    """The types that the block at `example` may have: the types of its size, or the target types of
    typed pointers to it. At most 16; empty if any type is possible."""
    blocks: int
    """Number of these blocks."""
    sizes: Sequence[int]
    """The smallest and the largest usable size of these blocks, in bytes."""
    reached: Amount
    """These blocks, and the blocks that they retain."""
    example: int = field(metadata=ADDRESS)
    """The address of the block that retains most among these blocks."""
    example_reached: Amount
    """The blocks that this block retains, itself included."""


@dataclass(frozen=True, eq=False, repr=False)
class Untyped(Record):
    """The result of `find --untyped`."""

    in_use: Amount
    """All blocks in use."""
    untyped: Amount
    """Blocks in use whose type is not known, including text and buffers."""
    sources: Sequence[UntypedSource]
    """The sources, those with the most reached bytes first. Blocks from which no other block is
    reached are left out."""
    rows: int
    """Number of sources without --limit."""
