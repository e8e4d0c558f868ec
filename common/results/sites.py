"""Call stacks: their frames, and the allocation sites that a heap profiler recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.results.amounts import Amount
from findleaks.results.record import ADDRESS, OPTIONAL, Record, beside
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class StackFrame(Record):
    """One frame of a call stack, or a function inlined in it."""

    address: Optional[int] = field(metadata=ADDRESS)
    """The program counter or return address; None for a frame of interpreted code."""
    function: Optional[str]
    """The demangled name of the function."""
    offset: Optional[int]
    """Bytes from the function's start."""
    module: Optional[str]
    """The name of the file with the code."""
    file: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The source file."""
    line: Optional[int] = field(default=None, metadata=beside("file"))
    """The line in it, from 1."""
    inlined: bool = field(default=False, metadata=OPTIONAL)
    """Whether this is a function that the compiler inlined in the next frame."""


@dataclass(frozen=True, eq=False, repr=False)
class Site(Record):
    """An allocation site: a call stack that was recorded when blocks were allocated."""

    number: int
    """Its number, for `blocks --site`."""
    recorder: str
    """The recorder: "jemalloc"."""
    live: Amount
    """The blocks in use that were recorded with it."""
    allocated: Optional[Amount]
    """All blocks that it allocated, if the recorder counts them."""
    estimated: Optional[Amount]
    """Estimate for all blocks, if the recorder samples."""
    frames: Sequence[StackFrame]
    """The call stack, innermost frame first."""


@dataclass(frozen=True, eq=False, repr=False)
class Recorder(Record):
    """A heap profiler or similar tool in the process."""

    recorder: str
    """Its name."""
    interval: int
    """Bytes allocated between two samples on average; 1: every block is recorded."""
    sites: int
    """Number of sites."""
    blocks: int
    """Number of blocks recorded."""
