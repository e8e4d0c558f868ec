"""The result of `verify`: damaged places in heaps, and what was written there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Optional

from findleaks.results.addresses import AddressInfo, Block
from findleaks.results.notes import InFlight
from findleaks.results.record import ADDRESS, INTERNAL, OPTIONAL, Record, with_key
from findleaks.value_classes import dataclass, field

Content = Literal["text", "pattern", "zeros", "pointer", "link", "number", "bytes"]
"""Forms of bytes. link: a safe-linked pointer (glibc). bytes: none of the other forms."""


@dataclass(frozen=True, eq=False, repr=False)
class DamagedBytes(Record):
    """The range of wrong bytes."""

    address: int = field(metadata=ADDRESS)
    """The address of the first wrong byte."""
    bytes: int
    """Number of wrong bytes."""


@dataclass(frozen=True, eq=False, repr=False)
class WrittenBytes(Record):
    """The content of a damaged place: a run of bytes, which may be longer than the place."""

    bytes: int
    """Length of the run."""
    address: int = field(metadata=ADDRESS)
    """The address of the first byte of the run."""
    sort: Content = field(metadata=with_key("is"))
    """The form of the bytes. The field with the same name contains their value."""
    description: str
    """A description of the bytes."""
    text: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The bytes as text."""
    pattern: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The repeated byte or word, or a known marker, as a hexadecimal number."""
    pointer: Optional[AddressInfo] = field(default=None, metadata=OPTIONAL)
    """What the pointer points to."""
    link: Optional[AddressInfo] = field(default=None, metadata=OPTIONAL)
    """What the safe-linked pointer points to."""
    number: Optional[float] = field(default=None, metadata=OPTIONAL)
    """The bytes as a number."""
    content: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The bytes as hexadecimal digits, if they have no other form."""


@dataclass(frozen=True, eq=False, repr=False)
class Neighbour(Block):
    """A block beside or around the damaged place."""

    content: Optional[str] = None
    """A summary of the block's content."""
    end: int = field(default=0, metadata=INTERNAL)
    """The end of the block's memory, including the words that the allocator writes when it frees
    the block."""


@dataclass(frozen=True, eq=False, repr=False)
class Neighbours(Record):
    """The blocks around a damaged place, all in the same heap."""

    before: Optional[Neighbour]
    """The block that ends before the place."""
    at: Optional[Neighbour]
    """The block that contains the place."""
    after: Optional[Neighbour]
    """The block that begins after the place."""


@dataclass(frozen=True, eq=False, repr=False)
class Damage(Record):
    """A problem of a heap: either damage, or memory that could not be read."""

    allocator: str
    """The name of the allocator; "" if unknown."""
    address: int = field(metadata=ADDRESS)
    """The address of the first wrong byte. If it is unknown, the place of the problem."""
    what: str
    """A description of what is wrong."""
    corrupt: bool
    """Whether the heap is damaged. If not, something could not be read."""
    damaged: Optional[DamagedBytes]
    """The wrong bytes; None if unknown."""
    expected: Optional[int] = field(metadata=ADDRESS)
    """The expected word as a hexadecimal number; None if unknown."""
    neighbours: Neighbours
    """The blocks around the place."""
    written: Optional[WrittenBytes]
    """The bytes that were written there; None if they cannot be read."""
    past_end: Optional[int]
    """Distance in bytes from the end of the preceding block to the first wrong byte."""
    overrun: int
    """The smallest number of bytes that were written past the end of the preceding block; 0 if the
    write did not begin in that block."""
    cause: Optional[str]
    """A description of the most likely cause."""
    part_of: Optional[int] = field(metadata=ADDRESS)
    """The address of an earlier problem. Its run of bytes extends to this problem."""


@dataclass(frozen=True, eq=False, repr=False)
class HeapCheck(Record):
    """The checks of one allocator."""

    name: str
    """The name of the allocator."""
    version: str
    """The version of the allocator; "" if unknown."""
    where: str
    """The file that contains the allocator."""
    ordinal: int
    """The number of the allocator among those with the same name, from 1."""
    sound: bool
    """Whether no problem was found."""
    blocks: int
    """Number of the allocator's blocks, both in use and free."""
    checked: Mapping[str, int]
    """Numbers of checked structures, by the names of the structures."""
    problems: int
    """Number of damaged places."""
    limits: int
    """Number of places that could not be read."""
    not_listed: int
    """Number of problems that are counted but not listed."""


@dataclass(frozen=True, eq=False, repr=False)
class ThreadInside(Record):
    """A thread that was stopped inside an allocator."""

    thread: int
    """The kernel's number (tid) of the thread."""
    where: str
    """The name of the file, and the function: "libc.so.6 (_int_free)"."""


@dataclass(frozen=True, eq=False, repr=False)
class Verification(Record):
    """The result of `verify`."""

    sound: Optional[bool]
    """Whether no heap is damaged; None if nothing could be checked."""
    complete: bool
    """Whether everything could be read."""
    allocators: Sequence[HeapCheck]
    """The allocators that were checked."""
    problems: Sequence[Damage]
    """The problems of each allocator, ascending by address, then what could not be read."""
    inside: Sequence[ThreadInside]
    """Threads that were stopped inside a damaged allocator. Data that these threads were changing
    may look wrong."""
    in_flight: InFlight
    """Blocks that threads inside an allocator were working on."""
