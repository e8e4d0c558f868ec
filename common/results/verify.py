"""The result of `verify`: damaged places of heaps, and what was written there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Optional

from findleaks.results.addresses import AddressInfo, Block
from findleaks.results.notes import InFlight
from findleaks.results.record import ADDRESS, INTERNAL, OPTIONAL, Record, named
from findleaks.value_classes import dataclass, field

Content = Literal["text", "pattern", "zeros", "pointer", "link", "number", "bytes"]
"""Forms of bytes. link: a pointer mangled by glibc; bytes: none of the other forms."""


@dataclass(frozen=True, eq=False, repr=False)
class DamagedBytes(Record):
    """The wrong bytes of a problem."""

    address: int = field(metadata=ADDRESS)
    """Where they begin."""
    bytes: int
    """Number of them."""


@dataclass(frozen=True, eq=False, repr=False)
class WrittenBytes(Record):
    """The content of a damaged place: a run of bytes, which may extend beyond the place."""

    bytes: int
    """Length of the run."""
    address: int = field(metadata=ADDRESS)
    """Where the run begins."""
    sort: Content = field(metadata=named("is"))
    """The form of the bytes. The field of this name contains their value."""
    description: str
    """The same in words."""
    text: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The text."""
    pattern: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The repeated byte or word, or a known marker, as a hexadecimal number."""
    pointer: Optional[AddressInfo] = field(default=None, metadata=OPTIONAL)
    """What the pointer refers to."""
    link: Optional[AddressInfo] = field(default=None, metadata=OPTIONAL)
    """What the mangled pointer refers to."""
    number: Optional[float] = field(default=None, metadata=OPTIONAL)
    """The number."""
    content: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The bytes as hexadecimal digits, if they have none of the other forms."""


@dataclass(frozen=True, eq=False, repr=False)
class Neighbour(Block):
    """A block beside or around the damage."""

    content: Optional[str] = None
    """A summary of what it holds."""
    end: int = field(default=0, metadata=INTERNAL)
    """The end of its memory, with the part that the allocator added when it was freed."""


@dataclass(frozen=True, eq=False, repr=False)
class Neighbours(Record):
    """The blocks around a damaged place, in the same heap."""

    before: Optional[Neighbour]
    """The block that ends before it."""
    at: Optional[Neighbour]
    """The block that it is in."""
    after: Optional[Neighbour]
    """The block that begins after it."""


@dataclass(frozen=True, eq=False, repr=False)
class Damage(Record):
    """A problem of a heap: damage, or a limit of what could be read."""

    allocator: str
    """The allocator's name; "" if it is not known."""
    address: int = field(metadata=ADDRESS)
    """The first wrong byte, or the place of the problem if that byte is not known."""
    what: str
    """What is wrong, in words."""
    corrupt: bool
    """Whether the heap is damaged. If not, something could not be read."""
    damaged: Optional[DamagedBytes]
    """The wrong bytes, if they are known."""
    expected: Optional[int] = field(metadata=ADDRESS)
    """The expected word, if it is known, as a hexadecimal number."""
    neighbours: Neighbours
    """The blocks around the place."""
    written: Optional[WrittenBytes]
    """What was written there; None: it cannot be read."""
    past_end: Optional[int]
    """Bytes from the end of the block before to the first wrong byte."""
    overrun: int
    """The smallest number of bytes written past that end; 0: the run does not begin in that
    block."""
    cause: Optional[str]
    """The most likely cause, in words."""
    part_of: Optional[int] = field(metadata=ADDRESS)
    """The address of an earlier problem whose run of bytes reaches this one."""


@dataclass(frozen=True, eq=False, repr=False)
class HeapCheck(Record):
    """The checks of one allocator."""

    name: str
    """Its name."""
    version: str
    """Its version; "" if it is not known."""
    where: str
    """The file that contains the allocator."""
    ordinal: int
    """Its number among allocators with the same name, from 1."""
    sound: bool
    """Whether no problem was found."""
    blocks: int
    """Number of its blocks, in use and free."""
    checked: Mapping[str, int]
    """Numbers of the structures that were checked, by their names."""
    problems: int
    """Number of damaged places."""
    limits: int
    """Number of places that could not be read."""
    not_listed: int
    """Number of problems that are counted but not explained."""


@dataclass(frozen=True, eq=False, repr=False)
class ThreadInside(Record):
    """A thread that was stopped inside an allocator."""

    thread: int
    """The kernel's number of the thread."""
    where: str
    """The file and the function: "libc.so.6 (_int_free)"."""


@dataclass(frozen=True, eq=False, repr=False)
class Verification(Record):
    """The result of `verify`."""

    sound: Optional[bool]
    """Whether no heap is damaged; None: nothing could be checked."""
    complete: bool
    """Whether everything could be read."""
    allocators: Sequence[HeapCheck]
    """The allocators that were checked."""
    problems: Sequence[Damage]
    """The problems of each allocator by address, then what could not be read."""
    inside: Sequence[ThreadInside]
    """Threads that were stopped inside a damaged allocator. Data that they were changing may look
    wrong."""
    in_flight: InFlight
    """Blocks that threads inside an allocator were working on."""
