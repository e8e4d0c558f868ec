"""Text of `caches --sites`: the call stacks that allocated the blocks of each size class."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import groupby

from findleaks.answers.caches import FoundCaches, size_class
from findleaks.audit.cache_sites import ClassSite
from findleaks.audit.site_stacks import SiteNames
from findleaks.commands import Invocation
from findleaks.commands.caches_text import headline, size_name
from findleaks.commands.limits import first, in_text
from findleaks.commands.site_text import amounts, sampling_lines, unrecorded_lines
from findleaks.formatting import format_count, table, wrap
from findleaks.session import Session

STACKS = 5  # Maximum number of stacks of a size class printed as text without --limit.
HEAD = ("SIZE", "BLOCKS", "BYTES", "SITE", "ALLOCATED BY")


def sites_text(session: Session, found: FoundCaches, args: argparse.Namespace, width: int, invocation: Invocation) -> Iterator[str]:
    """Yield all lines of the text."""
    if not len(session.sites):
        yield from unrecorded_lines(session, found.result.recording_hints, width)
        yield from invocation.next("caches")
        return
    names = SiteNames(session)
    for instance, group in groupby(found.sites, key=lambda one: one.instance):
        yield from wrap(headline(found.holdings[instance]), width)
        yield ""
        rows, more = [], 0
        for _, alike in groupby(group, key=size_class):
            listed = list(alike)
            shown = first(listed, in_text(args.limit, STACKS))
            more += len(listed) - len(shown)
            rows += [_row(names, one, not i) for i, one in enumerate(shown)]
        yield from table(HEAD, rows, (0, 1, 2, 3), width, cut=4)
        if more:
            yield f"  … {format_count(more, 'more stack')} (--limit 0)"
        yield ""
    if not found.sites:
        yield "no block in use of these sizes has a recorded stack"
    yield from sampling_lines(session, width)
    largest = max(found.sites, key=lambda one: one.weight.bytes, default=None)
    yield from invocation.next(*([f"blocks --site {largest.site}"] if largest is not None else []), "find --by site")


def _row(names: SiteNames, one: ClassSite, leads: bool) -> tuple[str, ...]:
    return size_name(one.name, one.size) if leads else "", *amounts(one.live, one.estimated), str(one.site), names.brief(one.site, 6)
