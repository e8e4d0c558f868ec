"""The result of `runtime`: what managed runtimes hold."""

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
    """Whether it is inside an allocator's blocks, whose figures include it."""
    freed: bool
    """Whether the runtime has freed it and not returned it to the kernel."""
    detail: Optional[str]
    """More in words."""
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
    """Blocks in use that only these objects hold; None: not known."""
    native_bytes: Optional[int]
    """Their usable bytes."""
    reported_bytes: Optional[int]
    """Native bytes that the objects reported to the garbage collector; None: not known."""
    leaked: Optional[Amount]
    """Objects that no root reaches; None: not known."""
    own: Mapping[str, int]
    """Counts that only this runtime has, by its names."""


@dataclass(frozen=True, eq=False, repr=False)
class RuntimeSite(Record):
    """A place in the program that memory was asked for at, as the runtime records it."""

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
    """The file that it is part of."""
    counters: Mapping[str, int]
    """Its own counters, by its names."""
    parts: Sequence[RuntimePart]
    """The memory that it owns."""
    native: Optional[Amount]
    """Blocks in use that only objects hold; None: not known."""
    types: Sequence[ObjectType]
    """Live objects by type, largest first by bytes of objects and of what they hold."""
    sites: Sequence[RuntimeSite]
    """Places that memory was asked for at, most bytes first."""


@dataclass(frozen=True, eq=False, repr=False)
class Runtimes(Record):
    """The result of `runtime`."""

    runtimes: Sequence[Runtime]
    """Every managed runtime of the process."""
