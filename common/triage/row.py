"""The row that triage stores for one core, with the leaks by signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, Optional

from findleaks.results.triage import CoreFinding, CoreLeak, TriagedCore

Status = Literal["ok", "partial", "failed"]
OK: Status = "ok"
PARTIAL: Status = "partial"
FAILED: Status = "failed"


class LeakSum(NamedTuple):
    """The leaks of one signature in one core.

    `leaks`: number of leak heads. `blocks` and `bytes` include indirect blocks. `hint`: text in one
    of the blocks, or "". `example`: the address of one of the blocks. These are used for
    comparison: `label`, `size` (0 if it varies), `words` (see shapes.py), and `ring`: whether most
    leak heads are in cycles."""

    signature: str
    what: str
    hint: str
    leaks: int
    blocks: int
    bytes: int
    example: int
    label: str = ""
    size: int = 0
    ring: bool = False
    words: Sequence[str] = ()

    def join(self, other: LeakSum) -> LeakSum:
        """Return the sum of both. The text and the example are from the sum that has more bytes."""
        one, less = (self, other) if (-self.bytes, self.example) <= (-other.bytes, other.example) else (other, self)
        return one._replace(leaks=one.leaks + less.leaks, blocks=one.blocks + less.blocks, bytes=one.bytes + less.bytes)

    def result(self) -> CoreLeak:
        """Return the leak as a typed result."""
        return CoreLeak(self.signature, self.what, self.hint or None, self.leaks, self.blocks, self.bytes, self.example)


class FindingLine(NamedTuple):
    """A short form of a finding of `verdict`."""

    kind: str
    bytes: int
    title: str


@dataclass(frozen=True)
class Row:
    """The row of a core.

    `status`: OK; PARTIAL if memory is missing or corrupt, so that blocks reported as leaked may be
    referenced from the missing memory; FAILED if nothing could be read. `error`: why the core
    cannot be read, or why its heap is unknown. `lost_bytes`: bytes of definitely and indirectly
    lost blocks; None if no block was found. `signal`: the signal that ended the process
    ("SIGSEGV"); "" if unknown. `frame`: the function of the program in which the process ended; ""
    if unknown. `time`: when the process ended, in seconds since 1970; None if unknown. `seconds`:
    duration of the analysis."""

    core: str
    status: Status
    program: str = ""
    build_id: str = ""
    signal: str = ""
    frame: str = ""
    time: Optional[float] = None
    lost_blocks: Optional[int] = None
    lost_bytes: Optional[int] = None
    findings: Sequence[FindingLine] = ()
    signatures: Sequence[LeakSum] = ()
    warnings: Sequence[str] = ()
    seconds: float = 0.0
    error: str = ""
    size: int = field(default=0)  # bytes of the file

    def result(self) -> TriagedCore:
        """Return the row as a typed result."""
        return TriagedCore(
            self.core,
            self.status,
            self.program or None,
            self.build_id or None,
            self.signal or None,
            self.frame or None,
            self.time,
            self.size,
            self.lost_blocks,
            self.lost_bytes,
            findings=[CoreFinding(*finding) for finding in self.findings],
            signatures=[leak.result() for leak in self.signatures],
            warnings=list(self.warnings),
            seconds=round(self.seconds, 3),
            error=self.error or None,
        )

    def pack(self) -> dict[str, Any]:
        """Return the row as JSON for another process, which reads it with `unpack_row`."""
        return asdict(self)


def unpack_row(packed: Mapping[str, Any]) -> Row:
    """Return the row that `Row.pack` wrote. Raises KeyError or TypeError if it is not a row."""
    parts = dict(packed)
    parts["findings"] = tuple(FindingLine(*one) for one in parts["findings"])
    parts["signatures"] = tuple(LeakSum(*one)._replace(words=tuple(one[-1])) for one in parts["signatures"])
    parts["warnings"] = tuple(parts["warnings"])
    return Row(**parts)


def utf8(text: str) -> str:
    """Text for files in UTF-8. Bytes of a name that are not UTF-8 become \\xNN."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # surrogates that do not stand for bytes
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
