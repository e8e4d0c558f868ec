"""The result of `track`: where a process allocated, and what became of the blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Optional

from findleaks.results.amounts import Amount
from findleaks.results.record import ADDRESS, OPTIONAL, Record, named
from findleaks.results.sites import StackFrame
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class Fates(Record):
    """The fates of blocks: freed, leaked or still reachable. Bytes are requested bytes. Figures are
    estimates if only some blocks were recorded."""

    allocated: Amount
    """All recorded blocks."""
    freed: Amount
    """Blocks that were freed."""
    held: Amount
    """Blocks that are still referenced."""
    possible: Amount
    """Blocks of `held` that are reachable only through pointers to their inside."""
    lost: Amount
    """Blocks that are leaked."""


@dataclass(frozen=True, eq=False, repr=False)
class TrackedEntry(Fates):
    """The blocks that one function allocated, with one fate."""

    function: Optional[str]
    """The function."""
    module: Optional[str]
    """The name of the file with its code."""
    stacks: int
    """Number of call stacks."""
    frames: Sequence[StackFrame]
    """The frames that these stacks have in common, innermost first."""


@dataclass(frozen=True, eq=False, repr=False)
class TrackedHolder(Record):
    """A root that retains blocks."""

    name: str
    """Its name."""
    blocks: int
    """Number of recorded blocks that it retains."""


@dataclass(frozen=True, eq=False, repr=False)
class TrackedStack(Fates):
    """The blocks that were allocated by one call stack."""

    entry: int
    """The number of its entry, from 1."""
    frames: Sequence[StackFrame]
    """The call stack, innermost frame first."""
    complete: bool
    """Whether the stack reaches its beginning."""
    holders: Sequence[TrackedHolder]
    """The roots that retain blocks, most blocks first."""
    examples: Sequence[int] = field(metadata=ADDRESS)
    """Addresses of some leaked blocks, or of some held ones if none is leaked."""


@dataclass(frozen=True, eq=False, repr=False)
class AllocatedSize(Record):
    """Blocks of one size that were allocated."""

    size: int
    """Bytes requested."""
    blocks: int
    """Number of blocks, estimated."""


@dataclass(frozen=True, eq=False, repr=False)
class UnseenReason(Record):
    """A reason why no block was recorded."""

    what: Literal["stopped", "idle", "other_sizes", "other_allocator", "pymalloc", "sampled"] = field(metadata=named("reason"))
    """The reason as a word for scripts."""
    text: str
    """The reason in a sentence."""
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
    """Number of blocks that were not recorded, because the table was full."""
    estimated: bool
    """Whether the figures are estimates, because only some blocks were recorded."""
    totals: Fates
    """Sums of all call stacks."""
    entries: Sequence[TrackedEntry]
    """The call stacks merged by function, most leaked bytes first."""
    stacks: Sequence[TrackedStack]
    """Every call stack, most leaked bytes first."""
    reasons: Sequence[UnseenReason]
    """Why no block was recorded."""
    what: Literal["blocks", "mappings"] = field(default="blocks", metadata=OPTIONAL)
    """What was recorded. Bytes of held and lost mappings are those that are still mapped."""
