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
    """Their usable bytes."""

    @classmethod
    def of(cls, counted: Counted) -> RetainedAmount:
        """The figures of anything that has them."""
        return cls(counted.blocks, counted.bytes)


@dataclass(frozen=True, eq=False, repr=False)
class RetainedFields(Record):
    """Fields without a row of their own."""

    fields: int
    """Number of fields."""
    retained_blocks: int
    """Number of blocks that they retain."""
    retained_bytes: int
    """Usable bytes of these."""


@dataclass(frozen=True, eq=False, repr=False)
class BlocksOfSize(Record):
    """Blocks of one size."""

    size: int
    """Usable bytes of each."""
    blocks: int
    """Number of blocks."""


@dataclass(frozen=True, eq=False, repr=False)
class ContainerBlocks(Record):
    """Blocks of one size that a container holds beside its nodes and tables."""

    size: int
    """Usable bytes of each."""
    blocks: int
    """Number of blocks."""
    strings: bool
    """Whether those examined are text."""


@dataclass(frozen=True, eq=False, repr=False)
class Container(Record):
    """A container, recognised by its structure or its declared type."""

    what: str
    """Its kind: "std::map or set"."""
    length: Optional[int]
    """Elements, counted by walking through it."""
    unit: str
    """The name of an element, in the plural: "nodes"."""
    recorded_length: Optional[int]
    """Elements by its own header."""
    nodes: int
    """Blocks of nodes that the owner retains."""
    node_sizes: Optional[Sequence[int]]
    """Usable bytes of the smallest and of the largest node."""
    tables: Sequence[int] = field(metadata=ADDRESS)
    """Addresses of its other blocks: buckets, an array."""
    others: Sequence[ContainerBlocks]
    """Blocks that it holds beside nodes and tables, by size."""
    problem: Optional[str]
    """The damage that was found, with its address."""


@dataclass(frozen=True, eq=False, repr=False)
class Alike(Record):
    """Several fields in one row."""

    fields: int
    """Number of fields."""
    least_blocks: Optional[int]
    """The fewest blocks that one of them retains."""
    most_blocks: Optional[int]
    """The most blocks that one of them retains."""


@dataclass(frozen=True, eq=False, repr=False)
class Retained(Record):
    """A root, a field, or a block, with what it retains: the blocks that would become unreachable
    if it alone went."""

    name: str
    """Its name: "g_sessions", "Session.buffer"."""
    retained_blocks: int
    """Number of blocks that it retains."""
    retained_bytes: int
    """Usable bytes of these."""
    what: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The referenced block or container, in words."""
    offset: Optional[int] = field(default=None, metadata=OPTIONAL)
    """Bytes from the start of the owner to the field."""
    address: Optional[int] = field(default=None, metadata=ADDRESS)
    """The block that it is about, or the memory of a root."""
    sizes: Optional[Sequence[BlocksOfSize]] = field(default=None, metadata=OPTIONAL)
    """The blocks that a field retains, by size."""
    alike: Optional[Alike] = field(default=None, metadata=OPTIONAL)
    """Set if the row represents several fields."""
    container: Optional[Container] = None
    """The container that it is, or refers to."""
    children: Sequence[Retained] = ()
    """Its fields, largest first."""
    more: RetainedFields = RetainedFields(0, 0, 0)
    """Fields that are not among `children`."""
    shared: RetainedAmount = RetainedAmount(0, 0)
    """Blocks that are reached through several fields."""
    shared_children: Sequence[Retained] = field(default=(), metadata=OPTIONAL)
    """The largest of the blocks that are reached through several fields, with what they retain."""
    holders: Sequence[str] = field(default=(), metadata=OPTIONAL)
    """Roots that reach a shared block."""


@dataclass(frozen=True, eq=False, repr=False)
class ManagedObjects(Record):
    """Objects of a managed heap that a variable retains."""

    runtime: str
    """The runtime: "Ruby"."""
    count: int
    """Number of objects."""
    bytes: int
    """Bytes of these in the managed heap."""


@dataclass(frozen=True, eq=False, repr=False)
class RetainedRoot(Retained):
    """A root with what it retains."""

    sort: Literal["managed-variable", "variable", "thread-local", "library", "mapping", "kernel", "stack", "registers"] = "variable"
    """The kind of root."""
    thread: Optional[int] = None
    """The kernel's number of its thread."""
    objects: Optional[ManagedObjects] = field(default=None, metadata=OPTIONAL)
    """Objects that a variable of a managed language retains in the managed heap."""


@dataclass(frozen=True, eq=False, repr=False)
class RetainedBlock(Retained):
    """A block with what it retains."""

    holder: Optional[str] = None
    """The root or block that retains this block."""


@dataclass(frozen=True, eq=False, repr=False)
class RetainedLeak(Retained):
    """A leak head with what it retains."""

    kind: Kind = "definite"
    """"definite" or "possible"."""


@dataclass(frozen=True, eq=False, repr=False)
class SharedSize(Record):
    """Shared blocks of one size that retain others."""

    size: int
    """Usable bytes of each."""
    blocks: int
    """Number of blocks."""
    retained_blocks: int
    """Number of blocks that these retain."""
    retained_bytes: int
    """Usable bytes of these."""


@dataclass(frozen=True, eq=False, repr=False)
class Shared(Record):
    """Blocks that several roots reach: no single one retains them."""

    retained_blocks: int
    """Number of blocks."""
    retained_bytes: int
    """Their usable bytes."""
    sizes: Sequence[SharedSize]
    """By size, largest first."""
    children: Sequence[Retained]
    """The largest of them."""


@dataclass(frozen=True, eq=False, repr=False)
class Roots(Record):
    """The result of `roots`."""

    total: Amount
    """All blocks that roots reach."""
    definite: Optional[Amount] = field(default=None, metadata=OPTIONAL)
    """With `roots --lost`: memory that definitely lost leak heads retain."""
    possible: Optional[Amount] = field(default=None, metadata=OPTIONAL)
    """With `roots --lost`: memory that possibly lost leak heads retain."""
    roots: Sequence[Union[RetainedRoot, RetainedBlock, RetainedLeak]] = ()
    """The roots, the blocks or the leak heads, largest first."""
    more: Optional[RetainedAmount] = field(default=None, metadata=OPTIONAL)
    """Memory of the roots that are not in `roots`."""
    shared: Optional[Shared] = field(default=None, metadata=OPTIONAL)
    """Memory that several roots reach."""
