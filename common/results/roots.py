"""The result of `roots`: what each root retains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Optional, Union

from findleaks.results.amounts import Amount, Counted, Kind
from findleaks.results.record import ADDRESS, OPTIONAL, Record
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class RetainedAmount(Record):
    """Blocks that would become unreachable, and their bytes."""

    retained_blocks: int
    """Number of blocks."""
    retained_bytes: int
    """Usable bytes of these blocks."""

    @classmethod
    def of(cls, counted: Counted) -> RetainedAmount:
        """Return the numbers of `counted` as a RetainedAmount."""
        return cls(counted.blocks, counted.bytes)


@dataclass(frozen=True, eq=False, repr=False)
class RetainedFields(Record):
    """Fields that have no row."""

    fields: int
    """Number of fields."""
    retained_blocks: int
    """Number of blocks that these fields retain."""
    retained_bytes: int
    """Usable bytes of the blocks that these fields retain."""


@dataclass(frozen=True, eq=False, repr=False)
class BlocksOfSize(Record):
    """Blocks of one size."""

    size: int
    """Usable bytes of each block."""
    blocks: int
    """Number of blocks."""


@dataclass(frozen=True, eq=False, repr=False)
class ContainerBlocks(Record):
    """Blocks of one size that a container retains in addition to its nodes and tables."""

    size: int
    """Usable bytes of each block."""
    blocks: int
    """Number of blocks."""
    strings: bool
    """Whether those blocks that were examined contain text."""
    type: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The type of those blocks that were examined, if it is known."""


@dataclass(frozen=True, eq=False, repr=False)
class Container(Record):
    """A container, recognised by its structure or its declared type."""

    what: str
    """The kind of container: "std::map or set"."""
    length: Optional[int]
    """Number of elements, counted by walking through the container."""
    unit: str
    """The name of the elements, in the plural: "nodes"."""
    recorded_length: Optional[int]
    """Number of elements that the container's own header states."""
    nodes: int
    """Number of blocks with nodes that the owner retains."""
    node_sizes: Optional[Sequence[int]]
    """Usable bytes of the smallest and of the largest block with a node."""
    tables: Sequence[int] = field(metadata=ADDRESS)
    """Addresses of the other blocks of the container: buckets, an array."""
    others: Sequence[ContainerBlocks]
    """Blocks that the container retains in addition to its nodes and tables, by size."""
    problem: Optional[str]
    """The damage that was found in the container, with its address."""


@dataclass(frozen=True, eq=False, repr=False)
class Alike(Record):
    """Several similar fields in one row."""

    fields: int
    """Number of fields."""
    least_blocks: Optional[int]
    """The smallest number of blocks that one of these fields retains."""
    most_blocks: Optional[int]
    """The largest number of blocks that one of these fields retains."""


@dataclass(frozen=True, eq=False, repr=False)
class Retained(Record):
    """A root, a field or a block, and what it retains. To retain means: the blocks would become
    unreachable without it."""

    name: str
    """The name of the root, field or block: "g_sessions", "Session.buffer"."""
    retained_blocks: int
    """Number of retained blocks."""
    retained_bytes: int
    """Usable bytes of the retained blocks."""
    what: Optional[str] = field(default=None, metadata=OPTIONAL)
    """A description of the referenced block or container."""
    offset: Optional[int] = field(default=None, metadata=OPTIONAL)
    """Offset in bytes of the field from the start of its owner."""
    address: Optional[int] = field(default=None, metadata=ADDRESS)
    """The address of the block, or of the root's memory."""
    sizes: Optional[Sequence[BlocksOfSize]] = field(default=None, metadata=OPTIONAL)
    """The blocks that a field retains, by size."""
    alike: Optional[Alike] = field(default=None, metadata=OPTIONAL)
    """Data about similar fields, if the row represents several of them."""
    container: Optional[Container] = None
    """The container that the owner is, or that the field refers to."""
    children: Sequence[Retained] = ()
    """The fields, the largest first."""
    more: RetainedFields = RetainedFields(0, 0, 0)
    """Fields that are not in `children`."""
    shared: RetainedAmount = RetainedAmount(0, 0)
    """Blocks that are reachable through several fields."""
    shared_children: Sequence[Retained] = field(default=(), metadata=OPTIONAL)
    """The largest blocks that are reachable through several fields, and what these blocks
    retain."""
    holders: Sequence[str] = field(default=(), metadata=OPTIONAL)
    """Roots from which a shared block is reachable."""


@dataclass(frozen=True, eq=False, repr=False)
class ManagedObjects(Record):
    """Objects of a managed heap that a variable retains."""

    runtime: str
    """The runtime: "Ruby"."""
    count: int
    """Number of objects."""
    bytes: int
    """Bytes that these objects occupy in the managed heap."""


@dataclass(frozen=True, eq=False, repr=False)
class RetainedRoot(Retained):
    """A root, and what it retains."""

    sort: Literal["managed-variable", "variable", "thread-local", "library", "mapping", "kernel", "callbacks", "stack", "registers"] = (
        "variable"
    )
    """The kind of root."""
    thread: Optional[int] = None
    """The kernel's number (tid) of the thread that the root belongs to."""
    objects: Optional[ManagedObjects] = field(default=None, metadata=OPTIONAL)
    """Objects that a variable of a managed language retains in the managed heap."""


