"""The result of `stacks`: threads with identical call stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.results.record import Record
from findleaks.results.sites import StackFrame
from findleaks.value_classes import dataclass


@dataclass(frozen=True, eq=False, repr=False)
class ThreadGroup(Record):
    """Threads with one call stack."""

    count: int
    """Number of threads."""
    threads: Sequence[int]
    """The kernel's numbers of the threads."""
    names: Sequence[Optional[str]]
    """Their names."""
    frames: Sequence[StackFrame]
    """The call stack, innermost frame first."""
    complete: bool
    """Whether the stack reaches its beginning."""


@dataclass(frozen=True, eq=False, repr=False)
class Stacks(Record):
    """The result of `stacks`."""

    threads: int
    """Number of threads of the process."""
    stacks: Sequence[ThreadGroup]
    """By call stack, most threads first."""
