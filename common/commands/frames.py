"""Options and text that `stacks` and `count` share: both print call stacks."""

from __future__ import annotations

import argparse

from findleaks.commands.limits import add_limit
from findleaks.commands.options import add_frames
from findleaks.formatting import printable, shortened
from findleaks.unwind.stacks import NamedFrame, without_parameters

FRAMES = 40  # Maximum number of frames of each stack printed as text without --frames.


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
    return shortened(label, max(20, width - len(at))) + at
