"""The result of `scopes`: V8's handle scopes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.results.record import ADDRESS, INTERNAL, Record
from findleaks.value_classes import NamedTuple, dataclass, field


class InnerFunction(NamedTuple):
    """A function that runs inside a scope, without its parameters, and the name of the file with
    its code."""

    function: str
    module: str


@dataclass(frozen=True, eq=False, repr=False)
class HandleScope(Record):
    """An open handle scope."""

    address: Optional[int] = field(metadata=ADDRESS)
    """The address of the scope; None for handles that are older than all scopes that were found."""
    frame: Optional[str]
    """A description of the frame that opened the scope."""
    function: Optional[str]
    """The name of the function that opened the scope; None if unknown."""
    module: Optional[str]
    """The name of the file that contains this function."""
    heap: bool
    """Whether the scope is on the heap, like those of Node-API."""
    thread: Optional[int]
    """The kernel's number (tid) of the thread that opened the scope; None if unknown."""
    handles: int
    """Number of handles that are in this scope and in no inner scope."""
    inside: Sequence[str]
    """Functions that run in this scope and in no inner scope, outermost first."""
    inner_functions: Sequence[InnerFunction] = field(default=(), metadata=INTERNAL)
    """The functions in `inside` that have a name."""


@dataclass(frozen=True, eq=False, repr=False)
class HandleValue(Record):
    """A kind of value that handles refer to."""

    value: str
    """The kind of value: an instance type, "small integers", "undefined" …"""
    handles: int
    """Number of handles."""
    objects: int
    """Number of distinct objects. For small integers, number of distinct values."""


@dataclass(frozen=True, eq=False, repr=False)
class GlobalHandles(Record):
    """The global handles of an isolate that are in use."""

    handles: int
    """Number of handles in use."""
    weak: int
    """Number of weak handles among these."""
    blocks: int
    """Number of blocks in use that contain the handles."""
    bytes: int
    """Bytes of these blocks."""
    problem: Optional[str]
    """A description of what could not be read."""


@dataclass(frozen=True, eq=False, repr=False)
class Isolate(Record):
    """An isolate of V8, and its handles."""

    address: int = field(metadata=ADDRESS)
    """The address of the isolate."""
    threads: Sequence[int]
    """The kernel's numbers (tids) of the threads in the isolate."""
    level: int
    """Number of open scopes as the isolate counts them."""
    handles: int
    """Number of local handles."""
    blocks: int
    """Number of blocks that contain the handles."""
    bytes: int
    """Bytes of these blocks."""
    values: Sequence[HandleValue]
    """The kinds of values that the handles refer to, those with the most handles first."""
    scopes: Sequence[HandleScope]
    """The open scopes, innermost first."""
    globals: Optional[GlobalHandles]
    """The global handles; None if they were not counted."""
    problem: Optional[str]
    """A description of what could not be read."""


@dataclass(frozen=True, eq=False, repr=False)
class Scopes(Record):
    """The result of `scopes`."""

    isolates: Sequence[Isolate]
    """The isolates of all threads, ascending by address."""
    problem: Optional[str]
    """Why no scopes were found, as text."""
