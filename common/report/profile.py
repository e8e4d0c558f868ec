"""A profile: stacks with figures, for the formats of `-o`.

A stack is a path of frames. Frames are functions at addresses (calls, threads, allocations), or
steps that are only names: kind, allocator, type and size of leaked blocks; a root and its
fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from findleaks.formatting import printable
from findleaks.target.base import Module, Region

LONGEST = 2000
"""Most characters of a frame's name."""
BYTES, COUNT = "bytes", "count"
"""Units of measures."""


class Frame(NamedTuple):
    """A step of a stack. `address`: a return address, except in the innermost frame; 0 for a step
    that is only a name. `module`, `file`: "" if unknown; `line`: 0 if unknown. `inlined`: the
    function is inlined into the frame before it, and has its address."""

    name: str
    address: int = 0
    module: str = ""
    file: str = ""
    line: int = 0
    inlined: bool = False


class Measure(NamedTuple):
    """Description of a figure: "lost_bytes" in "bytes"; `title` is for readers."""

    name: str
    unit: str
    title: str


class Sample(NamedTuple):
    """A stack, outermost frame first, and a value for each measure, none negative. `before`: values
    of the earlier moment, in a profile that compares two."""

    stack: tuple[Frame, ...]
    values: tuple[int, ...]
    before: tuple[int, ...] = ()


@dataclass
class Profile:
    """A set of stacks with figures.

    - `title`: describes the profile. `compared`: the samples have values of two moments.
    - `rate`: mean bytes between two samples of the recorder, from which values are estimated; 0:
      values are exact.
    - `time`: seconds since 1970, None if unknown.
    - `regions`, `modules`: of the process, if frames have addresses; the first module is the
      program.
    - `notes`: sentences on what the profile omits or estimates."""

    title: str
    measures: Sequence[Measure]
    samples: Sequence[Sample]
    compared: bool = False
    rate: int = 0
    time: float | None = None
    regions: Sequence[Region] = ()
    modules: Sequence[Module] = ()
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def main(self) -> int:
        """Index of the measure that a format or a reader shows first: bytes, if any."""
        return next((at for at, one in enumerate(self.measures) if one.unit == BYTES), 0)

    def totals(self) -> list[int]:
        """Return the sum of all samples by measure."""
        return [sum(column) for column in zip(*(one.values for one in self.samples))] or [0] * len(self.measures)


def frame_name(text: str) -> str:
    """Convert text of the target to a frame name: one line, safe on a terminal, never empty."""
    return printable(text, LONGEST) or "?"
