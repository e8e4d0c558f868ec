"""A file that a command wrote in addition to its text or JSON (`-o FILE`)."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.results.record import Record
from findleaks.value_classes import dataclass


@dataclass(frozen=True, eq=False, repr=False)
class WrittenFile(Record):
    """A file that was written."""

    file: str
    """Its name."""
    bytes: int
    """Its size in bytes."""
    format: str
    """Its format, as a word of --format."""
    notes: Sequence[str] = ()
    """The content of the file, in sentences."""
