"""Options and text that `stacks` and `count` share: both print call stacks."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from findleaks.commands.limits import add_limit
from findleaks.commands.options import add_frames
from findleaks.formatting import format_count, printable, shorten
from findleaks.unwind.stacks import NamedFrame, without_parameters
from findleaks.value_classes import NamedTuple

FRAMES = 40  # Maximum number of frames of each stack printed as text without --frames.
_LONGEST_CYCLE = 8  # maximum number of functions that call each other in a recursion
_LEAST_TIMES = 4  # least number of repetitions that are printed as one


class Repeated(NamedTuple):
    """A sequence of frames that is on the stack `times` times in a row, as in a recursion. `start`:
    the index of its first frame. `frames`: the frames of one repetition."""

    start: int
    frames: Sequence[NamedFrame]
    times: int

    def describe(self) -> str:
        """Return "… and 99 more times"; "… and these 2 frames 49 more times"."""
        which = "" if len(self.frames) == 1 else f"these {len(self.frames)} frames "
        return f"… and {which}{format_count(self.times - 1, 'more time')}"


def add_stack_options(parser: argparse.ArgumentParser, stacks: int) -> None:
    """Add --folded, --limit, --no-lines and --frames. `stacks`: the number of stacks printed as
    text without --limit (0: all)."""
    parser.add_argument(
        "--folded", action="store_true", help="print one line per stack for flame graphs, outermost frame first: main;work;read 3"
    )
    add_limit(parser, "stacks", stacks)
    parser.add_argument(
        "--no-lines", action="store_true", help="do not read debug information: print no files, lines and inlined functions"
    )
    add_frames(parser, FRAMES)


def frame_label(frame: NamedFrame, width: int) -> str:
    """Return a frame as a line of `width` columns: "parse+0x12 at io/parser.c:42". If the line is
    too long, the parameters of the function are omitted."""
    place = frame.place()
    at = f" at {printable(place)}" if place else ""
    label = printable(frame.label(), 2000)
    if len(label) + len(at) > width and frame.function:
        label = printable(frame._replace(function=without_parameters(frame.function)).label(), 2000)
    return shorten(label, max(20, width - len(at))) + at


def find_repeated(frames: Sequence[NamedFrame]) -> Iterator[Repeated]:
    """Yield all frames in order. A sequence of up to 8 frames that occurs at least 4 times in a row
    is one item: a(), b(), a(), b(), a(), b(), a(), b() is a(), b() with 4 times. Sequences that
    contain a frame with locks are not combined."""
    at = 0
    while at < len(frames):
        found = max((_repeat(frames, at, length) for length in range(1, _LONGEST_CYCLE + 1)), key=lambda one: len(one.frames) * one.times)
        found = found if found.times >= _LEAST_TIMES else Repeated(at, frames[at : at + 1], 1)
        yield found
        at += len(found.frames) * found.times


def _repeat(frames: Sequence[NamedFrame], start: int, length: int) -> Repeated:
    """Return the sequence of this length at `start`, and how many times it occurs in a row."""
    cycle = frames[start : start + length]
    times = 1
    while frames[start + times * length : start + (times + 1) * length] == cycle and not any(frame.locks for frame in cycle):
        times += 1
    return Repeated(start, cycle, times)
