"""Parts of what makes an answer uncertain, and what only some runtimes show: results that few
processes have, apart from notes.py, as each class takes 0.4 ms of every start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.results.amounts import Amount
from findleaks.results.record import ADDRESS, Record
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class Convention(Record):
    """An offset from the start of blocks at which the program refers to them."""

    offset: int
    """Bytes from a block's start to where pointers refer."""
    sizes: Optional[Sequence[int]]
    """The usable sizes of blocks to which the convention is restricted; None: any size."""
    heuristic: Optional[str]
    """The heuristic by the content of blocks that found them, by memcheck's name."""
    blocks: int
    """Blocks that only such pointers make reachable."""
    bytes: int
    """Usable bytes of these blocks."""


@dataclass(frozen=True, eq=False, repr=False)
class Structure(Record):
    """Structures of one kind that pointers to their inside refer to."""

    structure: str
    """The kind of structure: "hashbrown"."""
    pointers: int
    """Number of pointers."""
    blocks: int
    """Number of structures."""
    bytes: int
    """Usable bytes of their blocks."""


@dataclass(frozen=True, eq=False, repr=False)
class DisguisedConvention(Record):
    """A form of disguised pointers that counts as references."""

    disguise: str
    """The form: "tagged", "shifted" …"""
    base: Optional[int] = field(metadata=ADDRESS)
    """The address that compressed pointers are relative to."""
    shift: Optional[int]
    """Bits by which the pointers are shifted."""
    offset: int
    """Bytes from a block's start to where the pointers refer."""
    sizes: Optional[Sequence[int]]
    """The usable sizes of blocks to which the form is restricted; None: any size."""
    blocks: int
    """Blocks that only such pointers make reachable."""
    bytes: int
    """Usable bytes of these blocks."""


@dataclass(frozen=True, eq=False, repr=False)
class DisguisedPart(Record):
    """A group of blocks of which too few have a disguised pointer of this form for it to count."""

    disguise: str
    """The form: "tagged", "shifted" …"""
    base: Optional[int] = field(metadata=ADDRESS)
    """The address that compressed pointers are relative to."""
    shift: Optional[int]
    """Bits by which the pointers are shifted."""
    size: int
    """Usable bytes of each block."""
    blocks: int
    """Blocks with such a pointer."""
    of: int
    """All blocks of the group."""


@dataclass(frozen=True, eq=False, repr=False)
class StoppedThread(Record):
    """A thread that was stopped inside an allocator."""

    thread: int
    """The kernel's number of the thread."""
    where: str
    """The function or library it was stopped in."""
    unwound: bool
    """Whether its whole call stack is known."""


@dataclass(frozen=True, eq=False, repr=False)
class HalfChanged(Record):
    """A place of the heap that a thread was changing."""

    thread: int
    """The kernel's number of the thread."""
    what: str
    """The inconsistency."""


@dataclass(frozen=True, eq=False, repr=False)
class Unreadable(Record):
    """Kernel objects whose pointers cannot be read."""

    what: str
    """Their kind: "io_uring"."""
    count: int
    """Number of these objects in the process."""


@dataclass(frozen=True, eq=False, repr=False)
class MiscountedType(Record):
    """Leaked objects of one type with wrong reference counts, or uncollected."""

    name: str
    """The type."""
    objects: int
    """Objects that count more references than exist."""
    excess: int
    """References that these count beyond those that exist."""
    uncollected: int
    """Objects that a garbage collector has not freed yet."""


@dataclass(frozen=True, eq=False, repr=False)
class ReferenceCounts(Record):
    """Reference counts of leaked managed objects, beside the references that exist."""

    runtime: str
    """The runtime: "CPython"."""
    automatic_collection: Optional[bool]
    """Whether its garbage collector runs by itself; None: not known."""
    missing_decrement: Amount
    """Blocks that are leaked because an object counts a reference that does not exist."""
    uncollected: Amount
    """Blocks of garbage that the collector has not freed yet."""
    untracked_cycles: Amount
    """Blocks in cycles with objects that the collector does not know."""
    types: Sequence[MiscountedType]
    """By type, most objects with an excess first."""
