"""The result of `runtime`: objects and memory of managed runtimes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

from findleaks.results.amounts import Amount
from findleaks.results.record import ADDRESS, OPTIONAL, Record
from findleaks.results.stacks import Deadlock
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class RuntimePart(Record):
    """A part of the memory that a runtime owns, such as its heap, code or metadata."""

    name: str
    """The name of the part."""
    bytes: int
    """Bytes of the part, resident or not."""
    used: Optional[int]
    """Bytes of live objects in the part; None if unknown."""
    inside: bool
    """Whether the part is inside an allocator's blocks, so that the allocator's figures include
    it."""
    freed: bool
    """Whether the runtime has freed the memory and has not returned it to the kernel."""
    detail: Optional[str]
    """More details as text."""
    ranges: Sequence[Sequence[int]] = field(metadata=ADDRESS)
    """The ranges of the part: for each, the first address, and the first address after the
    range."""
    parts: Sequence[RuntimePart]
    """The parts that this part consists of."""


@dataclass(frozen=True, eq=False, repr=False)
class ObjectType(Record):
    """Live objects of one type."""

    name: str
    """The name of the type."""
    objects: int
    """Number of objects."""
    bytes: int
    """Bytes that these objects occupy in the managed heap."""
    native_blocks: Optional[int]
    """Number of blocks in use that are reachable only from these objects; None if unknown."""
    native_bytes: Optional[int]
    """Usable bytes of these blocks."""
    reported_bytes: Optional[int]
    """Native bytes that the objects reported to the garbage collector; None if unknown."""
    leaked: Optional[Amount]
    """Number and bytes of the objects that no root reaches; None if unknown."""
    retained_bytes: Optional[int]
    """Bytes in the managed heap that these objects retain, including the objects; for CPython with
    native memory. None if unknown."""
    own: Mapping[str, int]
    """Further counts of this runtime, with the runtime's names."""


@dataclass(frozen=True, eq=False, repr=False)
class RetainingObject(Record):
    """A live object that retains much of the managed heap."""

    address: int = field(metadata=ADDRESS)
    """The address of the object."""
    type: str
    """The type of the object."""
    retained_objects: int
    """Number of objects that the object retains, including the object."""
    retained_bytes: int
    """Bytes of the retained objects."""
    root: str
    """A description of the root at which a shortest path to the object begins."""
    path: str
    """The types and fields on this path."""


@dataclass(frozen=True, eq=False, repr=False)
class RuntimeSite(Record):
    """A place in the program that requested memory, as the runtime recorded it."""

    frames: Sequence[str]
    """The call stack as functions or "file:line", innermost frame first."""
    blocks: int
    """Number of blocks."""
    bytes: int
    """Bytes of these blocks."""
    interval: Optional[int] = field(default=None, metadata=OPTIONAL)
    """The mean number of bytes from one sample to the next, if the figures are estimates."""


@dataclass(frozen=True, eq=False, repr=False)
class Runtime(Record):
    """A managed runtime of the process."""

    name: str
    """The name of the runtime: "CPython"."""
    version: Optional[str]
    """The version of the runtime; None if unknown."""
    where: Optional[str]
    """The file that contains the runtime."""
    counters: Mapping[str, int]
    """The runtime's own counters, with the runtime's names."""
    parts: Sequence[RuntimePart]
    """The memory that the runtime owns."""
    native: Optional[Amount]
    """Blocks in use that are reachable only from managed objects; None if unknown."""
    types: Sequence[ObjectType]
    """Live objects by type. The order is by bytes of the objects and of what they retain."""
    sites: Sequence[RuntimeSite]
    """Places in the program that requested memory, those with the most bytes first."""
    retainers: Sequence[RetainingObject] = field(default=(), metadata=OPTIONAL)
    """The objects that retain the most memory. None of them retains another one of them."""
    note: Optional[str] = field(default=None, metadata=OPTIONAL)
    """A limitation of the figures in `types`; None if there is none."""


@dataclass(frozen=True, eq=False, repr=False)
class Runtimes(Record):
    """The result of `runtime`."""

    runtimes: Sequence[Runtime]
    """All managed runtimes of the process."""
    deadlocks: Sequence[Deadlock] = field(default=(), metadata=OPTIONAL)
    """Cycles of threads: each thread waits for a lock that the next thread holds. See `stacks`."""
