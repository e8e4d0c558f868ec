"""A file that a command wrote in addition to its text or JSON (`-o FILE`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Optional

from findleaks.results.record import SCHEMA, Record
from findleaks.value_classes import dataclass


@dataclass(frozen=True, eq=False, repr=False)
class WrittenFile(Record):
    """A file that a command wrote."""

    file: str
    """The name of the file."""
    bytes: int
    """The size of the file in bytes."""
    format: str
    """The format of the file, as a word of --format."""
    notes: Sequence[str] = ()
    """Sentences about the content of the file."""


def document(command: str, found: Record, warnings: Iterable[str], written: Optional[WrittenFile] = None) -> dict[str, Any]:
    """Return the JSON object that a command prints for a result."""
    return {"schema": SCHEMA, "command": command, **found.to_json(), **written_json(written), "warnings": list(warnings)}


def written_json(written: Optional[WrittenFile]) -> dict[str, Any]:
    """Return the key `written` for the JSON of a command that wrote a file."""
    return {} if written is None else {"written": written.to_json()}
