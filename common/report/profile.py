"""A profile: stacks with figures, as the files of `-o` have them, whatever they are stacks of.

A stack is a path of frames. Frames are functions at addresses (calls, threads, allocations), or
steps that are only names: kind, allocator, type and size of lost blocks; a root and its fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from findleaks.formatting import printable
from findleaks.target.base import Module, Region

LONGEST = 2000
"""Characters of a frame's name, at most."""
BYTES, COUNT = "bytes", "count"
"""Units of measures."""


class Frame(NamedTuple):
    """`address`: 0 for a step that is only a name; a return address, but in the innermost frame.
    `module`, `file`: "" where unknown; `line`: 0. `inlined`: into the frame before it, whose
    address it has."""

    name: str
    address: int = 0
    module: str = ""
    file: str = ""
    line: int = 0
    inlined: bool = False


class Measure(NamedTuple):
    """What a figure is of: "lost_bytes" in "bytes"; `title`: for a reader."""

    name: str
    unit: str
    title: str


class Sample(NamedTuple):
    """A stack, the outermost frame first, and a value for each measure, none negative. `before`:
    those of the earlier moment, in a profile that compares two."""

    stack: tuple[Frame, ...]
    values: tuple[int, ...]
    before: tuple[int, ...] = ()


@dataclass
class Profile:
    """`title`: what it is of. `compared`: the samples have values of two moments. `rate`: mean
    bytes between two samples of the recorder that values are estimates from; 0: they are exact.
    `time`: seconds since 1970, None where unknown. `regions`, `modules`: of the process, where
    frames have addresses; the first module is the program.
    `notes`: sentences on what the profile leaves out or estimates."""

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
        """The measure that comes first where a format or a reader takes one: bytes, if any."""
        return next((at for at, one in enumerate(self.measures) if one.unit == BYTES), 0)

    def totals(self) -> list[int]:
        """The sum of all samples by measure."""
        return [sum(column) for column in zip(*(one.values for one in self.samples))] or [0] * len(self.measures)


def frame_name(text: str) -> str:
    """Text of the target as a frame's name: one line, safe on a terminal; never empty."""
    return printable(text, LONGEST) or "?"
