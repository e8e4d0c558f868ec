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
    """The root, allocator or runtime that contains it."""
    name: str
    """The name of what was counted or measured: a type, a root, an allocator."""
    count: Optional[int]
    """The number of objects or blocks, if they are counted."""
    bytes: Optional[int]
    """Their bytes, if they are measured."""


@dataclass(frozen=True, eq=False, repr=False)
class TakenSnapshot(Record):
    """A snapshot that was taken."""

    name: str
    """Its name."""
    file: Optional[str]
    """The file that was written; None: a debugger keeps the snapshot."""
    time: Optional[float]
    """Seconds since 1970; None: not known."""
    program: str
    """The name of the program; "" if it is not known."""
    build_id: str
    """The build id of the program; "" if it is not known."""
    pid: Optional[int]
    """The process id; None: not known."""
    stopped_seconds: Optional[float]
    """Time in seconds for which the process was stopped; None: it was not running."""
    figures: Sequence[SnapshotFigure]
    """Its figures."""


@dataclass(frozen=True, eq=False, repr=False)
class WrittenCore(Record):
    """A core that was written."""

    file: str
    """The file."""
    pid: Optional[int]
    """The process id."""
    size: int
    """Bytes of the core, uncompressed and with its holes."""
    on_disk: int
    """Bytes that the file occupies on disk."""
    threads: int
    """Number of threads in it."""
    stopped_seconds: Optional[float]
    """Time in seconds for which the process was stopped."""


@dataclass(frozen=True, eq=False, repr=False)
class SnapshotSeries(Record):
    """The end of a series of snapshots (`--every`)."""

    taken: int
    """Number of snapshots taken."""
    folder: str
    """The folder with their files."""
    ended: Optional[str]
    """Why the series ended, in words; None: the requested number was taken, or the user stopped
    it."""
