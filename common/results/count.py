"""The result of `count`: calls of a function by call stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Optional

from findleaks.results.record import ADDRESS, Record
from findleaks.results.sites import StackFrame
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class CountedFunction(Record):
    """A function whose calls are counted."""

    address: int = field(metadata=ADDRESS)
    """Where it begins."""
    function: str
    """Its name."""
    module: str
    """The name of the file with its code."""


@dataclass(frozen=True, eq=False, repr=False)
class CountedStack(Record):
    """Calls by one call stack."""

    count: int
    """Number of calls."""
    frames: Sequence[StackFrame]
    """The call stack, innermost frame first."""
    complete: bool
    """Whether the stack reaches its beginning."""


@dataclass(frozen=True, eq=False, repr=False)
class Calls(Record):
    """The result of `count`: the calls up to now."""

    functions: Sequence[CountedFunction]
    """The functions with this name."""
    engine: Literal["inject", "breakpoints"]
    """The method of counting: code in the process, or breakpoints."""
    events: int
    """Number of calls."""
    matched: int
    """Number of calls that pass the rule and the expression."""
    stack_table_full: int
    """Number of selected calls without a stack here, because the table of stacks was full."""
    undecided: int
    """Number of calls for which it is not known whether they were made outside a scope."""
    seconds: float
    """Seconds since counting began."""
    last: bool
    """Whether counting has ended."""
    end: Optional[str]
    """The reason for the end, as a word: "interrupt", "time", "asked", "ended", "stop"."""
    why: Optional[str]
    """The reason for the end, in words."""
    stacks: Sequence[CountedStack]
    """The selected calls by call stack, most calls first."""
