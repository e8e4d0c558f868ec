"""The finding about mappings that nothing refers to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.audit.accounting import Accounting
from findleaks.audit.findings.significance import is_significant
from findleaks.audit.unreferenced_mappings import find_unreferenced_mappings
from findleaks.errors import UnreadableMemory
from findleaks.formatting import counted, number, size, some
from findleaks.results.share_sort import ShareSort
from findleaks.runtimes.base import Finding
from findleaks.session import Session
from findleaks.target.base import Range

_SIZES = 3  # sizes that are named
_SHOWN = 64  # bytes of a mapping that are looked at for a text


def find_leaked_mappings(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Yield one finding, if mappings that nothing refers to have a tenth of the memory."""
    share = accounting.share(ShareSort.UNKNOWN)
    if share is None or not is_significant(share.bytes, accounting):
        return
    ranges = find_unreferenced_mappings(session)
    resident = _resident_bytes(session, ranges)
    mapped = sum(end - start for start, end in ranges)
    if not is_significant(mapped if resident is None else resident, accounting):
        return
    sizes = Counter(end - start for start, end in ranges).most_common()
    named = some([f"{number(count)} of {size(one)}" for one, count in sizes], _SIZES)
    amount = size(mapped) if resident is None or resident == mapped else f"{size(mapped)} ({size(resident)} of it resident)"
    largest = max(ranges, key=lambda one: one.end - one.start)
    content = _content(session, largest)
    title = f"Leaked: {amount} in {counted(len(ranges), 'anonymous mapping')} that no word outside refers to: {named}."
    cause = "Memory from mmap was not unmapped. The kernel merges neighbouring mappings, so that one may come from several calls of mmap."
    cause += f" The largest begins with {content}." if content else ""
    cause += " Blocks that only these mappings refer to count as reachable."
    commands = (f"whatis {largest.start:#x}", *(["count mmap"] if session.target.live else []))
    facts: dict[str, object] = {
        "mappings": len(ranges),
        "sizes": [{"size": one, "mappings": count} for one, count in sizes[:20]],
        "examples": [hex(one.start) for one in ranges[:3]],
        "content": content or None,
    }
    yield Finding("leaked-mappings", mapped, title, cause, (), commands, facts, resident)


def _resident_bytes(session: Session, ranges: Sequence[Range]) -> Optional[int]:
    parts = [session.target.resident(start, end) for start, end in ranges]
    return None if None in parts else sum(part for part in parts if part is not None)


def _content(session: Session, one: Range) -> str:
    try:
        return session.types.hint(session.target.read(one.start, _SHOWN))
    except UnreadableMemory:
        return ""
