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
    """Where the scope is; None: it is older than those that were found."""
    frame: Optional[str]
    """The frame that opened it, in words."""
    function: Optional[str]
    """The function that opened it, if it has a name."""
    module: Optional[str]
    """The name of the file with that function."""
    heap: bool
    """Whether the scope is on the heap, as those of Node-API are."""
    thread: Optional[int]
    """The kernel's number of the thread that opened it; None: not known."""
    handles: int
    """Number of handles that belong to it and to no inner scope."""
    inside: Sequence[str]
    """Functions that run in it and in no inner scope, outermost first."""
    inner_functions: Sequence[InnerFunction] = field(default=(), metadata=INTERNAL)
    """Those of them that have a name."""


@dataclass(frozen=True, eq=False, repr=False)
class HandleValue(Record):
    """What handles refer to."""

    value: str
    """The kind of value: an instance type, "small integers", "undefined" …"""
    handles: int
    """Number of handles."""
    objects: int
    """Number of different objects; for small integers, of different values."""


@dataclass(frozen=True, eq=False, repr=False)
class GlobalHandles(Record):
    """An isolate's global handles in use."""

    handles: int
    """Number of handles in use."""
    weak: int
    """Number of weak ones among them."""
    blocks: int
    """Number of blocks in use that have them."""
    bytes: int
    """Bytes of these blocks."""
    problem: Optional[str]
    """What could not be read, in words."""


@dataclass(frozen=True, eq=False, repr=False)
class Isolate(Record):
    """An isolate of V8 with its handles."""

    address: int = field(metadata=ADDRESS)
    """Where it is."""
    threads: Sequence[int]
    """The kernel's numbers of the threads that are in it."""
    level: int
    """The number of open scopes, as the isolate counts them."""
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
    """The isolates that threads are in, by address."""
    problem: Optional[str]
    """Why there are no scopes, in words."""
