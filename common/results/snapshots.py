"""The results of `snapshot`: a snapshot that was taken, a core that was written, or a series."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.results.record import Record
from findleaks.value_classes import dataclass


@dataclass(frozen=True, eq=False, repr=False)
class SnapshotFigure(Record):
    """One figure of a snapshot."""

    what: str
    """The kind of figure: "lost", "root", "share" …"""
    within: Optional[str]
    """The root, allocator or runtime that contains the figure."""
    name: str
    """The name of what was counted or measured: a type, a root, an allocator."""
    count: Optional[int]
    """The number of objects or blocks; None if they are not counted."""
    bytes: Optional[int]
    """Bytes of these objects or blocks; None if they are not measured."""


@dataclass(frozen=True, eq=False, repr=False)
class TakenSnapshot(Record):
    """A snapshot that was taken."""

    name: str
    """The name of the snapshot."""
    file: Optional[str]
    """The file that was written; None if a debugger stores the snapshot."""
    time: Optional[float]
    """The time in seconds since 1970; None if unknown."""
    program: str
    """The name of the program; "" if unknown."""
    build_id: str
    """The build id of the program; "" if unknown."""
    pid: Optional[int]
    """The process id; None if unknown."""
    stopped_seconds: Optional[float]
    """Seconds for which the process was stopped; None if it was not running."""
    figures: Sequence[SnapshotFigure]
    """The figures of the snapshot."""


@dataclass(frozen=True, eq=False, repr=False)
class WrittenCore(Record):
    """A core that was written."""

    file: str
    """The name of the file."""
    pid: Optional[int]
    """The process id."""
    size: int
    """Bytes of the core, uncompressed and including its holes."""
    on_disk: int
    """Bytes that the file occupies on disk."""
    threads: int
    """Number of threads in the core."""
    stopped_seconds: Optional[float]
    """Seconds for which the process was stopped."""


@dataclass(frozen=True, eq=False, repr=False)
class SnapshotSeries(Record):
    """The end of a series of snapshots (`--every`)."""

    taken: int
    """Number of snapshots taken."""
    folder: str
    """The directory that contains the files."""
    ended: Optional[str]
    """Why the series ended, as text; None if the requested number was taken, or if the user stopped
    the series."""
