"""`blocks`: the blocks themselves, filtered; JSON Lines for scripts."""

from __future__ import annotations

import argparse
import heapq
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice

from findleaks.commands import SCHEMA, Door, command
from findleaks.commands.limits import add_limit, in_text
from findleaks.commands.result import warning_lines, warnings_of
from findleaks.describe import STATES, BlockInfo, Describer
from findleaks.errors import Interrupted, UsageError
from findleaks.graph.base import Kind, State, Totals
from findleaks.report.text import blocks as blocks_of
from findleaks.report.text import number, size, table
from findleaks.session import Session
from findleaks.suppressions import glob
from findleaks.words import size_range

KINDS = [kind.name.lower() for kind in Kind if kind]
SHOWN = 50
CHUNK = 4096


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kind", help=f"only these kinds, comma-separated: {', '.join(KINDS)}, lost (definite and indirect)")
    parser.add_argument("--state", choices=[*STATES.values(), "all"], default="in-use", help="only blocks in this state (in-use)")
    parser.add_argument("--size", metavar="A-B", help="only usable sizes in this range: 48, 16-64, 4k-")
    parser.add_argument("--type", metavar="GLOB", help="only blocks whose type matches: * any characters, ? one, e.g. 'osgeo::*'")
    parser.add_argument("--allocator", metavar="NAME", help="only blocks of this allocator")
    parser.add_argument("--sort", choices=("address", "size"), default="address", help="by address, or the largest first (address)")
    add_limit(parser, "blocks", SHOWN)


class Listing:
    """Filtered blocks, made one by one as they are printed: a heap may have tens of millions."""

    def __init__(self, session: Session, args: argparse.Namespace) -> None:
        self.session = session
        self.limit = args.limit
        self.by_size = args.sort == "size"
        self.kinds = _kinds(args.kind)
        self.states = {state for state, name in STATES.items() if args.state in (name, "all")}
        self.sizes = size_range(args.size) if args.size else None
        self.type = args.type
        self.allocator = allocator_named(session, args.allocator)
        self.graph = session.latest
        self.status = 0 if session.directory.blocks.totals(State.IN_USE).blocks else 2  # no block of a known allocator: as `find`
        self.describer = Describer(session)

    def json(self) -> Iterable[Mapping[str, object]]:
        for index in self._shown(self._matching(), self.limit or 0):
            yield self.describer.block(index).json()
        warnings = warnings_of(self.session)
        if warnings:
            yield {"schema": SCHEMA, "command": "blocks", "warnings": warnings}

    def text(self, width: int, door: Door) -> Iterator[str]:
        limit = in_text(self.limit, SHOWN)
        matching = self._matching()
        every: Iterable[int] = list(matching) if self.by_size else matching
        first = list(self._shown(every, limit))
        rows = [_row(self.describer.block(index)) for index in first]
        count, held = self._known() or self._counted(every if self.by_size else chain(first, matching))
        if rows:
            yield from table(("ADDRESS", "SIZE", "KIND", "WHAT"), rows, (1,), width, cut=3)
            yield ""
        more = f", {number(count - len(rows))} not shown (--limit 0)" if count > len(rows) else ""
        yield f"  {blocks_of(count)}, {size(held)}{more}"
        if rows:
            yield from door.next(width, f"whatis {rows[0][0]}", f"path {rows[0][0]}")
        yield from warning_lines(warnings_of(self.session), width)

    def _shown(self, matching: Iterable[int], limit: int) -> Iterable[int]:
        """Those of these blocks to print, in order; 0: all."""
        if not self.by_size:
            return islice(matching, limit or None)
        size_of = self.session.directory.blocks.size

        def order(index: int) -> tuple[int, int]:
            return -size_of(index), index

        return heapq.nsmallest(limit, matching, order) if limit else sorted(matching, key=order)

    def _matching(self) -> Iterator[int]:
        """Indices of the blocks that pass every filter. They are described only when they are printed: most never are."""
        blocks = self.session.directory.blocks
        if self.kinds is not None and State.IN_USE not in self.states:
            return
        any_state = self.kinds is not None or len(self.states) == len(State)  # only blocks in use have a kind
        low, high = self.sizes or (0, None)
        for count, index in enumerate(_indices(self.graph.kinds(), self.kinds)):
            if count % CHUNK == 0 and self.session.target.interrupted():
                raise Interrupted
            if high is not None and not low <= blocks.size(index) <= high:
                continue
            if not any_state and blocks.state(index) not in self.states:
                continue
            if self.allocator and not self._owned(blocks.address(index)):
                continue
            if self.type and not glob(self.type, self.describer.type(index)):
                continue
            yield index

    def _owned(self, address: int) -> bool:
        owned = self.session.directory.owner(address)
        return owned is not None and owned.allocator.name == self.allocator

    def _known(self) -> Totals | None:
        """Blocks and bytes of these kinds and states, which are known; None where another filter asks about each block."""
        blocks = self.session.directory.blocks
        if self.sizes is not None or self.type or self.allocator:
            return None
        if self.kinds is None:
            parts = [blocks.totals(state) for state in self.states]
        else:
            parts = [self.graph.totals(Kind(kind)) for kind in self.kinds] if State.IN_USE in self.states else []
        return Totals(sum(part.blocks for part in parts), sum(part.bytes for part in parts))

    def _counted(self, indices: Iterable[int]) -> Totals:
        count = held = 0
        for index in indices:
            count += 1
            held += self.session.directory.blocks.size(index)
        return Totals(count, held)


def allocator_named(session: Session, name: str | None) -> str | None:
    """The name as it is; UsageError when no allocator of the process has it."""
    found = sorted({allocator.name for allocator in session.directory.allocators})
    if name is not None and name not in found:
        raise UsageError(f"no allocator {name!r} in this process; found: {', '.join(found) or 'none'}")
    return name


def _row(block: BlockInfo) -> tuple[str, ...]:
    return hex(block.address), number(block.size), block.kind or block.state, block.type or block.hint


def _indices(kinds: memoryview, wanted: set[int] | None) -> Iterable[int]:
    """Indices of the blocks of these kinds: found by the regular expression engine, which skips the rest at memory speed."""
    if wanted is None:
        return range(len(kinds))
    pattern = re.compile(b"[" + b"".join(b"\\x%02x" % kind for kind in sorted(wanted)) + b"]")
    return (match.start() for match in pattern.finditer(kinds))


def _kinds(text: str | None) -> set[int] | None:
    if text is None:
        return None
    found: set[int] = set()
    for name in text.split(","):
        if name == "lost":
            found |= {Kind.DEFINITE, Kind.INDIRECT}
        elif name in KINDS:
            found.add(Kind[name.upper()])
        else:
            raise UsageError(f"no kind {name!r}; there are: {', '.join(KINDS)}, lost")
    return found


@command(arguments=_arguments)
def blocks(session: Session, args: argparse.Namespace) -> Listing:
    """List blocks with size (usable bytes), kind or state, and type: by address, or the largest first. With --json one object a line
    (JSON Lines): {"address", "size", "state", "kind", "allocator", "arena", "type", "hint"}; warnings, if any, last."""
    return Listing(session, args)
