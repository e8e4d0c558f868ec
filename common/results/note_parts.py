"""Parts of the notes about uncertainty, and results that few runtimes have. They are not in
notes.py, because few processes have them, and each class adds 0.4 ms to every start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.results.amounts import Amount
from findleaks.results.record import ADDRESS, Record
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class Convention(Record):
    """A convention of the program: it refers to blocks at a fixed offset from their start."""

    offset: int
    """Offset in bytes from the start of a block to the address that the pointers contain."""
    sizes: Optional[Sequence[int]]
    """The usable sizes of the blocks to which the convention applies; None for any size."""
    heuristic: Optional[str]
    """The name of the memcheck heuristic that found these pointers by the content of the blocks;
    None if the offset was learned."""
    blocks: int
    """Number of blocks that are reachable only through such pointers."""
    bytes: int
    """Usable bytes of these blocks."""


@dataclass(frozen=True, eq=False, repr=False)
class Structure(Record):
    """Structures of one kind that are referenced by pointers to their inside."""

    structure: str
    """The kind of structure: "hashbrown"."""
    pointers: int
    """Number of pointers."""
    blocks: int
    """Number of structures."""
    bytes: int
    """Usable bytes of the blocks that contain these structures."""


@dataclass(frozen=True, eq=False, repr=False)
class DisguisedConvention(Record):
    """A form of disguised pointers that count as references."""

    disguise: str
    """The form: "tagged", "shifted" …"""
    base: Optional[int] = field(metadata=ADDRESS)
    """The address to which compressed pointers are relative."""
    shift: Optional[int]
    """Number of bits by which the pointers are shifted or rotated."""
    offset: int
    """Offset in bytes from the start of a block to the address that the pointers stand for."""
    sizes: Optional[Sequence[int]]
    """The usable sizes of the blocks to which the form applies; None for any size."""
    blocks: int
    """Number of blocks that are reachable only through such pointers."""
    bytes: int
    """Usable bytes of these blocks."""


@dataclass(frozen=True, eq=False, repr=False)
class DisguisedPart(Record):
    """A group of blocks of one size. Some of them have a disguised pointer of this form, but too
    few for the form to count."""

    disguise: str
    """The form: "tagged", "shifted" …"""
    base: Optional[int] = field(metadata=ADDRESS)
    """The address to which compressed pointers are relative."""
    shift: Optional[int]
    """Number of bits by which the pointers are shifted or rotated."""
    size: int
    """Usable bytes of each block."""
    blocks: int
    """Number of blocks to which such a pointer refers."""
    of: int
    """Number of all blocks of the group."""


@dataclass(frozen=True, eq=False, repr=False)
class StoppedThread(Record):
    """A thread that was stopped inside an allocator."""

    thread: int
    """The kernel's number (tid) of the thread."""
    where: str
    """The function or library in which it was stopped."""
    unwound: bool
    """Whether the whole call stack of the thread is known."""


@dataclass(frozen=True, eq=False, repr=False)
class HalfChanged(Record):
    """A place in the heap that a thread was changing."""

    thread: int
    """The kernel's number (tid) of the thread."""
    what: str
    """A description of the inconsistency."""


@dataclass(frozen=True, eq=False, repr=False)
class Unreadable(Record):
    """Kernel objects whose pointers findleaks cannot read."""

    what: str
    """The kind of object: "io_uring"."""
    count: int
    """Number of these objects in the process."""


@dataclass(frozen=True, eq=False, repr=False)
class KernelUse(Record):
    """A way in which a process may have given pointers to the kernel. It is reported if the
    process's descriptors are unknown."""

    what: str
    """The kind of kernel object: "POSIX timers"."""
    function: str
    """The function that creates the objects or passes pointers to them: "timer_create"."""
    module: str
    """The program or library that imports the function."""


@dataclass(frozen=True, eq=False, repr=False)
class MiscountedType(Record):
    """Leaked objects of one type whose reference counts are wrong, or which were not collected."""

    name: str
    """The name of the type."""
    objects: int
    """Number of objects whose reference count is larger than the number of existing references."""
    excess: int
    """The sum of these counts, minus the number of existing references."""
    uncollected: int
    """Number of objects that a garbage collector has not freed yet."""


@dataclass(frozen=True, eq=False, repr=False)
class ReferenceCounts(Record):
    """Reference counts of leaked managed objects, compared with the existing references."""

    runtime: str
    """The name of the runtime: "CPython"."""
    automatic_collection: Optional[bool]
    """Whether the runtime's garbage collector runs automatically; None if unknown."""
    missing_decrement: Amount
    """Blocks that leaked because an object counts a reference that does not exist."""
    uncollected: Amount
    """Blocks of garbage that the collector has not freed yet."""
    untracked_cycles: Amount
    """Blocks in cycles with objects that the collector does not track."""
    types: Sequence[MiscountedType]
    """The types, those with the most objects with a wrong count first."""
