"""Report memory that findleaks does not read, and unattributed memory."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.audit.accounting import Accounting
from findleaks.audit.diagnostics import managed_heaps
from findleaks.audit.findings.figures import BlockFigures
from findleaks.audit.findings.retained import describe_size
from findleaks.audit.findings.significance import is_significant
from findleaks.audit.unread_memory import find_unread_memory
from findleaks.engine.terms import Kind
from findleaks.formatting import number, size
from findleaks.results.share_sort import ShareSort
from findleaks.runtimes.finding import Finding
from findleaks.session import Session


def find_unread_heaps(session: Session, accounting: Accounting, figures: BlockFigures, reported: int) -> Iterator[Finding]:
    """Yield one finding if most of the writable memory is not read.

    `reported`: bytes of this memory that other findings report."""
    unread = find_unread_memory(session)
    if unread.is_inside:
        kept = figures.of(Kind.REACHABLE, Kind.POSSIBLE)
        most, count = figures.most_common_size(Kind.REACHABLE)
        facts = {**unread.result().to_json(), "blocks": kept.blocks, "size": most, "blocks_of_size": count}
        more = ("roots", f"blocks --size {most} --limit 10")
        yield Finding("unread-memory", kept.bytes, unread.sentences(), describe_size(most, count), (), more, facts, kept.resident)
    elif unread.is_most:
        largest = _largest(accounting)
        commands = [*(["runtime"] if session.runtimes else []), *([f"whatis {largest:#x}"] if largest else [])] or ["map"]
        left = max(unread.bytes - reported, 0)
        resident = left if accounting.known else None
        yield Finding("unread-memory", left, unread.sentences(), "", (), tuple(commands), unread.result().to_json(), resident)


def _largest(accounting: Accounting) -> int:
    """Return the address of the largest unattributed mapping; 0 if little memory is
    unattributed."""
    share = accounting.share(ShareSort.UNKNOWN)
    return share.parts[0].address if share is not None and share.parts and is_significant(share.bytes, accounting) else 0


def find_unattributed_memory(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Yield one finding if much memory is unattributed."""
    share = accounting.share(ShareSort.UNKNOWN)
    if share is not None and is_significant(share.bytes, accounting) and share.parts:
        most = share.parts[0]
        title = f"{size(share.bytes)} in {number(share.count)} mappings are unattributed: no known allocator or runtime owns them"
        title += f"{managed_heaps(session)}."
        title += "" if accounting.known else " It is unknown how much of it was ever touched."
        cause = f"The largest, at {most.address:#x}, has {size(most.bytes)}."
        facts: dict[str, object] = {"mappings": share.count, "largest": hex(most.address), "largest_bytes": most.bytes}
        commands = (f"whatis {most.address:#x}", *(["runtime"] if session.runtimes else []))
        resident = share.bytes if accounting.known else None
        yield Finding("unknown-owner", share.bytes, title, cause, (), commands, facts, resident)
