"""The result of `scopes`: V8's handle scopes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.results.record import ADDRESS, INTERNAL, Record
from findleaks.value_classes import NamedTuple, dataclass, field


class InnerFunction(NamedTuple):
    """A function that runs inside a scope, without its parameters, and the name of its file."""

    function: str
    module: str


@dataclass(frozen=True, eq=False, repr=False)
class HandleScope(Record):
    """An open handle scope."""

    address: Optional[int] = field(metadata=ADDRESS)
    """The address of the scope; None: it is older than all scopes found."""
    frame: Optional[str]
    """The frame that opened it, in words."""
    function: Optional[str]
    """The name of the function that opened it, if known."""
    module: Optional[str]
    """The name of the file with that function."""
    heap: bool
    """Whether the scope is on the heap, like those of Node-API."""
    thread: Optional[int]
    """The kernel's number of the thread that opened it; None: not known."""
    handles: int
    """Number of handles in this scope and in no inner scope."""
    inside: Sequence[str]
    """Functions that run in this scope and in no inner scope, outermost first."""
    inner_functions: Sequence[InnerFunction] = field(default=(), metadata=INTERNAL)
    """Those of these functions that have a name."""


@dataclass(frozen=True, eq=False, repr=False)
class HandleValue(Record):
    """What handles refer to."""

    value: str
    """The kind of value: an instance type, "small integers", "undefined" …"""
    handles: int
    """Number of handles."""
    objects: int
    """Number of distinct objects; for small integers, of distinct values."""


@dataclass(frozen=True, eq=False, repr=False)
class GlobalHandles(Record):
    """An isolate's global handles in use."""

    handles: int
    """Number of handles in use."""
    weak: int
    """Number of weak ones among them."""
    blocks: int
    """Number of blocks in use that contain the handles."""
    bytes: int
    """Bytes of these blocks."""
    problem: Optional[str]
    """What could not be read, in words."""


@dataclass(frozen=True, eq=False, repr=False)
class Isolate(Record):
    """An isolate of V8 with its handles."""

    address: int = field(metadata=ADDRESS)
    """The address of the isolate."""
    threads: Sequence[int]
    """The kernel's numbers of the threads in the isolate."""
    level: int
    """Number of open scopes according to the isolate."""
    handles: int
    """Number of local handles."""
    blocks: int
    """Number of blocks of handles."""
    bytes: int
    """Bytes of these blocks."""
    values: Sequence[HandleValue]
    """What the handles refer to, most handles first."""
    scopes: Sequence[HandleScope]
    """The open scopes, innermost first."""
    globals: Optional[GlobalHandles]
    """The global handles; None: not counted."""
    problem: Optional[str]
    """What could not be read, in words."""


@dataclass(frozen=True, eq=False, repr=False)
class Scopes(Record):
    """The result of `scopes`."""

    isolates: Sequence[Isolate]
    """The isolates of threads, by address."""
    problem: Optional[str]
    """Why there are no scopes, in words."""
