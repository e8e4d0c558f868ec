"""Options that several commands have. Each has one definition and one meaning. limits.py, frames.py
and output.py contain further common options."""

from __future__ import annotations

import argparse
from typing import Any, Optional

from findleaks.arg_types import is_type_hint, parse_count, parse_seconds


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json, which every command has."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


class _TypeWord(argparse.Action):
    """Action of --type. Appends a word ADDR=TYPE to `hints`. Any other word is a pattern, which
    becomes `type`, if `const` is True; otherwise it is an error."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Optional[str] = None) -> None:
        if is_type_hint(values):
            namespace.hints = [*namespace.hints, values]
        elif not self.const:
            raise argparse.ArgumentError(self, f"{values[:200]!r} is not ADDR=TYPE; `blocks --type GLOB` lists the blocks of a type")
        elif namespace.type is not None:
            raise argparse.ArgumentError(self, f"expected one GLOB, got {namespace.type!r} and {values[:200]!r}")
        else:
            namespace.type = values


def add_debug_types(parser: argparse.ArgumentParser, filters: bool = False) -> None:
    """Add --debug-types, --no-debug-types, --hints and --type. The hints of --type are in
    `args.hints`. `filters`: whether --type also takes a pattern, which is in `args.type`."""
    hint = "the type at an address, as in --type '0x55d0c0a012a0=struct client'; may be repeated"
    what = f"only blocks whose type matches GLOB: * any characters, ? one, e.g. 'osgeo::*'; or {hint}" if filters else hint
    metavar = "GLOB|ADDR=TYPE" if filters else "ADDR=TYPE"
    parser.add_argument("--type", action=_TypeWord, const=filters, default=None, metavar=metavar, help=what)
    parser.set_defaults(hints=[])
    what = "a hint file: which types the void pointers of the program refer to"
    parser.add_argument("--hints", metavar="FILE", dest="hint_file", help=what)
    add_choice_of_debug_types(parser)


def add_choice_of_debug_types(parser: argparse.ArgumentParser) -> None:
    """Add --debug-types and --no-debug-types."""
    what = "read all debug information for the types of blocks, even if that takes long the first time"
    parser.add_argument("--debug-types", action="store_true", default=None, help=what)
    what = "do not find the types of blocks by debug information"
    parser.add_argument("--no-debug-types", action="store_false", dest="debug_types", help=what)


def add_allocator(parser: argparse.ArgumentParser) -> None:
    """Add --allocator."""
    parser.add_argument("--allocator", metavar="NAME", help="only this allocator: glibc, jemalloc, …")


def add_pools(parser: argparse.ArgumentParser) -> None:
    """Add --pools, which every command that reads a heap has."""
    what = "a pool file (TOML): divide blocks into the chunks of your program's own pools"
    parser.add_argument("--pools", metavar="FILE", help=what)


def add_residency(parser: argparse.ArgumentParser) -> None:
    """Add --residency."""
    what = "the file that `map --save-residency` wrote before the core was dumped: which pages were resident"
    parser.add_argument("--residency", metavar="FILE", default="", help=what)


def add_frames(parser: argparse.ArgumentParser, default: int) -> None:
    """Add --frames. `default`: number of frames of each stack printed as text."""
    parser.add_argument("--frames", type=parse_count, default=default, help=f"frames of each stack to print as text ({default}; 0: all)")


def add_every(parser: argparse.ArgumentParser, what: str, default: float = 0.0) -> None:
    """Add --every. `what`: what is done at each interval. `default`: the interval in seconds; 0: it
    is done only once."""
    usual = f" ({default:.0f})" if default else ""
    parser.add_argument("--every", metavar="SECONDS", type=parse_seconds, default=default, help=f"{what}{usual}")


def add_seconds(parser: argparse.ArgumentParser) -> None:
    """Add --for with the destination `seconds`. 0 means until Ctrl-C."""
    parser.add_argument("--for", metavar="SECONDS", dest="seconds", type=parse_seconds, default=0.0, help="end after this time")


def add_fail_over(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --fail-over. `what`: what the limit applies to, such as "the process"."""
    parser.add_argument("--fail-over", metavar="BYTES", help=f"exit with status 1 if {what} has leaked more than this, e.g. 0 or 64k")


def add_sysroot(group: argparse._ArgumentGroup, hidden: bool = False) -> None:
    """Add --sysroot. `hidden`: whether it is missing from the help."""
    what = "a directory that contains the files of the core's machine, at the same paths"
    group.add_argument("--sysroot", default="", metavar="DIR", help=argparse.SUPPRESS if hidden else what)
