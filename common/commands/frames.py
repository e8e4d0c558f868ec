"""Options and JSON that `stacks` and `count`, the commands that print stacks, have in common."""

from __future__ import annotations

import argparse

from findleaks.arg_types import count_word
from findleaks.commands.limits import add_limit
from findleaks.unwind.stacks import NamedFrame

FRAMES = 40  # frames of each stack printed as text without --frames


def add_stack_options(parser: argparse.ArgumentParser, stacks: int) -> None:
    """Add --folded, --limit and --frames. `stacks`: printed as text without --limit (0: all)."""
    parser.add_argument("--folded", action="store_true", help="a line a stack, outermost first, for flame graphs: main;work;read 3")
    add_limit(parser, "stacks", stacks)
    parser.add_argument("--frames", type=count_word, default=FRAMES, help=f"frames of each stack to print as text ({FRAMES}; 0: all)")


def frame_json(frame: NamedFrame) -> dict[str, object]:
    return {"address": hex(frame.address), "function": frame.function or None, "offset": frame.offset, "module": frame.module or None}
