"""Call stacks, their frames, and the allocation sites that a heap profiler recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.results.amounts import Amount
from findleaks.results.record import ADDRESS, OPTIONAL, Record, beside
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class StackFrame(Record):
    """A frame of a call stack, or a function that is inlined in a frame."""

    address: Optional[int] = field(metadata=ADDRESS)
    """The program counter or return address; None for a frame of a managed language."""
    function: Optional[str]
    """The demangled name of the function."""
    offset: Optional[int]
    """Offset in bytes from the start of the function."""
    module: Optional[str]
    """The name of the file that contains the code."""
    file: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The source file."""
    line: Optional[int] = field(default=None, metadata=beside("file"))
    """The line in the source file, from 1."""
    inlined: bool = field(default=False, metadata=OPTIONAL)
    """Whether this is a function that the compiler inlined in the next frame."""
    kind: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The language of a managed function: "Python" or "Ruby", whose frames precede that of the
    interpreter, "Java", "JavaScript" or "WebAssembly"; None for machine code."""
    is_async: bool = field(default=False, metadata=OPTIONAL)
    """Whether this function waits (await) for the frame before it, and has no frame on the
    stack."""
    reason: Optional[str] = field(default=None, metadata=OPTIONAL)
    """Why the name or the line of a managed function is unknown."""


@dataclass(frozen=True, eq=False, repr=False)
class Site(Record):
    """An allocation site: a call stack that was recorded when blocks were allocated."""

    number: int
    """The number of the site, for `blocks --site`."""
    recorder: str
    """The name of the recorder: "jemalloc"."""
    live: Amount
    """The recorded blocks of this site that are still in use."""
    allocated: Optional[Amount]
    """All blocks that this call stack allocated; None if the recorder does not count them."""
    estimated: Optional[Amount]
    """Estimated number and bytes of all blocks; None unless the recorder samples."""
    frames: Sequence[StackFrame]
    """The call stack, innermost frame first."""


@dataclass(frozen=True, eq=False, repr=False)
class Recorder(Record):
    """A heap profiler or a similar tool in the process that records call stacks."""

    recorder: str
    """The name of the recorder."""
    interval: int
    """Average number of bytes that are allocated between two samples; 1 if every block is
    recorded."""
    sites: int
    """Number of recorded sites."""
    blocks: int
    """Number of recorded blocks."""
