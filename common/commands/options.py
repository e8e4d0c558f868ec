"""Options that several commands have, each with one definition and one meaning. Others of them are
in limits.py, frames.py and output.py."""

from __future__ import annotations

import argparse

from findleaks.arg_types import parse_count, parse_seconds


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json, which every command has."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_debug_types(parser: argparse.ArgumentParser) -> None:
    """Add --debug-types."""
    what = "find the types of blocks by debug information and references (takes longer)"
    parser.add_argument("--debug-types", action="store_true", help=what)


def add_allocator(parser: argparse.ArgumentParser) -> None:
    """Add --allocator."""
    parser.add_argument("--allocator", metavar="NAME", help="only this allocator: glibc, jemalloc, …")


def add_residency(parser: argparse.ArgumentParser) -> None:
    """Add --residency."""
    what = "the file that `map --save-residency` wrote before the core was dumped: which pages were resident"
    parser.add_argument("--residency", metavar="FILE", default="", help=what)


def add_frames(parser: argparse.ArgumentParser, default: int) -> None:
    """Add --frames. `default`: frames of each stack printed as text."""
    parser.add_argument("--frames", type=parse_count, default=default, help=f"frames of each stack to print as text ({default}; 0: all)")


def add_every(parser: argparse.ArgumentParser, what: str, default: float = 0.0) -> None:
    """Add --every. `what`: what happens at the interval. `default`: seconds; 0: it happens once."""
    usual = f" ({default:.0f})" if default else ""
    parser.add_argument("--every", metavar="SECONDS", type=parse_seconds, default=default, help=f"{what}{usual}")


def add_seconds(parser: argparse.ArgumentParser) -> None:
    """Add --for, as `seconds`; 0: until Ctrl-C."""
    parser.add_argument("--for", metavar="SECONDS", dest="seconds", type=parse_seconds, default=0.0, help="end after this time")


def add_fail_over(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --fail-over. `what`: the subject of the limit, such as "the process"."""
    parser.add_argument("--fail-over", metavar="BYTES", help=f"exit with status 1 if {what} has leaked more than this, e.g. 0 or 64k")


def add_sysroot(group: argparse._ArgumentGroup, hidden: bool = False) -> None:
    """Add --sysroot. `hidden`: the help omits it."""
    what = "a folder that contains the files of the core's machine, at the same paths"
    group.add_argument("--sysroot", default="", metavar="DIR", help=argparse.SUPPRESS if hidden else what)
