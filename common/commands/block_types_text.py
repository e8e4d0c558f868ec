"""Text of `blocks --by type`."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.commands import Invocation
from findleaks.commands.untyped_reason import join_candidates
from findleaks.formatting import blocks as blocks_of
from findleaks.formatting import number, printable, size, table
from findleaks.quoting import shell_quoted
from findleaks.results.block_types import BlocksOfType, BlockTypes

HEADINGS = ("BLOCKS", "BYTES", "LEAKED", "TYPE", "EXAMPLE")


def text(found: BlockTypes, shown: int, words: str, width: int, invocation: Invocation) -> Iterator[str]:
    """Yield the first `shown` rows. `words`: the options that selected the blocks."""
    rows = [(number(one.blocks), size(one.bytes), _format_leaked(one), _what(one), hex(one.example)) for one in found.types[:shown]]
    if rows:
        yield from table(HEADINGS, rows, (0, 1, 2), width, cut=3)
        yield ""
    hidden = found.rows - len(rows)
    more = f", {number(hidden)} rows not shown (--limit 0)" if hidden > 0 else ""
    yield f"  {blocks_of(found.total.blocks)}, {size(found.total.bytes)}; of known type: {size(found.typed.bytes)}{more}"
    if found.types:
        most = found.types[0]
        choice = f"--type {shell_quoted(most.type)}" if most.type else f"--size {most.size}"
        yield from invocation.next(f"whatis {most.example:#x}", f"blocks {choice}{words} --limit 10")


def _format_leaked(one: BlocksOfType) -> str:
    return size(one.leaked.bytes) if one.leaked.blocks else "–"


def _what(one: BlocksOfType) -> str:
    if one.type:
        return printable(one.type, 200)
    contents = f"e.g. {one.contents}" if one.contents else "type not known"
    why = f": {one.reason}" if one.reason else ""
    types = f", perhaps {join_candidates(one.candidates)}" if one.candidates else ""
    return f"{number(one.size or 0)} B, {contents}{why}{types}"
