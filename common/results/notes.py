"""Notes on the uncertainty of a result: conventions, unread memory, pointers in the kernel, threads
that were stopped inside an allocator. Parts of these results are in note_parts.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.results.amounts import Amount
from findleaks.results.record import Record
from findleaks.value_classes import dataclass

if TYPE_CHECKING:
    from findleaks.results.note_parts import (
        Convention,
        DisguisedConvention,
        DisguisedPart,
        HalfChanged,
        KernelUse,
        StoppedThread,
        Structure,
        Unreadable,
    )


@dataclass(frozen=True, eq=False, repr=False)
class Disguised(Record):
    """Disguised pointers: tagged, shifted, compressed, or at odd addresses."""

    conventions: Sequence[DisguisedConvention]
    """The forms that count as references."""
    held: Amount
    """Blocks reachable only through these pointers."""
    partly: Sequence[DisguisedPart]
    """Groups in which too few blocks have such a pointer."""
    left_out: int
    """Bytes that were not searched for disguised pointers."""


@dataclass(frozen=True, eq=False, repr=False)
class Heuristics(Record):
    """Interior and disguised pointers that count as references to a block's start."""

    asked: str
    """The words that --heuristics was given."""
    applied: Sequence[str]
    """Heuristics by content that count, by memcheck's names."""
    conventions: Sequence[Convention]
    """The offsets that count."""
    structures: Sequence[Structure]
    """Recognised structures that interior pointers refer to."""
    held: Amount
    """Blocks reachable only through conventions and structures."""
    disguised: Disguised
    """Pointers that are not plain addresses."""


@dataclass(frozen=True, eq=False, repr=False)
class InFlight(Record):
    """Blocks that threads inside an allocator were working on. They count as reachable."""

    blocks: int
    """Number of these blocks."""
    bytes: int
    """Their usable bytes."""
    threads: Sequence[StoppedThread]
    """The threads that are inside an allocator."""
    half_changed: Sequence[HalfChanged]
    """The blocks that these threads were changing."""
    reads: int
    """Number of times that a live process was read; more than 1 if data was inconsistent."""


@dataclass(frozen=True, eq=False, repr=False)
class UnreadPart(Record):
    """Memory of one owner whose content findleaks does not read."""

    of: Optional[str]
    """The owner; None: unknown."""
    bytes: int
    """Bytes of it."""


@dataclass(frozen=True, eq=False, repr=False)
class UnreadMemory(Record):
    """Writable memory whose content findleaks does not read. Leaks in it are not reported."""

    bytes: int
    """Bytes that are not read."""
    of: int
    """Bytes of writable memory in all."""
    percent: int
    """`bytes` of `of`, in percent."""
    resident: bool
    """Whether the figures are resident bytes. If not, they are bytes of pages that are not all
    zero."""
    parts: Sequence[UnreadPart]
    """By owner, the largest first."""
    in_malloc_blocks: Optional[UnreadPart]
    """Blocks in use that contain a runtime's objects, which findleaks does not read."""


@dataclass(frozen=True, eq=False, repr=False)
class KernelReferences(Record):
    """Pointers that the kernel keeps for the process."""

    references: Optional[int]
    """Words of the kernel that point into blocks; None: not known."""
    unreadable: Sequence[Unreadable]
    """Kernel objects with pointers that cannot be read."""
    epoll_waiters: int
    """Threads that wait in epoll_wait, if the registered data is not known."""
    uses: Sequence[KernelUse]
    """Other kernel objects that may have pointers, if the objects of the process are not known and
    blocks are leaked."""
    doubtful: Amount
    """Leaked blocks, if one of the above may refer to them."""
    signal_stacks: Amount
    """Blocks that look like alternate signal stacks, whose addresses only the kernel stores."""
