"""Notes about the uncertainty of a result: conventions, unread memory, pointers in the kernel, and
threads that were stopped inside an allocator. note_parts.py contains parts of these results."""

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
    """Blocks that are reachable only through these pointers."""
    partly: Sequence[DisguisedPart]
    """Groups in which too few blocks have such a pointer."""
    left_out: int
    """Bytes that were not searched for disguised pointers."""


@dataclass(frozen=True, eq=False, repr=False)
class Heuristics(Record):
    """Interior and disguised pointers that count as references to a block's start."""

    asked: str
    """The value of --heuristics as the user wrote it."""
    applied: Sequence[str]
    """Names of the memcheck heuristics whose pointers count."""
    conventions: Sequence[Convention]
    """The conventions whose pointers count."""
    structures: Sequence[Structure]
    """Recognised structures that interior pointers refer to."""
    held: Amount
    """Blocks that are reachable only through conventions and structures."""
    disguised: Disguised
    """Pointers that are not plain addresses."""


@dataclass(frozen=True, eq=False, repr=False)
class InFlight(Record):
    """Blocks that threads inside an allocator were working on. They count as reachable."""

    blocks: int
    """Number of these blocks."""
    bytes: int
    """Usable bytes of these blocks."""
    threads: Sequence[StoppedThread]
    """The threads that are inside an allocator."""
    half_changed: Sequence[HalfChanged]
    """The places in the heap that these threads were changing."""
    reads: int
    """Number of times that a live process was read. It is more than 1 if data was inconsistent."""


@dataclass(frozen=True, eq=False, repr=False)
class UnreadPart(Record):
    """Memory of one owner whose content findleaks does not read."""

    of: Optional[str]
    """The owner of the memory; None if unknown."""
    bytes: int
    """Bytes of this memory."""


@dataclass(frozen=True, eq=False, repr=False)
class UnreadMemory(Record):
    """Writable memory whose content findleaks does not read. Leaks in this memory are not
    reported."""

    bytes: int
    """Bytes that are not read."""
    of: int
    """Bytes of all writable memory."""
    percent: int
    """`bytes` as a percentage of `of`."""
    resident: bool
    """Whether the figures are resident bytes. If not, they are bytes of pages that are not all
    zeros."""
    parts: Sequence[UnreadPart]
    """The unread memory by owner, the largest first."""
    in_malloc_blocks: Optional[UnreadPart]
    """Blocks in use that contain a runtime's objects, which findleaks does not read."""


@dataclass(frozen=True, eq=False, repr=False)
class KernelReferences(Record):
    """Pointers that the kernel stores for the process."""

    references: Optional[int]
    """Number of words in the kernel that point into blocks; None if unknown."""
    unreadable: Sequence[Unreadable]
    """Kernel objects whose pointers cannot be read."""
    epoll_waiters: int
    """Number of threads that wait in epoll_wait, if the data registered with epoll is unknown."""
    uses: Sequence[KernelUse]
    """Other kernel objects that may contain pointers. They are listed if the kernel objects of the
    process are unknown and blocks are leaked."""
    doubtful: Amount
    """Number and bytes of the leaked blocks, if one of the above may refer to them."""
    signal_stacks: Amount
    """Blocks that look like alternate signal stacks, whose addresses only the kernel stores."""
    possible_signal_stacks: Amount
    """Leaked blocks that may be alternate signal stacks, because they contain only zeros and the
    process calls sigaltstack. At most one of these blocks per thread is an alternate signal
    stack."""
