"""Result of `find --untyped`: the blocks from which most blocks without a type are reached."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from functools import partial

from findleaks.audit.untyped_blocks import find_untyped
from findleaks.commands import Invocation
from findleaks.commands.limits import in_text
from findleaks.commands.result import Plain, blocks_status
from findleaks.commands.untyped_reason import join_candidates
from findleaks.errors import UsageError
from findleaks.formatting import blocks, number, size, table, wrap
from findleaks.results.untyped import Untyped, UntypedSource
from findleaks.session import Session

ROWS = 15  # Maximum number of rows printed as text without --limit.
HEAD = ("BYTES", "BLOCKS", "FROM", "SIZE", "REFERRED TO BY", "EXAMPLE", "WHY")
_MEMBER = re.compile(r"[^\s()\[\]]+\.[^\s()\[\]]+")
"""Matches an origin that a hint file may contain: a member, but no element, offset or root."""
_OTHERS = ("by", "output", "suppressions", "fail_over")


def list_untyped(session: Session, args: argparse.Namespace) -> Plain:
    """Return the result of `find --untyped`. Raises UsageError if another option excludes it."""
    other = next((name for name in _OTHERS if getattr(args, name)), "")
    if other:
        raise UsageError(f"--untyped and --{other.replace('_', '-')} cannot be combined")
    found = find_untyped(session, args.limit or 0)
    return Plain(session, "find", found, partial(_text, found, in_text(args.limit, ROWS) or found.rows), blocks_status(session))


def _text(found: Untyped, shown: int, width: int, invocation: Invocation) -> Iterator[str]:
    rows = found.sources[:shown]
    yield f"{blocks(found.untyped.blocks)} without a type, {size(found.untyped.bytes)}, of {size(found.in_use.bytes)} in use"
    if not rows:
        yield "  none of them refers to other blocks: no hint would type more than one block"
        return
    yield ""
    yield from table(HEAD, map(_row, rows), (0, 1, 2, 3), width, cut=4)
    if found.rows > len(rows):
        yield f"  … {number(found.rows - len(rows))} more rows (--limit 0 shows all)"
    yield ""
    first = rows[0]
    yield from ("  " + line for line in wrap(advise(first), width - 2))
    yield from invocation.next(f"whatis {first.example:#x}", f"refs {first.example:#x}")


def _row(one: UntypedSource) -> tuple[str, ...]:
    low, high = one.sizes
    origin = "leaked" if one.leaked else one.origin or "–"
    own = number(low) if low == high else f"{number(low)}–{number(high)}"
    return size(one.reached.bytes), number(one.reached.blocks), number(one.blocks), own, origin, hex(one.example), one.reason


def advise(first: UntypedSource) -> str:
    """Return advice on the hint that gives a type to the most blocks. `first`: the row from which
    the most blocks are reached."""
    hint = f"--type {first.example:#x}=TYPE"
    types = f"; TYPE may be {join_candidates(first.candidates)}" if first.candidates else ""
    if first.blocks == 1 or first.leaked or not _MEMBER.fullmatch(first.origin or ""):
        return f"{hint} may type up to {number(first.example_reached.blocks)} of these blocks{types}"
    return f"{hint} types the example; the line `{first.origin} -> TYPE` in a file of --hints may type all of the first row{types}"
