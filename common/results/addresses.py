"""The results of `blocks` and `whatis`: blocks, and descriptions of addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Optional

from findleaks.results.amounts import Kind, State, TypeSource
from findleaks.results.record import ADDRESS, INTERNAL, OPTIONAL, Record, named
from findleaks.results.sites import Site
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class Block(Record):
    """A block: what an allocator's function returned, with the usable size."""

    address: int = field(metadata=ADDRESS)
    """Where it begins."""
    size: int
    """Usable bytes."""
    state: State
    """Whether it is in use, in a thread cache, or free."""
    kind: Optional[Kind]
    """How a block in use is referenced; None: it is not in use."""
    allocator: str
    """The allocator's name."""
    arena: str
    """The allocator's arena; "" if its heap has no arenas."""
    site: Optional[int]
    """The number of the allocation site, if it was recorded."""
    type: Optional[str]
    """The type of its content, if it is known."""
    hint: Optional[str]
    """Readable content, if the block is in use and has no type."""
    type_from: Optional[TypeSource] = field(default=None, metadata=OPTIONAL)
    """How the type is known; None without a type."""
    type_sure: Optional[bool] = field(default=None, metadata=OPTIONAL)
    """Whether the type is known without doubt; None without a type."""
    phrase: str = field(default="", metadata=INTERNAL)
    """The block in words: "definite 48-byte block, osgeo::Ellipsoid"."""


@dataclass(frozen=True, eq=False, repr=False)
class Member(Record):
    """A member of a block whose type is known from debug information."""

    offset: int
    """Bytes from the block's start."""
    name: str
    """The member, as an expression: "link.next", "[3].name"."""
    type: str
    """Its type."""
    value: Optional[str]
    """Its value in words; None if it cannot be shown."""
    target: Optional[int] = field(default=None, metadata={**ADDRESS, **OPTIONAL})
    """The start of the block that it refers to."""


@dataclass(frozen=True, eq=False, repr=False)
class SourceFunction(Record):
    """A function of the source code."""

    function: Optional[str]
    """Its name."""
    file: Optional[str]
    """The source file."""
    line: Optional[int]
    """The line in it, from 1."""


@dataclass(frozen=True, eq=False, repr=False)
class SourceLine(Record):
    """The source of an instruction."""

    file: Optional[str]
    """The source file."""
    line: Optional[int]
    """The line in it, from 1."""
    inlined: Sequence[SourceFunction]
    """Functions inlined there, innermost first."""


@dataclass(frozen=True, eq=False, repr=False)
class MappedRegion(Record):
    """A mapping of the process."""

    start: int = field(metadata=ADDRESS)
    """Its first address."""
    end: int = field(metadata=ADDRESS)
    """The first address after it."""
    permissions: str
    """As in /proc/PID/maps: "rw-"."""
    name: Optional[str]
    """The file, or the kernel's name for it."""


@dataclass(frozen=True, eq=False, repr=False)
class Word(Record):
    """A word of a block or variable, or adjacent equal words, or words of text."""

    offset: int
    """Bytes from the start of the block or variable."""
    bytes: int
    """Bytes of the row: those of one word, or of all its words."""
    value: Optional[int] = field(metadata=ADDRESS)
    """The value of the word; None for text."""
    member: Optional[str]
    """The name of the member at this offset, if it is known."""
    sort: Literal["pointer", "text", "zeros", "number"] = field(metadata=named("is"))
    """What the row contains."""
    text: Optional[str]
    """What a pointer refers to, the text, or the number in words."""


@dataclass(frozen=True, eq=False, repr=False)
class AddressInfo(Record):
    """A description of one address."""

    address: int = field(metadata=ADDRESS)
    """The address that the user passed."""
    sort: Literal["block", "stack", "module", "allocator", "mapping", "unmapped"] = field(metadata=named("is"))
    """The kind of memory that contains the address."""
    text: str
    """A description in words."""
    root: bool
    """Whether the memory is a root."""
    block: Optional[Block] = field(default=None, metadata=OPTIONAL)
    """The block that contains the address."""
    offset: Optional[int] = field(default=None, metadata=OPTIONAL)
    """Bytes from the block's start."""
    member: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The member that contains the address, as an expression: "server.jobs.next"."""
    members: Optional[Sequence[Member]] = field(default=None, metadata=OPTIONAL)
    """The members of the block, if its type is known from debug information."""
    thread: Optional[int] = field(default=None, metadata=OPTIONAL)
    """The kernel's number of the thread whose stack contains the address."""
    symbol: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The symbol that contains the address, with the offset: "g_agent+0x38"."""
    source: Optional[SourceLine] = field(default=None, metadata=OPTIONAL)
    """The source of an instruction."""
    region: Optional[MappedRegion] = field(default=None, metadata=OPTIONAL)
    """The mapping that contains the address."""
    sites: Optional[Sequence[Site]] = field(default=None, metadata=OPTIONAL)
    """The recorded call stacks that allocated or freed the block; None: not asked for."""
    contents: Optional[str] = field(default=None, metadata=OPTIONAL)
    """What a block of unknown type contains: "zlib inflate state", "→ inflate, libz.so.1"."""
    words: Optional[Sequence[Word]] = field(default=None, metadata=OPTIONAL)
    """Words of the block or variable; None: not asked for, or other memory."""


@dataclass(frozen=True, eq=False, repr=False)
class Addresses(Record):
    """The result of `whatis`."""

    answers: Sequence[AddressInfo]
    """One for each address, in the order of the arguments."""
