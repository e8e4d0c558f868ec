"""The `blocks` command: list the blocks that pass filters, as text or as JSON Lines."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice

from findleaks.answers.warnings import warnings_of
from findleaks.arg_types import SizeRange, parse_count, parse_size_range
from findleaks.audit.address_info import STATES, BlockInfo
from findleaks.audit.block_contents import describe_untyped
from findleaks.audit.block_rows import KINDS, BlockFilters, BlockRows, check_allocator_name, parse_kinds, parse_states
from findleaks.commands import Invocation, command
from findleaks.commands.limits import add_limit, in_text
from findleaks.commands.options import add_allocator, add_debug_types
from findleaks.commands.output import BLOCKS, STACKS, add_output, output_format
from findleaks.commands.result import Plain, blocks_status, warning_lines, written_lines
from findleaks.engine.terms import Kind, Totals
from findleaks.errors import UsageError
from findleaks.escaping import json_line
from findleaks.formatting import blocks as blocks_of
from findleaks.formatting import format_count, number, size, table, wrap
from findleaks.quoting import shell_quoted
from findleaks.results.record import SCHEMA
from findleaks.results.written import WrittenFile, written_json
from findleaks.session import Session

FILES = (*BLOCKS, *STACKS, "heap")  # Formats of files.
SHOWN = 50  # Maximum number of blocks printed as text without --limit.
TYPES = 30  # Maximum number of rows of --by type printed as text without --limit.
DESCRIBED = 1000  # Maximum number of blocks whose contents are described.


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kind", help=f"only these kinds, comma-separated: {', '.join(KINDS)} (definite and indirect)")
    parser.add_argument("--state", choices=[*STATES.values(), "all"], default="in-use", help="only blocks in this state (default: in-use)")
    parser.add_argument("--size", metavar="A-B", help="only usable sizes in this range: 48, 16-64, 4k-")
    add_allocator(parser)
    parser.add_argument(
        "--site", metavar="N", type=parse_count, help="only blocks allocated by the call stack with this number in `find --by site`"
    )
    parser.add_argument(
        "--sort", choices=("address", "size"), default="address", help="order: by address, or the largest first (default: address)"
    )
    parser.add_argument("--by", choices=("type",), help="one row for each type; blocks of unknown type by size")
    add_limit(parser, "blocks", SHOWN)
    add_output(parser, "all these blocks, or --limit of them,", FILES)
    add_debug_types(parser, filters=True)


def _filters(session: Session, args: argparse.Namespace) -> BlockFilters:
    """Return the filters that the options describe."""
    sizes = parse_size_range(args.size) if args.size else None
    allocator = check_allocator_name(session, args.allocator)
    return BlockFilters(parse_kinds(args.kind), parse_states(args.state), sizes, args.type, allocator, _site(session, args.site))


class Listing:
    """The result of `blocks`. Rows are computed while they are printed, because there may be tens
    of millions of blocks."""

    def __init__(self, session: Session, args: argparse.Namespace) -> None:
        self.session = session
        self.limit = args.limit
        self.by_size = args.sort == "size"
        self.filters = _filters(session, args)
        self.rows = BlockRows(session, self.filters)
        self.status = blocks_status(session)
        self.written: WrittenFile | None = None

    def write(self, file: str, form: str) -> None:
        """Write the blocks to a file, or their sums. Sums are by allocating call stack if stacks
        were recorded; otherwise by kind, allocator, type and size."""
        from findleaks.commands.export import block_batches, of_target, write_blocks, write_profile

        limit = self.limit or 0
        order = self.rows.largest_first(limit) if self.by_size else None
        if form in BLOCKS:
            self.written = write_blocks(self.session, self.rows, file, form, order, limit)
        else:
            from findleaks.commands.profiles import of_blocks
            from findleaks.commands.site_profile import of_sites

            found = block_batches(self.session, self.rows, order, limit)
            if len(self.session.sites) or form == "heap":
                profile = of_sites(self.session, "Blocks", "", found, form == "heap")
            else:
                profile = of_blocks(self.session, found, self.rows.names)
            self.written = write_profile(self.session, of_target(profile, self.session.target), file, form)

    def json(self) -> Iterator[Mapping[str, object]]:
        for index in self._indices(self.limit or 0):
            yield self.rows.describer.block(index).result().to_json()
        yield from self._warnings()

    def json_lines(self) -> Iterator[str]:
        limit = self.limit or 0
        yield from self.rows.json(self.rows.largest_first(limit) if self.by_size else None, limit)
        for item in self._warnings():
            yield json_line(item) + "\n"

    def _warnings(self) -> Iterator[Mapping[str, object]]:
        warnings = warnings_of(self.session)
        if warnings or self.written:
            yield {"schema": SCHEMA, "command": "blocks", **written_json(self.written), "warnings": warnings}

    def text(self, width: int, invocation: Invocation) -> Iterator[str]:
        shown = in_text(None if self.written else self.limit, SHOWN)
        found = (self.rows.describer.block(index) for index in self._indices(shown))
        rows = [_row(self.session, block, number < DESCRIBED) for number, block in enumerate(found)]
        count, held = self._counted_totals() or self.rows.totals()
        if rows:
            yield from table(("ADDRESS", "SIZE", "KIND", "WHAT"), rows, (1,), width, cut=3)
            yield ""
        if self.filters.site:
            # Few processes have recorded stacks, so this is imported here.
            from findleaks.commands.site_text import site_lines

            yield from site_lines(self.session, self.filters.site, width)
            yield ""
        more = f", {number(count - len(rows))} not shown (--limit 0)" if count > len(rows) else ""
        yield f"  {blocks_of(count)}, {size(held)}{more}"
        if not count and self.filters.sizes is not None:
            yield from wrap(_parse_sizes(self.session, self.filters.sizes), width)
        if rows:
            yield from invocation.next(f"whatis {rows[0][0]}", f"path {rows[0][0]}")
        yield from written_lines(self.written, width)
        yield from warning_lines(warnings_of(self.session), width)

    def _indices(self, limit: int) -> Iterator[int]:
        """Yield the indices of the blocks to print, in the order of printing. limit 0: all."""
        return iter(self.rows.largest_first(limit)) if self.by_size else islice(self.rows.indices(), limit or None)

    def _counted_totals(self) -> Totals | None:
        """Return totals from the counters by kind and state; None if a filter must be tested for
        each block."""
        blocks, filters = self.session.directory.blocks, self.filters
        if filters.sizes is not None or filters.type or filters.allocator or filters.site:
            return None
        if filters.kinds is None:
            parts = [blocks.totals(state) for state in filters.states]
        else:
            parts = [] if filters.none else [self.rows.graph.totals(Kind(kind)) for kind in filters.kinds]
        return Totals(sum(part.blocks for part in parts), sum(part.bytes for part in parts))


def _parse_sizes(session: Session, sizes: SizeRange) -> str:
    """Return a sentence about the usable size of the blocks that the program gets for requests of
    this size. Example: glibc returns blocks of 56 usable bytes for requests of 50."""
    directory = session.directory
    classes = (row.size for one in directory.allocators for row in one.caches(directory.blocks) if row.in_use)
    usable = min((one for one in classes if one >= sizes.low), default=0)
    about = "Sizes are usable sizes: at least what the program requested"
    return f"  {about}: requests for {sizes.low} bytes get {usable} usable bytes (--size {usable})." if usable else f"  {about}."


def _site(session: Session, number: int | None) -> int:
    """Return `number` unchanged, or 0 for None. Raises UsageError if there is no such site."""
    if number is not None and not 1 <= number <= len(session.sites):
        raise UsageError(f"no site {number}: {format_count(len(session.sites), 'allocation stack')} recorded in this process")
    return number or 0


def _row(session: Session, block: BlockInfo, describes: bool) -> tuple[str, ...]:
    """Return the cells of a row. `describes`: whether to read the contents of blocks without a
    type, which takes up to 1 ms."""
    what = block.type or (describe_untyped(session, block.address, block.size) if describes and block.kind else "") or block.hint
    return hex(block.address), number(block.size), block.kind or block.state, what


@command(arguments=_arguments)
def blocks(session: Session, args: argparse.Namespace) -> Listing | Plain:
    """List blocks by address, or the largest first: usable size in bytes, kind or state, and type.
    --by type prints how many blocks and bytes each type has. --json prints one object per block,
    each on a line of its own (JSON Lines), with the keys address, size, state, kind, allocator,
    arena, site, type, hint. The last line contains the warnings. --by type --json prints one
    object."""
    form = output_format(args, FILES)
    if args.by:
        return _by_type(session, args, form)
    listing = Listing(session, args)
    if form:
        listing.write(args.output, form)
    return listing


def _by_type(session: Session, args: argparse.Namespace, form: str) -> Plain:
    """Return the result of `blocks --by type`."""
    # Few calls of the command need these modules, so they are imported here.
    from findleaks.answers.block_types import sum_by_type
    from findleaks.commands.block_types_text import text

    if form:
        raise UsageError("blocks --by type cannot write a file: use --json")
    found = sum_by_type(session, _filters(session, args), args.limit or 0)
    options = (("--kind", args.kind), ("--allocator", args.allocator), ("--state", args.state if args.state != "in-use" else None))
    words = "".join(f" {name} {shell_quoted(word)}" for name, word in options if word)
    shown = in_text(args.limit, TYPES) or len(found.types)
    return Plain(session, "blocks", found, partial(text, found, shown, words), blocks_status(session))
