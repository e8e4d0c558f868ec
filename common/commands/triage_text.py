"""Text of `triage`: a line for each core when it has been read, then the groups."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Optional

from findleaks.commands import Invocation
from findleaks.commands.output import file_lines
from findleaks.formatting import format_count, number, printable, size, table, wrap
from findleaks.quoting import shell_quoted
from findleaks.triage.groups import LeakGroup
from findleaks.triage.row import FAILED, OK, PARTIAL, Row

if TYPE_CHECKING:
    from findleaks.commands.triage import Groups

CORE, PROGRAM, SIGNAL = 26, 14, 8  # Widths in columns.
HEAD = ("CORES", "PROGRAM", "LEAKED", "A CORE", "LEAK", "SIGNATURE", "SINCE", "BUILDS")


def row_lines(row: Row, name: str, head: bool, width: int) -> Iterator[str]:
    """Yield the line of a core. The widths are fixed, because later rows are not known yet."""
    if head:
        yield _line("CORE", "STATUS", "PROGRAM", "SIGNAL", "LEAKED", "FINDING", width)
    said = row.error or (row.findings[0].title if row.findings else "")
    lost = size(row.lost_bytes) if row.lost_bytes is not None else "–"
    yield _line(name, row.status, row.program, row.signal, lost, said, width)


def _line(core: str, status: str, program: str, signal: str, lost: str, said: str, width: int) -> str:
    shown = printable(core, 1000)
    shown = shown if len(shown) <= CORE else "…" + shown[1 - CORE :]
    left = f"  {shown:{CORE}}  {status:7}  {printable(program, PROGRAM):{PROGRAM}}  {signal:{SIGNAL}}  {lost:>8}  "
    return (left + printable(said, max(width - len(left), 12))).rstrip()


def summary_lines(final: Groups, top: int, width: int, invocation: Invocation) -> Iterator[str]:
    """Yield lines about the groups of all cores, and about the files that were written."""
    yield ""
    groups = final.groups[:top] if top else final.groups
    if groups:
        yield from table(HEAD, [_row(group) for group in groups], (0, 2, 3), width, cut=4)
        if len(groups) < len(final.groups):
            yield f"  … {format_count(len(final.groups) - len(groups), 'more group')} (--top 0)"
        doubtful = sum(group.doubtful for group in final.groups)
        if doubtful:
            said = f"the last {format_count(doubtful, 'group')} of all" if doubtful < len(final.groups) else "these"
            yield from wrap(f"  {said}: only in cores read in part: references to the blocks may be in missing memory", width)
        yield ""
    yield from wrap(f"  {headline(final)}", width)
    if final.left:
        on = " (--resume continues)" if final.database else ""
        yield f"  interrupted: {format_count(final.left, 'core')} left{on}"
    if final.limit is not None:
        over = final.over
        yield f"  {format_count(over, 'core')} {'has' if over == 1 else 'have'} leaked more than {size(final.limit)} (--fail-over)"
    for file in final.written:
        for line in file_lines(file):
            yield from wrap(line, width)
    if groups and groups[0].example:
        yield from invocation._replace(target=shell_quoted(groups[0].example)).next("find --kind definite", "verdict")
    for note in final.notes:
        yield from wrap(f"warning: {note}", width)


def headline(final: Groups) -> str:
    """Return the summary: "1,204 cores, 31 GiB: 1,181 read, 14 in part, 9 not; 23 GiB leaked; 10 s,
    2 at a time"."""
    counts = final.counts
    held = sum(row.size for row in final.rows)
    parts = [f"{number(counts[status])} {word}" for status, word in ((OK, "read"), (PARTIAL, "in part"), (FAILED, "not")) if counts[status]]
    lost = sum(row.lost_bytes or 0 for row in final.rows)
    work = f"{lasting(final.seconds)}, {final.jobs} at a time"
    return f"{format_count(len(final.rows), 'core')}, {size(held)}: {', '.join(parts) or 'none read'}; {size(lost)} leaked; {work}"


def _row(group: LeakGroup) -> tuple[str, ...]:
    what = group.what + (f", e.g. {group.hint}" if group.hint else "")
    builds = sorted(group.builds)
    shown = (builds[0][:8] if len(builds) == 1 else f"{len(builds)} builds") if builds else "–"
    counts = number(group.cores), printable(group.program, 20) or "?", size(group.bytes), size(group.bytes // max(group.cores, 1))
    return *counts, what, group.signature, day(group.first), shown + (" NEW" if group.new else "")


def day(when: Optional[float]) -> str:
    """Return a date; "–" if it is unknown."""
    if when is None:
        return "–"
    try:
        return time.strftime("%Y-%m-%d", time.localtime(when))
    except (OverflowError, ValueError, OSError):
        return "–"


def lasting(seconds: float) -> str:
    """Return a time span as text: "12 s", "4 min 10 s", "2 h 5 min"."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def bytes_of(count: int) -> str:
    return size(max(count, 0))
