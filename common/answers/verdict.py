"""Answer the question "who owns the memory, and what is wrong with it?"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, cast

from findleaks.allocators.retention import FreeMemory
from findleaks.audit.accounting import Accounting, Store, account_memory
from findleaks.audit.conventions import applied_heuristics
from findleaks.audit.diagnostics import list_reader_notes
from findleaks.audit.findings import find_findings
from findleaks.audit.findings.ending import describe_end
from findleaks.audit.findings.without_finding import explain_shares
from findleaks.audit.kernel_pointers import describe_unreadable_pointers, summarise_kernel_pointers
from findleaks.audit.residency import read_residency
from findleaks.audit.unread_memory import find_unread_memory
from findleaks.results.verdict import AllocatorMemory, ArenaMemory, ReservedMemory, Share, ShareKind, SharePart, Verdict
from findleaks.runtimes.finding import Finding
from findleaks.session import Session
from findleaks.target.residency.presence import Presence
from findleaks.value_classes import NamedTuple


class FoundVerdict(NamedTuple):
    """The result, and the analysis that it was computed from."""

    result: Verdict
    accounting: Accounting
    findings: Sequence[Finding]


def assess_memory(session: Session, residency_file: str = "") -> tuple[Accounting, Sequence[Finding]]:
    """Return all memory by owner, and the findings. There are no findings if the heap is missing
    from the target."""
    # The residency is read first, because reading the heaps makes pages of files resident.
    pages = read_residency(session, residency_file)
    accounting = account_memory(session, pages)
    if session.target.lacks:
        return accounting, ()
    return accounting, find_findings(session, accounting, lambda store: _free_memory(session, store, pages))


def account_for_memory(session: Session, residency_file: str = "") -> FoundVerdict:
    """Return all memory by owner, and the findings. `residency_file`: a file that `map
    --save-residency` wrote, with the pages that were resident."""
    accounting, found = assess_memory(session, residency_file)
    resident, mapped = memory_totals(accounting)
    result = Verdict(
        resident=resident,
        mapped=mapped,
        residency=accounting.source,
        rss=accounting.rss,
        swapped=accounting.swapped,
        reserved=[ReservedMemory(one.owner or None, one.bytes) for one in accounting.reserved],
        heuristics=applied_heuristics(session, "auto"),
        shares=memory_shares(accounting),
        allocators=[_store(store) for store in accounting.stores],
        unread=find_unread_memory(session).result(),
        notes=[
            *describe_end(session, found),
            *list_reader_notes(session),
            *describe_unreadable_pointers(session),
            *explain_shares(session, accounting, found),
        ],
        kernel=summarise_kernel_pointers(session),
        managed=[one.result() for one in accounting.native],
        findings=[finding.result() for finding in found],
    )
    return FoundVerdict(result, accounting, found)


def memory_totals(accounting: Accounting) -> tuple[Optional[int], Optional[int]]:
    """Return the resident and the mapped bytes of the process. Mapped bytes are None unless
    residency is unknown; then the resident bytes are None."""
    return (accounting.total, None) if accounting.known else (None, accounting.total)


def memory_shares(accounting: Accounting) -> list[Share]:
    """Return all memory by owner, the largest share first."""
    total = accounting.total
    return [
        Share(
            cast(Any, one.sort),
            one.of or None,
            one.bytes,
            percent=round(100 * one.bytes / total, 2) if total else 0.0,
            count=one.count,
            detail=one.detail,
            largest=tuple(SharePart(part.address or None, part.name or None, part.bytes) for part in one.parts),
            kinds=tuple(ShareKind(kind.name, kind.bytes, kind.mappings) for kind in one.kinds),
        )
        for one in accounting.shares
    ]


def _free_memory(session: Session, store: Store, pages: Presence) -> FreeMemory:
    # Computed only if an allocator has much free memory.
    from findleaks.audit.pages import measure_free

    return measure_free(session, store.allocator, store.arenas, pages)


def _store(store: Store) -> AllocatorMemory:
    allocator = store.allocator
    return AllocatorMemory(
        allocator.name,
        allocator.version,
        allocator.where,
        in_use=store.in_use,
        cached=store.cached,
        kept=store.kept,
        metadata=store.own,
        not_resident=store.absent,
        arenas=[ArenaMemory(one.arena, one.in_use, one.cached, one.free, one.spare, one.own, one.mapped) for one in store.arenas],
    )
