"""Text of `find --by site`: leaked blocks by the call stacks that allocated them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from findleaks.audit.leak_groups import Leak, describe_leak
from findleaks.audit.site_stacks import SiteNames
from findleaks.commands import Invocation
from findleaks.commands.find_text import closing, commands, opening
from findleaks.commands.site_text import amounts, sampling_lines, stack_lines, unrecorded_lines
from findleaks.formatting import format_count, number, size, table
from findleaks.results.leaks import Leaks
from findleaks.session import Session

HEAD = ("KIND", "BLOCKS", "BYTES", "+ INDIRECT", "SITE", "WHAT", "EXAMPLE")
INDENT = 4  # Number of columns before a frame.


def next_of_sites(session: Session, found: Leaks, leaks: Sequence[Leak], limit: int) -> list[str]:
    """Return suggested commands for the first group that has a site. Only the first `limit` groups
    are considered (0: all)."""
    sited = next((leak for leak in leaks[: limit or None] if leak.site), None)
    if not found.totals.in_use.blocks:
        return commands(session, leaks, limit)
    return [f"blocks --site {sited.site}", f"path {sited.examples[0]:#x}"] if sited else ["find"]


def site_text(
    session: Session, found: Leaks, leaks: Sequence[Leak], limit: int, frames: int, width: int, invocation: Invocation
) -> Iterator[str]:
    """Yield all lines of the text. `frames`: number of frames of each stack; 0: all."""
    if not (yield from opening(session, found, width, invocation)):
        return
    if not len(session.sites):
        yield from unrecorded_lines(session, found.recording_hints, width)
        yield ""
    rows = leaks[: limit or None] if len(session.sites) else []
    names = SiteNames(session)
    sampled = any(one.sampled for one in session.sites.recordings)
    lines = table(HEAD, [_row(leak, sampled) for leak in rows], (1, 2, 3, 4), width, cut=5)
    if rows:
        yield lines[0]
    for leak, line in zip(rows, lines[1:]):
        yield line
        if leak.site:
            yield from (" " * INDENT + frame for frame in stack_lines(names, leak.site, width - INDENT, frames))
        yield ""
    if len(rows) < len(leaks) and rows:
        yield f"  … {format_count(len(leaks) - len(rows), 'more group')} (--limit 0 shows all)"
        yield ""
    yield from closing(session, found, width)
    yield from sampling_lines(session, width)
    yield from invocation.next(*found.next)


def _row(leak: Leak, sampled: bool) -> tuple[str, ...]:
    blocks, bytes_ = amounts(leak, leak.estimated)
    indirect = f"{number(leak.indirect_blocks)} / {size(leak.indirect_bytes)}" if leak.indirect_blocks else "–"
    site = str(leak.site) if leak.site else "–"
    words = describe_leak(leak) if leak.site else f"{describe_leak(leak)}; not {'sampled' if sampled else 'recorded'}"
    return leak.kind.name.lower(), blocks, bytes_, indirect, site, words, hex(leak.examples[0])
