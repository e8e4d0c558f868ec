"""The result of `diff`: what grew between samples of a program. A sample is a snapshot, a core, or
a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Optional

from findleaks.results.record import INTERNAL, OPTIONAL, Record
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class Sample(Record):
    """A sample that was compared: a snapshot, a core, or a process."""

    name: str
    """The name of the snapshot, or the name of the file."""
    time: Optional[float]
    """The time in seconds since 1970; None if unknown."""
    uptime: Optional[float]
    """The time in seconds since the machine was started; None if unknown."""
    program: str
    """The name of the program; "" if unknown."""
    build_id: str
    """The build id of the program; "" if unknown."""
    pid: Optional[int]
    """The process id; None if unknown."""
    resident: Optional[int]
    """Resident bytes; None if residency is unknown."""
    mapped: Optional[int]
    """Mapped bytes; None unless residency is unknown."""


@dataclass(frozen=True, eq=False, repr=False)
class Series(Record):
    """One figure in every sample."""

    what: str
    """The kind of figure: "lost", "root", "share" …"""
    within: Optional[str]
    """The root, allocator or runtime that contains the figure."""
    name: str
    """The name of what was counted or measured: a type, a root, an allocator."""
    note: Optional[str]
    """More details as text."""
    unit: Literal["bytes", "count"]
    """Whether `before`, `after` and `delta` are bytes or numbers."""
    before: Optional[int]
    """The figure in the first sample; None if unknown."""
    after: Optional[int]
    """The figure in the last sample; None if unknown."""
    delta: Optional[int]
    """`after` minus `before`."""
    counts: Optional[Sequence[Optional[int]]]
    """The number of objects or blocks in each sample."""
    bytes: Optional[Sequence[Optional[int]]]
    """The bytes in each sample."""


@dataclass(frozen=True, eq=False, repr=False)
class Rate(Record):
    """Growth per hour, in the unit of the series, with its 95 % interval."""

    rate: float
    """The median of the slopes between samples (Theil–Sen)."""
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
    """The rate of growth; None if the times of the samples are unknown."""
    inside: Sequence[Series]
    """Parts of the figure that grew with it, the innermost last."""


@dataclass(frozen=True, eq=False, repr=False)
class EstimatedAmount(Record):
    """A number of blocks and their bytes. If only a part of the blocks was stored, both are
    estimates with 95 % intervals."""

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
    """Blocks that were first seen in the same sample or in the same range of samples."""

    made: EstimatedAmount
    """All blocks of the cohort."""
    stayed: EstimatedAmount
    """The blocks in `made` that still exist in each later sample."""
    part: Optional[Interval]
    """The fraction of the blocks that was not freed, from 0 to 1."""


@dataclass(frozen=True, eq=False, repr=False)
class Stayed(Record):
    """Blocks by the sample in which they were first seen."""

    first: Cohort
    """Blocks that exist in the first sample."""
    since: Optional[Cohort]
    """Blocks first seen after the first and before the last sample."""
    newest: EstimatedAmount
    """Blocks first seen in the last sample."""


@dataclass(frozen=True, eq=False, repr=False)
class StayedOfSize(Record):
    """Blocks of one size, by the sample in which they were first seen."""

    size: int
    """Usable bytes of each block."""
    first: Cohort
    """Blocks that exist in the first sample."""
    since: Optional[Cohort]
    """Blocks first seen after the first and before the last sample."""
    newest: EstimatedAmount
    """Blocks first seen in the last sample."""


@dataclass(frozen=True, eq=False, repr=False)
class Survivors(Record):
    """Blocks of one process that exist in each later sample."""

    sampled: bool
    """Whether the figures are estimates, because snapshots contain only a part of the blocks."""
    first: Cohort
    """Blocks that exist in the first sample."""
    since: Optional[Cohort]
    """Blocks first seen after the first and before the last sample."""
    newest: EstimatedAmount
    """Blocks first seen in the last sample."""
    sizes: Sequence[StayedOfSize]
    """The same figures for each size of block."""


@dataclass(frozen=True, eq=False, repr=False)
class GrownObjects(Record):
    """Managed objects that grew, by type."""

    runtime: str
    """The name of the runtime."""
    types: Sequence[Series]
    """The types that grew in bytes, those that grew most first."""


@dataclass(frozen=True, eq=False, repr=False)
class Growth(Record):
    """The result of `diff`."""

    samples: Sequence[Sample]
    """The compared samples, the earliest first."""
    seconds: Optional[float]
    """Seconds from the first to the last sample; None if unknown."""
    several_processes: Optional[str]
    """Why the samples certainly belong to several processes; None if they may belong to one."""
    differences: Sequence[str]
    """Why the samples are not fully comparable."""
    total: Grown
    """Resident bytes; mapped bytes if residency is unknown."""
    grown: Sequence[Grown]
    """The figures that explain the growth, those that grew most first."""
    survivors: Optional[Survivors]
    """The blocks that were not freed between samples."""
    survivors_unknown: Optional[str]
    """Why `survivors` is unknown."""
    objects: Sequence[GrownObjects]
    """Managed objects that grew."""
    leaked_blocks: int = field(default=0, metadata=INTERNAL)
    """Growth of the number of leaked blocks (definitely and indirectly lost, without garbage that
    a collector will free)."""
    leaked_bytes: int = field(default=0, metadata=INTERNAL)
    """Growth of the leaked blocks in usable bytes."""


@dataclass(frozen=True, eq=False, repr=False)
class Watched(Growth):
    """The result of `watch`: what has grown so far."""

    ended: Optional[str] = None
    """Why no further result will follow, as text; None if one will follow."""
