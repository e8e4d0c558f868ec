"""The result of `diff`: what grew between moments of a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Optional

from findleaks.results.record import INTERNAL, OPTIONAL, Record
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class Moment(Record):
    """A moment that was compared: a snapshot, a core, or a process."""

    name: str
    """Its name, or its file."""
    time: Optional[float]
    """Seconds since 1970; None: not known."""
    uptime: Optional[float]
    """Seconds since the machine's start; None: not known."""
    program: str
    """The name of the program; "" if it is not known."""
    build_id: str
    """The build id of the program; "" if it is not known."""
    pid: Optional[int]
    """The process id; None: not known."""
    resident: Optional[int]
    """Resident bytes; None: it is not known which pages were resident."""
    mapped: Optional[int]
    """Mapped bytes, if it is not known which pages were resident."""


@dataclass(frozen=True, eq=False, repr=False)
class Series(Record):
    """One figure at every moment."""

    what: str
    """The kind of figure: "lost", "root", "share" …"""
    within: Optional[str]
    """The root, allocator or runtime that contains it."""
    name: str
    """The name of what was counted or measured: a type, a root, an allocator."""
    note: Optional[str]
    """More details in words."""
    unit: Literal["bytes", "count"]
    """Whether `before`, `after` and `delta` are bytes or numbers."""
    before: Optional[int]
    """The figure at the first moment; None: not known."""
    after: Optional[int]
    """The figure at the last moment; None: not known."""
    delta: Optional[int]
    """`after` minus `before`."""
    counts: Optional[Sequence[Optional[int]]]
    """The number of objects or blocks at every moment."""
    bytes: Optional[Sequence[Optional[int]]]
    """The bytes at every moment."""


@dataclass(frozen=True, eq=False, repr=False)
class Rate(Record):
    """Growth an hour, in the unit of the series, with its 95 % interval."""

    rate: float
    """The median of the slopes between moments (Theil–Sen)."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""


@dataclass(frozen=True, eq=False, repr=False)
class Grown(Series):
    """A figure that explains growth."""

    trend: str
    """The trend of the figure: "growing", "flat" …"""
    per_hour: Optional[Rate]
    """Its rate, if the times are known."""
    inside: Sequence[Series]
    """Parts of it that grew with it, the innermost last."""


@dataclass(frozen=True, eq=False, repr=False)
class EstimatedAmount(Record):
    """A number of blocks and their bytes, with 95 % intervals if only a sample was stored."""

    blocks: int
    """Number of blocks."""
    bytes: int
    """Usable bytes of these blocks."""
    blocks_95: Optional[Sequence[int]] = field(default=None, metadata=OPTIONAL)
    """Lower and upper end of the interval of `blocks`."""
    bytes_95: Optional[Sequence[int]] = field(default=None, metadata=OPTIONAL)
    """Lower and upper end of the interval of `bytes`."""


@dataclass(frozen=True, eq=False, repr=False)
class Interval(Record):
    """An estimate with its 95 % interval."""

    value: float
    """The estimate."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""


@dataclass(frozen=True, eq=False, repr=False)
class Cohort(Record):
    """Blocks that existed at one moment."""

    made: EstimatedAmount
    """All blocks of the cohort."""
    stayed: EstimatedAmount
    """The blocks that exist at every later moment."""
    part: Optional[Interval]
    """The fraction that was not freed, from 0 to 1."""


@dataclass(frozen=True, eq=False, repr=False)
class Stayed(Record):
    """Blocks by the moment at which they were first seen."""

    first: Cohort
    """Blocks of the first moment."""
    since: Optional[Cohort]
    """Blocks first seen after the first and before the last moment."""
    newest: EstimatedAmount
    """Blocks first seen at the last moment."""


@dataclass(frozen=True, eq=False, repr=False)
class StayedOfSize(Record):
    """Blocks of one size, by the moment at which they were first seen."""

    size: int
    """Usable bytes of each block."""
    first: Cohort
    """Blocks of the first moment."""
    since: Optional[Cohort]
    """Blocks first seen after the first and before the last moment."""
    newest: EstimatedAmount
    """Blocks first seen at the last moment."""


@dataclass(frozen=True, eq=False, repr=False)
class Survivors(Record):
    """Blocks of one process that exist at every later moment."""

    sampled: bool
    """Whether the figures are estimates from samples."""
    first: Cohort
    """Blocks of the first moment."""
    since: Optional[Cohort]
    """Blocks first seen after the first and before the last moment."""
    newest: EstimatedAmount
    """Blocks first seen at the last moment."""
    sizes: Sequence[StayedOfSize]
    """The same by size."""


@dataclass(frozen=True, eq=False, repr=False)
class GrownObjects(Record):
    """Managed objects that grew, by type."""

    runtime: str
    """The runtime."""
    types: Sequence[Series]
    """The types that grew most in bytes."""


@dataclass(frozen=True, eq=False, repr=False)
class Growth(Record):
    """The result of `diff`."""

    moments: Sequence[Moment]
    """The compared moments, the earliest first."""
    seconds: Optional[float]
    """Time from the first to the last moment; None: not known."""
    several_processes: Optional[str]
    """Why the moments are surely of several processes; None: they may be of one."""
    differences: Sequence[str]
    """Why the moments are not fully comparable."""
    total: Grown
    """Resident bytes; mapped bytes if residency is not known."""
    grown: Sequence[Grown]
    """The figures that explain the growth, what grew most first."""
    survivors: Optional[Survivors]
    """The blocks that were not freed between moments."""
    survivors_unknown: Optional[str]
    """Why `survivors` is not known."""
    objects: Sequence[GrownObjects]
    """Managed objects that grew."""
    leaked_blocks: int = field(default=0, metadata=INTERNAL)
    """Growth of the number of leaked blocks (definitely and indirectly lost, without garbage that
    a collector will free)."""
    leaked_bytes: int = field(default=0, metadata=INTERNAL)
    """Growth of the leaked blocks in usable bytes."""


@dataclass(frozen=True, eq=False, repr=False)
class Watched(Growth):
    """The result of `watch`: what grew up to now."""

    ended: Optional[str] = None
    """Why no further result follows, in words; None: further results follow."""
