"""The results of `triage`: a row for each core, and the groups of equal leaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Optional

from findleaks.results.record import ADDRESS, Record
from findleaks.results.written import WrittenFile
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class CoreFinding(Record):
    """A finding of `verdict`, in short."""

    kind: str
    """The kind of finding, as a word for scripts: "lost"."""
    bytes: int
    """The memory concerned, in bytes."""
    title: str
    """The finding in a sentence."""


@dataclass(frozen=True, eq=False, repr=False)
class CoreLeak(Record):
    """The leaks of one signature in one core."""

    signature: str
    """An identifier that is the same for this leak in other cores and builds."""
    what: str
    """The leak in words."""
    hint: Optional[str]
    """Text in one of the blocks."""
    leaks: int
    """Number of leak heads."""
    blocks: int
    """Number of leaked blocks: leak heads, and blocks reachable only from them."""
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
    """partial: memory is missing or damaged, and blocks reported as leaked may be referenced from
    it; failed: the core cannot be read."""
    program: Optional[str]
    """The name of the program; None: not known."""
    build_id: Optional[str]
    """Its build id; None: not known."""
    signal: Optional[str]
    """The signal that ended the process: "SIGSEGV"; None: none, or not known."""
    frame: Optional[str]
    """The function of the program in which the process ended; None: not known."""
    time: Optional[float]
    """The time of its end, in seconds since 1970; None: not known."""
    size: int
    """Bytes of the file."""
    lost_blocks: Optional[int]
    """Number of definitely and indirectly lost blocks; None: no blocks were found."""
    lost_bytes: Optional[int]
    """Usable bytes of these blocks."""
    findings: Sequence[CoreFinding]
    """What is wrong with the process's memory, largest first."""
    signatures: Sequence[CoreLeak]
    """Its leaks, largest first."""
    warnings: Sequence[str]
    """What limits the result, each with its consequence."""
    seconds: float
    """Seconds that the analysis of the core took."""
    error: Optional[str]
    """Why the core cannot be read, or why its heap is not known."""


@dataclass(frozen=True, eq=False, repr=False)
class LeakInCores(Record):
    """A leak, and the cores that have it."""

    signature: str
    """An identifier that is the same for this leak in other cores and builds."""
    program: Optional[str]
    """The name of the program; None: not known."""
    what: str
    """The leak in words."""
    hint: Optional[str]
    """Text in one of the blocks of `example`."""
    cores: int
    """Number of cores that have it."""
    partial: int
    """Number of those among them that are partial."""
    leaks: int
    """Number of leak heads in all cores."""
    blocks: int
    """Number of leaked blocks in all cores."""
    bytes: int
    """Usable bytes of these blocks."""
    first: Optional[float]
    """The time of the earliest core that has it, in seconds since 1970; None: not known."""
    last: Optional[float]
    """The time of the latest core that has it."""
    builds: Sequence[str]
    """The build ids of the programs that have it."""
    new: Optional[bool]
    """Whether it is not in the database of --baseline; None: no such database was given."""
    example: str
    """The core with the most bytes of this leak."""
    signatures: Sequence[str]
    """The signatures of the leak in single cores."""


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
    """Number of cores that were read in part."""
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
