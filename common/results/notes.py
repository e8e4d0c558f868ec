"""What makes an answer uncertain: conventions, unread memory, pointers of the kernel, threads that
were stopped inside an allocator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional

from findleaks.results.amounts import Amount
from findleaks.results.record import ADDRESS, Record


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
class Disguised(Record):
    """Disguised pointers: tagged, shifted, compressed, or at odd addresses."""

    conventions: Sequence[DisguisedConvention]
    """The forms that count as references."""
    held: Amount
    """Blocks that only these make reachable."""
    partly: Sequence[DisguisedPart]
    """Groups of which too few blocks have such a pointer."""
    left_out: int
    """Bytes that were not searched for disguised pointers."""


@dataclass(frozen=True, eq=False, repr=False)
class Heuristics(Record):
    """Interior and disguised pointers that count as references to a block's start."""

    asked: str
    """What --heuristics asked for."""
    applied: Sequence[str]
    """Heuristics by content that count, by memcheck's names."""
    conventions: Sequence[Convention]
    """The offsets that count."""
    structures: Sequence[Structure]
    """What interior pointers were recognised to refer to."""
    held: Amount
    """Blocks that only conventions and structures make reachable."""
    disguised: Disguised
    """Pointers that are no plain addresses."""


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
class InFlight(Record):
    """Blocks that threads inside an allocator work on. They count as reachable."""

    blocks: int
    """Number of these blocks."""
    bytes: int
    """Their usable bytes."""
    threads: Sequence[StoppedThread]
    """The threads."""
    half_changed: Sequence[HalfChanged]
    """What they were changing."""
    reads: int
    """How often a live process was read: more than once if a reading was inconsistent."""


@dataclass(frozen=True, eq=False, repr=False)
class UnreadPart(Record):
    """Memory of one owner that findleaks does not read."""

    of: Optional[str]
    """The owner; None: unknown."""
    bytes: int
    """Bytes of it."""


@dataclass(frozen=True, eq=False, repr=False)
class UnreadMemory(Record):
    """Writable memory that findleaks does not read: leaks in it are not reported."""

    bytes: int
    """Bytes that are not read."""
    of: int
    """Bytes of writable memory in all."""
    percent: int
    """`bytes` of `of`, in percent."""
    resident: bool
    """Whether the figures are resident bytes; else the bytes of pages without zeros."""
    parts: Sequence[UnreadPart]
    """By owner, the largest first."""
    in_malloc_blocks: Optional[UnreadPart]
    """Blocks in use where a runtime keeps objects that are not read."""


@dataclass(frozen=True, eq=False, repr=False)
class Unreadable(Record):
    """Kernel objects whose pointers cannot be read."""

    what: str
    """Their kind: "io_uring"."""
    count: int
    """How many of them the process has."""


@dataclass(frozen=True, eq=False, repr=False)
class KernelReferences(Record):
    """Pointers that the kernel keeps for the process."""

    references: Optional[int]
    """Words of the kernel that point into blocks; None: not known."""
    unreadable: Sequence[Unreadable]
    """What has pointers that cannot be read."""
    epoll_waiters: int
    """Threads that wait in epoll_wait, where the registered data is not known."""
    signal_stacks: Amount
    """Blocks that look like alternate signal stacks, whose addresses only the kernel has."""


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
