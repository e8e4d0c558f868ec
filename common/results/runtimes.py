"""The result of `runtime`: objects and memory of managed runtimes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

from findleaks.results.amounts import Amount
from findleaks.results.record import ADDRESS, Record
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class RuntimePart(Record):
    """Memory that a runtime owns: its heap, code, metadata."""

    name: str
    """The name of the part."""
    bytes: int
    """Bytes, resident or not."""
    used: Optional[int]
    """Bytes of live objects; None: not known."""
    inside: bool
    """Whether it is inside an allocator's blocks, and included in the allocator's figures."""
    freed: bool
    """Whether the runtime has freed it and not returned it to the kernel."""
    detail: Optional[str]
    """More details in words."""
    ranges: Sequence[Sequence[int]] = field(metadata=ADDRESS)
    """Start and end addresses."""
    parts: Sequence[RuntimePart]
    """Its components."""


@dataclass(frozen=True, eq=False, repr=False)
class ObjectType(Record):
    """Live objects of one type."""

    name: str
    """The type."""
    objects: int
    """Number of objects."""
    bytes: int
    """Bytes of these in the managed heap."""
    native_blocks: Optional[int]
    """Blocks in use reachable only from these objects; None: not known."""
    native_bytes: Optional[int]
    """Their usable bytes."""
    reported_bytes: Optional[int]
    """Native bytes that the objects reported to the garbage collector; None: not known."""
    leaked: Optional[Amount]
    """Objects that no root reaches; None: not known."""
    own: Mapping[str, int]
    """Further counts of this runtime, by its names."""


@dataclass(frozen=True, eq=False, repr=False)
class RuntimeSite(Record):
    """A place in the program that requested memory, as the runtime recorded it."""

    frames: Sequence[str]
    """The call stack, innermost frame first: functions or "file:line"."""
    blocks: int
    """Number of blocks."""
    bytes: int
    """Their bytes."""


@dataclass(frozen=True, eq=False, repr=False)
class Runtime(Record):
    """A managed runtime of the process."""

    name: str
    """Its name: "CPython"."""
    version: Optional[str]
    """Its version; None: not known."""
    where: Optional[str]
    """The file that contains the runtime."""
    counters: Mapping[str, int]
    """Its own counters, by its names."""
    parts: Sequence[RuntimePart]
    """The memory that it owns."""
    native: Optional[Amount]
    """Blocks in use reachable only from objects; None: not known."""
    types: Sequence[ObjectType]
    """Live objects by type, in order of bytes of the objects and of what they retain."""
    sites: Sequence[RuntimeSite]
    """Places that requested memory, most bytes first."""


@dataclass(frozen=True, eq=False, repr=False)
class Runtimes(Record):
    """The result of `runtime`."""

    runtimes: Sequence[Runtime]
    """Every managed runtime of the process."""
