"""The result of `find --untyped`: where blocks without a type begin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.results.amounts import Amount
from findleaks.results.record import ADDRESS, Record
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class UntypedSource(Record):
    """Blocks without a type that one member, or one variable, refers to, and that retain other
    blocks without a type."""

    origin: Optional[str]
    """What refers to them: "dictEntry.v.val", "handle"; None: it is not known, or they are leak
    heads."""
    leaked: bool
    """Whether they are leak heads."""
    reason: str
    """Why the example has no type: "the pointer is void *", "struct item has 48 bytes"."""
    candidates: Sequence[str]
    """The types that the example may have: those of its size, or the target types of typed pointers
    to it. At most 16; empty if nothing limits them."""
    blocks: int
    """Number of these blocks."""
    sizes: Sequence[int]
    """Their smallest and their largest usable size, in bytes."""
    reached: Amount
    """These blocks, and the blocks that they retain."""
    example: int = field(metadata=ADDRESS)
    """The one of these blocks that retains most."""
    example_reached: Amount
    """What it retains, itself included."""


@dataclass(frozen=True, eq=False, repr=False)
class Untyped(Record):
    """The result of `find --untyped`."""

    in_use: Amount
    """All blocks in use."""
    untyped: Amount
    """The blocks among them whose type is not known; text and buffers are among them."""
    sources: Sequence[UntypedSource]
    """Where blocks without a type begin, those with the most reached bytes first. A block that no
    other block is reached from is left out."""
    rows: int
    """Number of sources without --limit."""
