"""`find --by site`: lost blocks under the stacks that allocated them, as JSON and text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from findleaks.audit.leak_groups import Leak, what
from findleaks.audit.site_stacks import SiteNames
from findleaks.commands import Invocation
from findleaks.commands.find_text import closing, opening
from findleaks.commands.site_text import amounts, recorders_json, sampling_lines, site_json, stack_lines, unrecorded_lines
from findleaks.formatting import counted, number, size, table
from findleaks.session import Session

HEAD = ("LOST", "BLOCKS", "BYTES", "+ INDIRECT", "SITE", "WHAT", "EXAMPLE")
INDENT = 4  # columns before a frame


def add_sites(session: Session, body: dict[str, Any], leaks: Sequence[Leak], limit: int) -> None:
    """Put the sites' stacks into the groups of the JSON object, which are those of `leaks`, and
    what to type next, of the first with a site of `limit` groups (0: of all)."""
    names = SiteNames(session)
    sited = next((leak for leak in leaks[: limit or None] if leak.site), None)
    if body["totals"]["in_use"]["blocks"]:
        body["next"] = [f"blocks --site {sited.site}", f"path {sited.examples[0]:#x}"] if sited else ["find"]
    body["recorders"] = recorders_json(session)
    for group, leak in zip(body["groups"], leaks):
        group["site"] = site_json(session, names, leak.site) if leak.site else None


def site_text(
    session: Session, body: dict[str, Any], leaks: Sequence[Leak], limit: int, frames: int, width: int, invocation: Invocation
) -> Iterator[str]:
    """All lines of the text. `frames` of each stack; 0: all."""
    if not (yield from opening(session, body, width, invocation)):
        return
    if not len(session.sites):
        yield from unrecorded_lines(session, width)
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
        yield f"  … {counted(len(leaks) - len(rows), 'more group')} (--limit 0 shows all)"
        yield ""
    yield from closing(session, body, width)
    yield from sampling_lines(session, width)
    yield from invocation.next(width, *body["next"])


def _row(leak: Leak, sampled: bool) -> tuple[str, ...]:
    blocks, bytes_ = amounts(leak, leak.estimated)
    indirect = f"{number(leak.indirect_blocks)} / {size(leak.indirect_bytes)}" if leak.indirect_blocks else "–"
    site = str(leak.site) if leak.site else "–"
    words = what(leak) if leak.site else f"{what(leak)}; not {'sampled' if sampled else 'recorded'}"
    return leak.kind.name.lower(), blocks, bytes_, indirect, site, words, hex(leak.examples[0])
