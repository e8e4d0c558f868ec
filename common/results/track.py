"""The result of `track`: where a process allocated, and what became of the blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Optional

from findleaks.results.amounts import Amount
from findleaks.results.record import ADDRESS, OPTIONAL, Record, with_key
from findleaks.results.sites import StackFrame
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class Fates(Record):
    """What became of blocks: freed, leaked or still reachable. Bytes are requested bytes. The
    figures are estimates if only some blocks were recorded."""

    allocated: Amount
    """All recorded blocks."""
    freed: Amount
    """Blocks that were freed."""
    held: Amount
    """Blocks that are still referenced."""
    possible: Amount
    """Those of the `held` blocks that are reachable only through pointers to their inside."""
    lost: Amount
    """Blocks that leaked."""


@dataclass(frozen=True, eq=False, repr=False)
class TrackedEntry(Fates):
    """The blocks that one function allocated and that had the same fate."""

    function: Optional[str]
    """The name of the function."""
    module: Optional[str]
    """The name of the file that contains the function's code."""
    stacks: int
    """Number of call stacks."""
    frames: Sequence[StackFrame]
    """The frames that all of these stacks have in common, innermost first."""


@dataclass(frozen=True, eq=False, repr=False)
class TrackedHolder(Record):
    """A root that retains blocks."""

    name: str
    """The name of the root."""
    blocks: int
    """Number of recorded blocks that the root retains."""


@dataclass(frozen=True, eq=False, repr=False)
class TrackedStack(Fates):
    """The blocks that were allocated by one call stack."""

    entry: int
    """The number of the stack's entry in `entries`, from 1."""
    frames: Sequence[StackFrame]
    """The call stack, innermost frame first."""
    complete: bool
    """Whether the stack was unwound to its beginning."""
    holders: Sequence[TrackedHolder]
    """The roots that retain these blocks, those with the most blocks first."""
    examples: Sequence[int] = field(metadata=ADDRESS)
    """Addresses of some of the leaked blocks. If none leaked, addresses of some held blocks."""
    incomplete: Optional[str] = field(default=None, metadata=OPTIONAL)
    """Why the outer frames of the stack are missing."""


@dataclass(frozen=True, eq=False, repr=False)
class AllocatedSize(Record):
    """Blocks of one size that were allocated."""

    size: int
    """The requested size in bytes."""
    blocks: int
    """Estimated number of blocks."""


@dataclass(frozen=True, eq=False, repr=False)
class UnseenReason(Record):
    """A reason why no block was recorded."""

    what: Literal["stopped", "idle", "other_sizes", "other_allocator", "pymalloc", "sampled"] = field(metadata=with_key("reason"))
    """The reason as a word for scripts."""
    text: str
    """The reason as a sentence."""
    sizes: Sequence[AllocatedSize] = field(default=(), metadata=OPTIONAL)
    """The sizes that were allocated instead."""


@dataclass(frozen=True, eq=False, repr=False)
class Tracked(Record):
    """The result of `track`."""

    pid: int
    """The process id."""
    seconds: float
    """Seconds for which allocations were recorded."""
    end: str
    """Why recording ended, as a word: "interrupt", "time", "full", "stop"."""
    recorded: int
    """Number of blocks that were recorded."""
    not_recorded: int
    """Number of blocks that were not recorded because the table was full."""
    estimated: bool
    """Whether the figures are estimates because only some blocks were recorded."""
    totals: Fates
    """Sums over all call stacks."""
    entries: Sequence[TrackedEntry]
    """The call stacks merged by function. Those with the most leaked bytes are first."""
    stacks: Sequence[TrackedStack]
    """All call stacks. Those with the most leaked bytes are first."""
    reasons: Sequence[UnseenReason]
    """The reasons why no block was recorded."""
    what: Literal["blocks", "mappings"] = field(default="blocks", metadata=OPTIONAL)
    """What was recorded. Bytes of held and lost mappings are those that are still mapped."""
