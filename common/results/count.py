"""The result of `count`: calls of a function by call stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Optional

from findleaks.results.record import ADDRESS, OPTIONAL, Record
from findleaks.results.sites import StackFrame
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class CountedFunction(Record):
    """A function whose calls are counted."""

    address: int = field(metadata=ADDRESS)
    """The address of the function."""
    function: str
    """The name of the function."""
    module: str
    """The name of the file that contains the function's code."""


@dataclass(frozen=True, eq=False, repr=False)
class CountedStack(Record):
    """Calls by one call stack."""

    count: int
    """Number of calls."""
    frames: Sequence[StackFrame]
    """The call stack, innermost frame first."""
    complete: bool
    """Whether the stack was unwound to its beginning."""
    incomplete: Optional[str] = field(default=None, metadata=OPTIONAL)
    """Why the outer frames of the stack are missing."""


@dataclass(frozen=True, eq=False, repr=False)
class Calls(Record):
    """The result of `count`: all calls since counting began."""

    functions: Sequence[CountedFunction]
    """The functions whose name matches."""
    engine: Literal["inject", "breakpoints"]
    """The method of counting. inject: code that findleaks injects into the process. breakpoints: a
    debugger's breakpoints."""
    events: int
    """Number of all calls."""
    matched: int
    """Number of calls for which the rule and the expression hold. These calls are selected."""
    stack_table_full: int
    """Number of selected calls that are missing from `stacks`, because the table of stacks was
    full."""
    undecided: int
    """Number of calls for which it is unknown whether they were made outside a scope."""
    seconds: float
    """Seconds since counting began."""
    last: bool
    """Whether counting has ended."""
    end: Optional[str]
    """The reason why counting ended, as a word: "interrupt", "time", "asked", "ended", "stop"."""
    why: Optional[str]
    """The reason why counting ended, as text."""
    stacks: Sequence[CountedStack]
    """The selected calls by call stack, those with the most calls first."""
