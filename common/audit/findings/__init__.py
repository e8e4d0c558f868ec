"""Find the problems of a process's memory and their remedies, for `verdict`; the largest first.

Findings are: a crash, deadlocks, leaked blocks, memory that is retained or not returned, memory
that is not read, unjoined threads, files that stay open, and large shares of other kinds. A finding
states only what was measured, and names the command that shows it. Findings do not overlap: each
byte belongs to at most one of them. A healthy process has the single finding "nothing leaked"."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from findleaks.allocators.retention import FreeMemory
from findleaks.audit.accounting import Accounting, Store
from findleaks.audit.findings.deadlocks import find_deadlocked_threads
from findleaks.audit.findings.figures import LEAKED, BlockFigures
from findleaks.audit.findings.free_memory import find_cached_memory, find_memory_freed_by_runtimes, find_unreturned_memory
from findleaks.audit.findings.large_shares import (
    find_class_metadata,
    find_mapped_files,
    find_shared_memory,
    find_unlisted_heaps,
)
from findleaks.audit.findings.leaked import find_leaked_memory, find_possible_leaks, find_uncollected_garbage
from findleaks.audit.findings.leaked_mappings import find_leaked_mappings
from findleaks.audit.findings.module_data import find_module_data
from findleaks.audit.findings.open_files import find_open_files
from findleaks.audit.findings.retained import find_retained_memory
from findleaks.audit.findings.thread_stacks import find_thread_stacks, has_unexplained_stacks
from findleaks.audit.findings.threads import find_unjoined_threads
from findleaks.audit.findings.truncation import find_truncation
from findleaks.audit.findings.unread import find_unattributed_memory, find_unread_heaps
from findleaks.audit.findings.without_finding import has_unexplained_blocks
from findleaks.audit.unread_memory import LEAST, find_unread_memory
from findleaks.engine.contract import Blocks, Graph
from findleaks.formatting import size
from findleaks.runtimes import directory as runtimes
from findleaks.runtimes.finding import OF_MAPPINGS, Finding
from findleaks.session import Session
from findleaks.value_classes import replace


def find_findings(session: Session, accounting: Accounting, measure: Callable[[Store], FreeMemory]) -> list[Finding]:
    """Return all findings, the largest first. `measure` examines an allocator's free memory.

    A core that is cut off comes first, then memory that is not read, if it is most of the memory.
    Unattributed memory comes after the others if residency is unknown, as its pages may never have
    been touched. Findings about healthy memory ("nothing leaked") come last."""
    figures = BlockFigures(session, accounting.known)
    found = [*find_unreturned_memory(session, accounting, measure), *find_cached_memory(accounting)]
    freed = list(find_memory_freed_by_runtimes(session, accounting))
    scopes = list(runtimes.findings(session.target))
    of_runtimes = [
        (runtime, one)
        for runtime in session.runtimes
        for finding in runtime.findings()
        for one in exclude_leaked_blocks(session.graph(), session.directory.blocks, finding)
    ]
    own = [finding for _, finding in of_runtimes]
    found += [*own, *freed, *scopes, *find_unjoined_threads(accounting), *find_open_files(session)]
    shared = list(find_shared_memory(session, accounting))
    found += [*find_thread_stacks(session, accounting), *shared, *find_mapped_files(session, accounting)]
    found += find_module_data(session, accounting)
    mappings = list(find_leaked_mappings(session, accounting, figures))
    found += mappings
    mapped = [one for one in own if one.kind in OF_MAPPINGS]
    unread = list(find_unread_heaps(session, accounting, figures, sum(one.weight for one in [*freed, *shared, *mapped])))
    unowned = [] if unread else list(find_unattributed_memory(session, accounting))
    found += find_class_metadata(session, accounting)
    found += [] if unread else find_unlisted_heaps(session, accounting)
    possible = []
    inside = find_unread_memory(session).is_inside  # The unread memory consists of blocks of malloc
    if not inside:
        found += find_retained_memory(session, accounting, figures, [*scopes, *(one for one in own if one.of_blocks)], own)
        possible = list(find_possible_leaks(session, figures))
    leaked = find_leaked_memory(session, figures, inside or bool(possible))
    if not leaked.bytes and has_unexplained_blocks(accounting, figures, found):
        leaked = replace(leaked, commands=("roots", *leaked.commands))
    crash = list(_find_crash(session))
    if not leaked.bytes and ((session.target.crashed and not crash) or has_unexplained_stacks(accounting, found)):
        leaked = replace(leaked, commands=("stacks", *leaked.commands))
    found += [
        *possible,
        *find_uncollected_garbage(session, figures),
        *([leaked] if leaked.bytes else []),
        *(unowned if accounting.known else []),
    ]
    found.sort(key=lambda finding: -finding.rank)
    found[:0] = [*(crash or _find_damage(session)), *find_deadlocked_threads(session.target)]
    cut_off = list(find_truncation(session))
    found += [leaked] if leaked.kind == "next-to-nothing-lost" else []
    found += unowned if not accounting.known else []
    # A finding that explains the unread memory, such as one about pools, comes first.
    of_unread = [one for runtime, one in of_runtimes if one.kind in OF_MAPPINGS or not (runtime.lists_objects or one.of_blocks)]
    explained = any(2 * one.bytes >= find_unread_memory(session).bytes for one in [*of_unread, *shared])
    left = find_unread_memory(session).bytes - sum(one.bytes for one in mapped)
    if (explained and find_unread_memory(session).are_only_pools) or (mapped and left < LEAST):
        unread = []  # the finding about the pools or mappings says the same
    found = [*found, *unread] if explained and not inside else [*unread, *found]
    found[:0] = cut_off
    return found if leaked in found or (mappings and leaked.kind == "nothing-lost") else [*found, leaked]


def _find_crash(session: Session) -> Iterator[Finding]:
    """Yield one finding if the process crashed."""
    if not session.target.crashed:
        return iter(())
    # Few processes crashed, and this imports 18 modules.
    from findleaks.audit.findings.crash import find_crash

    return find_crash(session)


def _find_damage(session: Session) -> Iterator[Finding]:
    """Yield one finding if a heap is corrupt."""
    if not session.directory.is_corrupt:
        return iter(())
    # Imported late: seldom needed
    from findleaks.audit.findings.damaged_heap import find_damaged_heap

    return find_damaged_heap(session)


def exclude_leaked_blocks(graph: Graph, blocks: Blocks, finding: Finding) -> Iterator[Finding]:
    """Yield a finding of a runtime without its leaked blocks, because the finding about leaks
    reports them. Yield nothing if the finding is about a leaked block, or if at least half of its
    memory is leaked."""
    if not finding.members:
        address = finding.facts.get("address")
        index = blocks.find(int(address, 16)) if isinstance(address, str) else -1
        if index < 0 or graph.kind(index) not in LEAKED:
            yield finding
        return
    figures = graph.figures_by_kind(array("I", {*finding.members}), array("Q"))
    leaked = sum(figures[kind].bytes for kind in LEAKED)
    if not leaked:
        yield finding
    elif 2 * leaked < finding.bytes:
        title = finding.title.replace("In use, not leaked: ", "Mostly in use, not leaked: ", 1)
        cause = f"{finding.cause} {size(leaked)} of this memory is leaked."
        yield replace(finding, bytes=finding.bytes - leaked, title=title, cause=cause)
