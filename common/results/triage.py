"""The results of `triage`: a row for each core, and the groups of equal leaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Optional

from findleaks.results.record import ADDRESS, Record
from findleaks.results.written import WrittenFile
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class CoreFinding(Record):
    """A short form of a finding of `verdict`."""

    kind: str
    """The kind of finding, as a word for scripts: "lost"."""
    bytes: int
    """Bytes of the memory that the finding is about."""
    title: str
    """The finding as a sentence."""


@dataclass(frozen=True, eq=False, repr=False)
class CoreLeak(Record):
    """The leaks in one core that have the same signature."""

    signature: str
    """An identifier that is the same for this leak in other cores and builds."""
    what: str
    """The leak in words."""
    hint: Optional[str]
    """Text in one of the blocks of the leak; None if there is none."""
    leaks: int
    """Number of leak heads."""
    blocks: int
    """Number of leaked blocks: the leak heads, and the blocks that are reachable only from them."""
    bytes: int
    """Usable bytes of these blocks."""
    example: int = field(metadata=ADDRESS)
    """The address of one of these blocks."""


@dataclass(frozen=True, eq=False, repr=False)
class TriagedCore(Record):
    """One core: a line of `triage --json`."""

    core: str
    """The name of the core."""
    status: Literal["ok", "partial", "failed"]
    """Whether the core could be read. partial: memory is missing or damaged, so blocks reported as
    leaked may be referenced from the missing memory. failed: the core cannot be read."""
    program: Optional[str]
    """The name of the program; None if unknown."""
    build_id: Optional[str]
    """The build id of the program; None if unknown."""
    signal: Optional[str]
    """The signal that ended the process: "SIGSEGV"; None if there was none, or if it is unknown."""
    frame: Optional[str]
    """The function of the program in which the process ended; None if unknown."""
    time: Optional[float]
    """The time at which the process ended, in seconds since 1970; None if unknown."""
    size: int
    """Bytes of the file."""
    lost_blocks: Optional[int]
    """Number of definitely and indirectly lost blocks; None if no blocks were found."""
    lost_bytes: Optional[int]
    """Usable bytes of these blocks."""
    findings: Sequence[CoreFinding]
    """The problems of the process's memory, the largest first."""
    signatures: Sequence[CoreLeak]
    """The leaks of the process, the largest first."""
    warnings: Sequence[str]
    """Sentences about what limits the result. Each states the consequence."""
    seconds: float
    """Seconds that the analysis of the core took."""
    error: Optional[str]
    """Why the core cannot be read, or why its heap is unknown."""


@dataclass(frozen=True, eq=False, repr=False)
class LeakInCores(Record):
    """A leak, and the cores that have it."""

    signature: str
    """An identifier that is the same for this leak in other cores and builds."""
    program: Optional[str]
    """The name of the program; None if unknown."""
    what: str
    """A description of the leak."""
    hint: Optional[str]
    """Text in one of the blocks of `example`."""
    cores: int
    """Number of cores that have the leak."""
    partial: int
    """Number of these cores that are partial."""
    leaks: int
    """Number of leak heads in all cores."""
    blocks: int
    """Number of leaked blocks in all cores."""
    bytes: int
    """Usable bytes of these blocks."""
    first: Optional[float]
    """The time of the earliest core that has the leak, in seconds since 1970; None if unknown."""
    last: Optional[float]
    """The time of the latest core that has the leak; None if unknown."""
    builds: Sequence[str]
    """The build ids of the programs that have the leak."""
    new: Optional[bool]
    """Whether the leak is missing from the database of --baseline; None if no such database was
    given."""
    example: str
    """The core with the most bytes of this leak."""
    signatures: Sequence[str]
    """The signatures of the leak in the single cores."""


@dataclass(frozen=True, eq=False, repr=False)
class Triage(Record):
    """The last line of `triage --json`: what the cores have in common."""

    cores: int
    """Number of cores."""
    left: int
    """Number of cores that were not read, because the user stopped the run."""
    ok: int
    """Number of cores that were read."""
    partial: int
    """Number of cores that were read only in part."""
    failed: int
    """Number of cores that cannot be read."""
    lost_bytes: int
    """Bytes of definitely and indirectly lost blocks in all cores."""
    seconds: float
    """Seconds that the run took."""
    groups: Sequence[LeakInCores]
    """The leaks, those in most cores first."""
    written: Sequence[WrittenFile]
    """The files that were written."""
