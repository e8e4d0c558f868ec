"""A profile: stacks with figures, for the formats of `-o`.

A stack is a list of frames. A frame is a function at an address (of a call, a thread or an
allocation), or a step that is only a name: kind, allocator, type and size of leaked blocks; a root
and its fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from findleaks.formatting import printable
from findleaks.target.base import Module, Region

LONGEST = 2000
"""Maximum number of characters of a frame's name."""
BYTES, COUNT = "bytes", "count"
"""Units of measures."""


class Frame(NamedTuple):
    """A step of a stack. `address`: a return address, except in the innermost frame; 0 for a step
    that is only a name. `module`, `file`: "" if unknown; `line`: 0 if unknown. `inlined`: whether
    the function is inlined in the preceding frame, whose address it has."""

    name: str
    address: int = 0
    module: str = ""
    file: str = ""
    line: int = 0
    inlined: bool = False


class Measure(NamedTuple):
    """The description of a figure: "lost_bytes" in "bytes". `title` is for readers."""

    name: str
    unit: str
    title: str


class Sample(NamedTuple):
    """A stack, outermost frame first, and a value for each measure. No value is negative. `before`:
    the values at the earlier snapshot, in a profile that compares two snapshots."""

    stack: tuple[Frame, ...]
    values: tuple[int, ...]
    before: tuple[int, ...] = ()


@dataclass
class Profile:
    """A set of stacks with figures.

    - `title`: describes the profile. `compared`: whether the samples have values of two snapshots.
    - `rate`: mean bytes between two samples of the recorder, from which values are estimated; 0 if
      values are exact.
    - `default`: index of the measure that is shown first; None: the first one in bytes.
    - `time`: seconds since 1970, None if unknown.
    - `regions`, `modules`: those of the process, if frames have addresses. The first module is the
      program.
    - `notes`: sentences about what the profile omits or estimates."""

    title: str
    measures: Sequence[Measure]
    samples: Sequence[Sample]
    compared: bool = False
    rate: int = 0
    default: int | None = None
    time: float | None = None
    regions: Sequence[Region] = ()
    modules: Sequence[Module] = ()
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def main(self) -> int:
        """Index of the measure that is shown first."""
        return self.default if self.default is not None else next((at for at, one in enumerate(self.measures) if one.unit == BYTES), 0)

    def totals(self) -> list[int]:
        """Return the sum of all samples, for each measure."""
        return [sum(column) for column in zip(*(one.values for one in self.samples))] or [0] * len(self.measures)


def frame_name(text: str) -> str:
    """Convert text from the target to the name of a frame: one line, safe on a terminal, never
    empty."""
    return printable(text, LONGEST) or "?"