@dataclass(frozen=True, eq=False, repr=False)
class RetainedBlock(Retained):
    """A block, and what it retains."""

    holder: Optional[str] = None
    """The root or block that retains this block."""
    kind: Optional[Kind] = field(default=None, metadata=OPTIONAL)
    """The kind of a leaked block: "definite", "indirect" or "possible". The totals of the result
    are then those of leaked blocks. None if the block is not leaked."""


@dataclass(frozen=True, eq=False, repr=False)
class RetainedLeak(Retained):
    """A leak head, and what it retains."""

    kind: Kind = "definite"
    """"definite" or "possible"."""


@dataclass(frozen=True, eq=False, repr=False)
class SharedSize(Record):
    """Shared blocks of one size that retain other blocks."""

    size: int
    """Usable bytes of each block."""
    blocks: int
    """Number of blocks."""
    retained_blocks: int
    """Number of blocks that these blocks retain."""
    retained_bytes: int
    """Usable bytes of the retained blocks."""


@dataclass(frozen=True, eq=False, repr=False)
class Shared(Record):
    """Blocks that are reachable from several roots. No single root retains them."""

    retained_blocks: int
    """Number of blocks."""
    retained_bytes: int
    """Usable bytes of these blocks."""
    sizes: Sequence[SharedSize]
    """The shared blocks by size, the largest first."""
    children: Sequence[Retained]
    """The largest shared blocks."""


@dataclass(frozen=True, eq=False, repr=False)
class HeapObjects(Record):
    """Objects of one type in a managed heap."""

    type: str
    """The name of the type: "main.Session"."""
    objects: int
    """Number of objects."""
    bytes: int
    """Bytes that these objects occupy in the managed heap."""


@dataclass(frozen=True, eq=False, repr=False)
class HeapRoot(Record):
    """A root of a managed heap, or an object in it, and what it retains there. Several roots of the
    same name are one."""

    name: str
    """The name of the root: "variable main.sessions", "static variable App.cache", "goroutines in
    main.wait (chan receive), created by main.start". For an object, its type and address."""
    sort: Literal["variable", "thread-local", "class-loader", "threads", "registers", "records", "other", "object"]
    """The kind of root. "records": records that the runtime keeps of objects, such as finalizers.
    "other": for example, the stack of a Java thread. "object": no root, but the requested
    object."""
    objects: int
    """Number of objects that it retains."""
    bytes: int
    """Bytes of these objects."""
    address: Optional[int] = field(default=None, metadata=ADDRESS)
    """The address of the variable (Go), or of the object that is the root or that the root refers
    to. If the root refers to several objects, the address of the one that retains most."""
    type: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The type of the object that the root refers to (JVM)."""
    count: Optional[int] = field(default=None, metadata=OPTIONAL)
    """Number of objects that the root refers to (JVM): values of a thread-local variable, class
    loaders."""
    threads: Optional[int] = field(default=None, metadata=OPTIONAL)
    """Number of threads that the runtime schedules itself (goroutines) and that form this root."""
    holder: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The root or the object that retains an object."""
    types: Sequence[HeapObjects] = ()
    """The retained objects by type, most bytes first. Only the roots that the text shows have
    types, unless `count` is above 1. If a root retains more than a million objects, only the first
    million are counted."""


@dataclass(frozen=True, eq=False, repr=False)
class ManagedHeap(Record):
    """What the roots of a managed heap retain in this heap."""

    runtime: str
    """The runtime: "Go"."""
    objects: int
    """Number of live objects."""
    bytes: int
    """Bytes of the live objects."""
    roots: Sequence[HeapRoot]
    """The roots that retain objects, the largest first. In a JVM, those that retain at least 1 KiB;
    the objects of a class loader include those of static variables of its classes."""
    more_roots: int = 0
    """Number of roots that are not in `roots`."""
    shared_objects: Optional[int] = field(default=None, metadata=OPTIONAL)
    """Number of objects that several roots reach, and that none of them retains alone (Go)."""
    shared_bytes: Optional[int] = field(default=None, metadata=OPTIONAL)
    """Bytes of these objects."""
    shared_types: Sequence[HeapObjects] = ()
    """These objects by type, most bytes first. Empty if single roots were requested."""


@dataclass(frozen=True, eq=False, repr=False)
class Roots(Record):
    """The result of `roots`."""

    total: Amount
    """All blocks reachable from roots."""
    definite: Optional[Amount] = field(default=None, metadata=OPTIONAL)
    """With `roots --lost`: blocks that definitely lost leak heads retain."""
    possible: Optional[Amount] = field(default=None, metadata=OPTIONAL)
    """With `roots --lost`: blocks that possibly lost leak heads retain."""
    roots: Sequence[Union[RetainedRoot, RetainedBlock, RetainedLeak]] = ()
    """The roots, the blocks or the leak heads, largest first."""
    more: Optional[RetainedAmount] = field(default=None, metadata=OPTIONAL)
    """Blocks that are retained by roots that are not in `roots`."""
    shared: Optional[Shared] = field(default=None, metadata=OPTIONAL)
    """Blocks that are reachable from several roots."""
    heaps: Sequence[ManagedHeap] = field(default=(), metadata=OPTIONAL)
    """Managed heaps whose roots have names, with what the roots retain there."""
