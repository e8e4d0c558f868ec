"""Parts of the notes on uncertainty, and results of few runtimes. They are not in notes.py, because
few processes have them, and each class adds 0.4 ms to every start."""

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
    """The name of the memcheck heuristic that found them by the content of blocks."""
    blocks: int
    """Blocks reachable only through such pointers."""
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
    """Blocks reachable only through such pointers."""
    bytes: int
    """Usable bytes of these blocks."""


@dataclass(frozen=True, eq=False, repr=False)
class DisguisedPart(Record):
    """A group of blocks in which too few have a disguised pointer of this form for the form to
    count."""

    disguise: str
    """The form: "tagged", "shifted" …"""
    base: Optional[int] = field(metadata=ADDRESS)
    """The address that compressed pointers are relative to."""
    shift: Optional[int]
    """Bits by which the pointers are shifted."""
    size: int
    """Usable bytes of each block."""
    blocks: int
    """Blocks that are referenced by such a pointer."""
    of: int
    """All blocks of the group."""


@dataclass(frozen=True, eq=False, repr=False)
class StoppedThread(Record):
    """A thread that was stopped inside an allocator."""

    thread: int
    """The kernel's number of the thread."""
    where: str
    """The function or library in which it was stopped."""
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
    """Kernel objects whose pointers findleaks cannot read."""

    what: str
    """Their kind: "io_uring"."""
    count: int
    """Number of these objects in the process."""


@dataclass(frozen=True, eq=False, repr=False)
class KernelUse(Record):
    """A way in which a process can have given pointers to the kernel, if its descriptors are
    unknown."""

    what: str
    """The kernel objects: "POSIX timers"."""
    function: str
    """The function that makes or fills them: "timer_create"."""
    module: str
    """The program or library that imports the function."""


@dataclass(frozen=True, eq=False, repr=False)
class MiscountedType(Record):
    """Leaked objects of one type that have wrong reference counts or were not collected."""

    name: str
    """The type."""
    objects: int
    """Objects whose count is larger than the number of existing references."""
    excess: int
    """The sum of their counts minus the existing references."""
    uncollected: int
    """Objects that a garbage collector has not freed yet."""


@dataclass(frozen=True, eq=False, repr=False)
class ReferenceCounts(Record):
    """Reference counts of leaked managed objects, compared with the existing references."""

    runtime: str
    """The runtime: "CPython"."""
    automatic_collection: Optional[bool]
    """Whether its garbage collector runs automatically; None: not known."""
    missing_decrement: Amount
    """Blocks that are leaked because an object counts a reference that does not exist."""
    uncollected: Amount
    """Blocks of garbage that the collector has not freed yet."""
    untracked_cycles: Amount
    """Blocks in cycles with objects that the collector does not track."""
    types: Sequence[MiscountedType]
    """The types, most objects with an excess first."""
