"""The results of `blocks` and `whatis`: blocks, and descriptions of addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Optional, cast

from findleaks.results.amounts import Kind, State, TypeSource
from findleaks.results.record import ADDRESS, INTERNAL, OPTIONAL, Record, with_key
from findleaks.results.sites import Site
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class Block(Record):
    """A block: memory that an allocator's function returned. Its size is the usable size."""

    address: int = field(metadata=ADDRESS)
    """The address of the block."""
    size: int
    """Usable bytes."""
    state: State
    """Whether the block is in use, in a thread cache, or free."""
    kind: Optional[Kind]
    """How a block in use is referenced; None if the block is not in use."""
    allocator: str
    """The allocator's name."""
    arena: str
    """The allocator's arena; "" if its heap has no arenas."""
    site: Optional[int]
    """The number of the allocation site; None if it was not recorded."""
    type: Optional[str]
    """The type of the block's content; None if unknown."""
    hint: Optional[str]
    """Readable content at the start of the block, if the block is in use and has no type."""
    type_from: Optional[TypeSource] = field(default=None, metadata=OPTIONAL)
    """How the type is known; None without a type."""
    type_sure: Optional[bool] = field(default=None, metadata=OPTIONAL)
    """Whether the type is certain; None without a type."""
    phrase: str = field(default="", metadata=INTERNAL)
    """The block in words: "definite 48-byte block, osgeo::Ellipsoid"."""

    @property
    def members(self) -> Sequence[Member]:
        """The members with their values, if the type is known from debug information; else empty.
        They are read at the first use, which raises TargetError if the process was closed."""
        read: Optional[Callable[[], Sequence[Member]]] = vars(self).get("_read_members")
        if "_members" not in vars(self):
            object.__setattr__(self, "_members", [] if read is None else read())
        return cast("Sequence[Member]", vars(self)["_members"])

    def read_members_by(self, read: Callable[[], Sequence[Member]]) -> Block:
        """Set the function that reads `members`; return the block itself."""
        object.__setattr__(self, "_read_members", read)
        return self


@dataclass(frozen=True, eq=False, repr=False)
class Member(Record):
    """A member of a block whose type is known from debug information."""

    offset: int
    """Offset of the member in bytes from the start of the block."""
    name: str
    """The member, as an expression: "link.next", "[3].name"."""
    type: str
    """The type of the member."""
    value: Optional[str]
    """The value of the member as text; None if it cannot be shown."""
    target: Optional[int] = field(default=None, metadata={**ADDRESS, **OPTIONAL})
    """The start of the block that the member refers to."""


@dataclass(frozen=True, eq=False, repr=False)
class SourceFunction(Record):
    """A function of the source code."""

    function: Optional[str]
    """The name of the function."""
    file: Optional[str]
    """The source file."""
    line: Optional[int]
    """The line in the source file, from 1."""


@dataclass(frozen=True, eq=False, repr=False)
class SourceLine(Record):
    """The source of an instruction."""

    file: Optional[str]
    """The source file."""
    line: Optional[int]
    """The line in the source file, from 1."""
    inlined: Sequence[SourceFunction]
    """Functions that are inlined at the instruction, innermost first."""


@dataclass(frozen=True, eq=False, repr=False)
class MappedRegion(Record):
    """A mapping of the process."""

    start: int = field(metadata=ADDRESS)
    """The first address of the mapping."""
    end: int = field(metadata=ADDRESS)
    """The first address after the mapping."""
    permissions: str
    """The access rights, as in /proc/PID/maps: "rw-"."""
    name: Optional[str]
    """The mapped file, or the kernel's name for the mapping."""


@dataclass(frozen=True, eq=False, repr=False)
class Word(Record):
    """A row that describes a word of a block or variable, adjacent equal words, or words of text.
    For a Java object, the row describes a field."""

    offset: int
    """Offset in bytes from the start of the block, variable or object."""
    bytes: int
    """Number of bytes that the row describes: one word, or all words of the row."""
    value: Optional[int] = field(metadata=ADDRESS)
    """The value of the word; None for text."""
    member: Optional[str]
    """The name of the member at this offset; None if unknown."""
    sort: Literal["pointer", "text", "zeros", "number"] = field(metadata=with_key("is"))
    """What the row contains."""
    text: Optional[str]
    """What a pointer refers to, the text, or the number as a person writes it."""


@dataclass(frozen=True, eq=False, repr=False)
class ManagedObject(Record):
    """An object in the heap of a managed runtime that is not a block of an allocator (Go, the
    JVM)."""

    address: int = field(metadata=ADDRESS)
    """The address of the object."""
    size: int
    """The number of bytes that the object occupies in the heap."""
    type: str
    """The type of the object."""
    runtime: str
    """The runtime's name: "Go"."""
    live: Optional[bool]
    """Whether a root of the runtime reaches the object. False: the object is garbage. None:
    unknown."""


@dataclass(frozen=True, eq=False, repr=False)
class AddressInfo(Record):
    """A description of one address."""

    address: int = field(metadata=ADDRESS)
    """The address that the user passed."""
    sort: Literal["block", "stack", "module", "allocator", "mapping", "unmapped"] = field(metadata=with_key("is"))
    """The kind of memory that contains the address."""
    text: str
    """A description of the address as text."""
    root: bool
    """Whether the memory at the address is a root."""
    block: Optional[Block] = field(default=None, metadata=OPTIONAL)
    """The block that contains the address."""
    object: Optional[ManagedObject] = field(default=None, metadata=OPTIONAL)
    """The object of a managed runtime that contains the address, if no block contains the
    address."""
    offset: Optional[int] = field(default=None, metadata=OPTIONAL)
    """Offset of the address in bytes from the start of the block or object."""
    member: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The member that contains the address, as an expression: "server.jobs.next"."""
    members: Optional[Sequence[Member]] = field(default=None, metadata=OPTIONAL)
    """The members of the block, if its type is known from debug information."""
    thread: Optional[int] = field(default=None, metadata=OPTIONAL)
    """The kernel's number (tid) of the thread whose stack contains the address."""
    symbol: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The symbol that contains the address, with the offset: "g_agent+0x38"."""
    source: Optional[SourceLine] = field(default=None, metadata=OPTIONAL)
    """The source of the instruction at the address."""
    region: Optional[MappedRegion] = field(default=None, metadata=OPTIONAL)
    """The mapping that contains the address."""
    sites: Optional[Sequence[Site]] = field(default=None, metadata=OPTIONAL)
    """The recorded call stacks that allocated or freed the block; None if they were not
    requested."""
    contents: Optional[str] = field(default=None, metadata=OPTIONAL)
    """What a block of unknown type contains: "zlib inflate state", "→ inflate, libz.so.1"."""
    words: Optional[Sequence[Word]] = field(default=None, metadata=OPTIONAL)
    """Words of the block or variable, or fields of the object; None if they were not requested, or
    if the address is in other memory."""


@dataclass(frozen=True, eq=False, repr=False)
class Addresses(Record):
    """The result of `whatis`."""

    answers: Sequence[AddressInfo]
    """A description for each address, in the order of the arguments."""
