"""The result of `verify`: damaged places of heaps, and what was written there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Optional

from findleaks.results.addresses import AddressInfo, Block
from findleaks.results.notes import InFlight
from findleaks.results.record import ADDRESS, INTERNAL, OPTIONAL, Record, named
from findleaks.value_classes import dataclass, field

Content = Literal["text", "pattern", "zeros", "pointer", "link", "number", "bytes"]
"""What bytes look like. link: a pointer as glibc mangles it; bytes: none of the others."""


@dataclass(frozen=True, eq=False, repr=False)
class DamagedBytes(Record):
    """The wrong bytes of a problem."""

    address: int = field(metadata=ADDRESS)
    """Where they begin."""
    bytes: int
    """Number of them."""


@dataclass(frozen=True, eq=False, repr=False)
class WrittenBytes(Record):
    """What a damaged place holds: a run of bytes, which may reach beyond the place."""

    bytes: int
    """Length of the run."""
    address: int = field(metadata=ADDRESS)
    """Where the run begins."""
    sort: Content = field(metadata=named("is"))
    """What the bytes look like; the field of this name has their value."""
    description: str
    """The same in words."""
    text: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The text."""
    pattern: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The byte or the word that is repeated or known as a mark, as a hexadecimal number."""
    pointer: Optional[AddressInfo] = field(default=None, metadata=OPTIONAL)
    """What the pointer refers to."""
    link: Optional[AddressInfo] = field(default=None, metadata=OPTIONAL)
    """What the mangled pointer refers to."""
    number: Optional[float] = field(default=None, metadata=OPTIONAL)
    """The number."""
    content: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The bytes as hexadecimal digits, if they look like nothing else."""


@dataclass(frozen=True, eq=False, repr=False)
class Neighbour(Block):
    """A block beside or around the damage."""

    content: Optional[str] = None
    """A summary of what it holds."""
    end: int = field(default=0, metadata=INTERNAL)
    """The end of its memory, with what the allocator took of it when it was freed."""


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
    """The allocator's name; "" if the problem is not known to be of one."""
    address: int = field(metadata=ADDRESS)
    """The first wrong byte; the place of the problem if that byte is not known."""
    what: str
    """What is wrong, in words."""
    corrupt: bool
    """Whether the heap is damaged; else something could not be read."""
    damaged: Optional[DamagedBytes]
    """The wrong bytes, if they are known."""
    expected: Optional[int] = field(metadata=ADDRESS)
    """The word that should be there, if it is known, as a hexadecimal number."""
    neighbours: Neighbours
    """The blocks around the place."""
    written: Optional[WrittenBytes]
    """What was written there; None: it cannot be read."""
    past_end: Optional[int]
    """Bytes from the end of the block before to the first wrong byte."""
    overrun: int
    """The least number of bytes written past that end; 0: the run does not begin in that block."""
    cause: Optional[str]
    """The most likely cause, in words."""
    part_of: Optional[int] = field(metadata=ADDRESS)
    """The address of an earlier problem whose run of bytes reaches this one."""


@dataclass(frozen=True, eq=False, repr=False)
class HeapCheck(Record):
    """What was checked of one allocator."""

    name: str
    """Its name."""
    version: str
    """Its version; "" if it is not known."""
    where: str
    """The file that it is part of."""
    ordinal: int
    """Its number among allocators of this name, from 1."""
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
    """Number of problems beyond those that are explained."""


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
    """The problems, those of each allocator by address; limits of what could be read last."""
    inside: Sequence[ThreadInside]
    """Threads that were stopped inside a damaged allocator. What they were changing may look
    wrong."""
    in_flight: InFlight
    """Blocks that threads inside an allocator work on."""
