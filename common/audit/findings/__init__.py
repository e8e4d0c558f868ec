"""Findings of `verdict`: what is wrong with a process's memory and what to try, the largest first.

They are a crash, leaked blocks, memory held or not returned, memory that is not read, unjoined
threads, and large shares of other kinds. A finding says only what was measured and which command
shows it. Findings do not overlap: each byte belongs to one of them at most. A healthy process has
the one finding "nothing leaked"."""

from __future__ import annotations

from collections.abc import Callable

from findleaks.allocators.retention import FreeMemory
from findleaks.audit.accounting import Accounting, Store
from findleaks.audit.findings.crash import crash
from findleaks.audit.findings.figures import BlockFigures
from findleaks.audit.findings.free_memory import cached_memory, freed_by_runtimes, unreturned_memory
from findleaks.audit.findings.held import held_memory
from findleaks.audit.findings.large_shares import mapped_files, shared_memory, thread_stacks, unlisted_heaps
from findleaks.audit.findings.leaked import leaked_memory, possibly_leaked, uncollected
from findleaks.audit.findings.threads import unjoined_threads
from findleaks.audit.findings.unread import unknown_owner, unread_heaps
from findleaks.audit.unread_memory import unread_memory
from findleaks.runtimes import directory as runtimes
from findleaks.runtimes.base import Finding
from findleaks.session import Session


def findings(session: Session, accounting: Accounting, measure: Callable[[Store], FreeMemory]) -> list[Finding]:
    """All findings, the largest first; what is not wrong but worth saying comes last. Memory that
    is not read comes first if it is most of the memory. If residency is unknown, memory of no known
    owner follows what is known to be there, as its pages may never have been touched. `measure`
    examines an allocator's free memory."""
    figures = BlockFigures(session, accounting.known)
    found = [*unreturned_memory(session, accounting, measure), *cached_memory(accounting)]
    freed = list(freed_by_runtimes(session, accounting))
    scopes = list(runtimes.findings(session.target))
    found += [*freed, *scopes, *unjoined_threads(accounting)]
    shared = list(shared_memory(session, accounting))
    found += [*thread_stacks(session, accounting), *shared, *mapped_files(session, accounting)]
    unread = list(unread_heaps(session, accounting, figures, sum(one.weight for one in [*freed, *shared])))
    unowned = [] if unread else list(unknown_owner(session, accounting))
    found += [] if unread else unlisted_heaps(session, accounting)
    possible = []
    inside = unread_memory(session).is_inside  # malloc's blocks are what is not read
    if not inside:
        found += held_memory(session, accounting, figures, scopes)
        possible = list(possibly_leaked(session, figures))
    leaked = leaked_memory(session, figures, inside or bool(possible))
    found += [*possible, *uncollected(session, figures), *([leaked] if leaked.bytes else []), *(unowned if accounting.known else [])]
    found.sort(key=lambda finding: -finding.weight)
    found[:0] = crash(session)
    found += [leaked] if leaked.kind == "next-to-nothing-lost" else []
    found += unowned if not accounting.known else []
    return [*unread, *found] if leaked in found else [*unread, *found, leaked]
