"""Text of `verdict`: how much memory is resident, who owns it, the problems, and what to try."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

from findleaks.answers.verdict import FoundVerdict
from findleaks.audit.accounting import Accounting, Share
from findleaks.audit.leak_commands import select_usable_commands
from findleaks.commands import Invocation
from findleaks.formatting import NO_BREAK, blocks, format_count, hanging, number, printable, size, some, wrap
from findleaks.results.share_sort import ShareSort
from findleaks.runtimes.finding import Finding
from findleaks.session import Session

BAR = 20  # Number of columns of the bar for a share of 100 %.
# A space at which a line is not broken.
_UNIT = re.compile(r"(?<=\d) (%|×|B\b|[KMGT]iB\b|blocks\b|threads\b)")
_LIMITS = ("truncated-core", "unread-memory")
"""Kinds of findings about memory that findleaks cannot see. If they come first, they are printed
above the table, because the table lacks this memory."""
SMALL = 1000
"""Shares that are smaller than 1/SMALL of the total are merged into one row if there are several.
Owners with less reserved address space than that are not named."""


def text(session: Session, answer: FoundVerdict, width: int, invocation: Invocation) -> Iterator[str]:
    accounting, found = answer.accounting, answer.findings
    limits = list(takewhile(lambda finding: finding.kind in _LIMITS, found))
    for finding in limits:
        yield from wrap(f"{finding.title} {finding.cause}".rstrip(), width)
        if finding.remedies:
            yield from _hanging("  try: ", "; ".join(finding.remedies), width)
        yield from invocation.next(*finding.commands)
        yield ""
    yield from wrap(_headline(session, accounting), width)
    yield ""
    yield from _table(accounting, width)
    absent = sum(store.absent for store in accounting.stores)
    if accounting.known and absent > accounting.total // 20:
        yield f"  {size(absent)} more of heaps are mapped but not resident"
    yield from wrap(_describe_reserved(accounting), width)
    for note in answer.result.notes:
        yield from wrap(f"  {note}", width)
    yield ""
    for at, finding in enumerate(found[len(limits) :], 1):
        yield from _finding(session, at, finding, width, invocation)


def _describe_reserved(accounting: Accounting) -> str:
    """Return a clause about reserved address space without memory; "" if it is at most a twentieth
    of the total."""
    total = sum(one.bytes for one in accounting.reserved)
    if total <= accounting.total // 20:
        return ""
    owners = [f"{printable(one.owner)}: {size(one.bytes)}" for one in accounting.reserved if one.owner and one.bytes * SMALL >= total]
    return f"  {size(total)} more address space is reserved without memory" + (f" ({', '.join(owners)})" if owners else "")


def _headline(session: Session, accounting: Accounting) -> str:
    swapped = f", {size(accounting.swapped)} swapped out" if accounting.swapped else ""
    if not accounting.known:
        kind = "process" if session.target.live else "core"
        return (
            f"{size(accounting.total)} mapped. It is unknown which pages of this {kind} were resident: all sizes are mapped "
            "bytes, and the process may never have touched most of them"
        )
    if accounting.source == "holes of the core":
        return f"{size(accounting.total)} resident in the core, which contains only parts of mapped files{swapped}"
    return f"{size(accounting.total)} resident{swapped}"


def _table(accounting: Accounting, width: int) -> Iterator[str]:
    total = max(accounting.total, 1)
    shown = [share for share in accounting.shares if share.bytes * SMALL >= total]
    rest = [share for share in accounting.shares if share.bytes * SMALL < total and share.bytes]
    if len(rest) == 1:
        shown, rest = [*shown, *rest], []
    rows = [(share.bytes, label(share)) for share in shown]
    if rest:
        rows.append((sum(share.bytes for share in rest), f"{len(rest)} smaller shares: {some([label(share) for share in rest], 2)}"))
    longest = round(BAR * max((held for held, _ in rows), default=0) / total)
    for held, name in rows:
        percent = 100 * held / total
        bar = "█" * round(BAR * held / total)
        lead = f"  {size(held):>8}  "
        if longest:
            lead += f"{f'{percent:.0f} %' if percent >= 0.5 else '':>5}  {bar:<{longest}}  "
        yield from _hanging(lead, name, width)


def _hanging(lead: str, words: str, width: int) -> Iterator[str]:
    """Yield `words` after `lead`, on as many lines as needed. A number and its unit stay on one
    line."""
    whole = _UNIT.sub(NO_BREAK + r"\1", words)
    return (line.replace(NO_BREAK, " ") for line in hanging(lead, whole, width))


def _names(share: Share) -> str:
    """Return the names of the largest parts: ": /memfd:frame, /dev/zero"."""
    names = [printable(part.name.removesuffix(" (deleted)"), 60) for part in share.parts[:2] if part.name]
    return ": " + ", ".join(names) if names else ""


def label(share: Share) -> str:
    """Return the name of a share: "glibc 2.36: free and not returned, in 16 arenas"."""
    count, threads = number(share.count), format_count(share.count, "thread")
    stacks = "stack" if share.count == 1 else "stacks"
    if share.sort == ShareSort.FILES:
        names = [printable(part.name.partition(".so")[0], 60) for part in share.parts[:3] if part.name]
        return f"files mapped ({', '.join(names) or 'without names'}{' …' if share.count > 3 else ''})"
    words = {
        "in-use": f"{share.of}: in use, {blocks(share.count)}",
        "cached": f"{share.of}: free, in thread caches",
        "kept": f"{share.of}: free and not returned{f', in {count} arenas' if share.count > 1 else ''}",
        "metadata": f"{share.of}: metadata (headers, descriptors)",
        "runtime": f"{share.of}{f': {share.detail}' if share.detail else ''}",
        "stacks": f"{stacks} of {threads}",
        "unjoined": f"{stacks} of {threads} that ended and {'was' if share.count == 1 else 'were'} never joined",
        "cached-stacks": "stacks of ended threads, cached for new ones",
        "shared": f"shared memory ({format_count(share.count, 'mapping')}{_names(share)})",
        "kernel": "kernel mappings (vdso)",
        "leaked-mappings": f"{format_count(share.count, 'anonymous mapping')} that nothing refers to",
        "unknown": f"unattributed ({format_count(share.count, 'mapping')})",
    }
    return words[share.sort]


def _finding(session: Session, at: int, finding: Finding, width: int, invocation: Invocation) -> Iterator[str]:
    lead = f"  {at}. "
    cause = finding.cause if finding.kind != "kept" else f"Cause: {finding.cause[:1].lower()}{finding.cause[1:]}"
    yield from _hanging(lead, f"{finding.title} {cause}" if finding.cause else finding.title, width)
    if finding.remedies:
        yield from _hanging("     try: ", "; ".join(finding.remedies), width)
    commands = select_usable_commands(session, finding.commands)
    if commands:
        yield from ("   " + line for line in invocation.next(*commands))
