"""Answer the question "what is leaked?": leaked blocks in groups, and the limits of this result."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Optional

from findleaks.allocators.base import Allocator
from findleaks.audit.conventions import applied_heuristics
from findleaks.audit.diagnostics import is_trusted, list_reader_notes
from findleaks.audit.in_flight import find_in_flight
from findleaks.audit.kernel_pointers import describe_unreadable_pointers, summarise_kernel_pointers
from findleaks.audit.leak_groups import Leak, list_leaks, merge_leaks, name_contents
from findleaks.audit.reference_evidence import count_garbage, is_garbage, list_mapping_blocks, summarise_reference_evidence
from findleaks.audit.unread_memory import find_unread_memory
from findleaks.engine.contract import Graph
from findleaks.engine.terms import Kind, State
from findleaks.results.amounts import Amount
from findleaks.results.leaks import AllocatorInUse, LeakGroup, Leaks, Suppressed, Totals
from findleaks.session import Session
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.audit.suppressions import Suppressions
    from findleaks.results.sites import Recorder

SITE = "site"
"""The value of `by` that groups leaked blocks by the call stacks that allocated them."""


class FoundLeaks(NamedTuple):
    """The result, and its groups, largest first."""

    result: Leaks
    groups: Sequence[Leak]


def find_leaks(
    session: Session,
    kinds: Set[Kind] = frozenset((Kind.DEFINITE, Kind.POSSIBLE)),
    by: Optional[str] = None,
    asked: str = "auto",
    suppressions: Optional[Suppressions] = None,
    stacks: int = 0,
) -> FoundLeaks:
    """Return the leaked blocks of these `kinds`, grouped by content.

    `by`: groups by "type", "size", "kind" or "site" instead. `asked`: the heuristics of the session
    as the user wrote them. `suppressions`: removes groups and counts them. `stacks`: if groups are
    by site, the number of groups that get a call stack (0: all); further groups have only the
    number of the site."""
    graph = session.graph()
    leaks = _lost_by_site(session, graph, suppressions) if by == SITE else list_leaks(session, graph, suppressions)
    wanted = [leak for leak in leaks if leak.kind in kinds]
    groups = wanted if by == SITE else name_contents(session, merge_leaks(wanted, by))
    garbage, garbage_heads = count_garbage(session)
    result = Leaks(
        trusted=is_trusted(session),
        allocators=[_allocator(session, allocator) for allocator in session.directory.allocators],
        totals=_totals(session, graph),
        heuristics=applied_heuristics(session, asked),
        reference_counts=summarise_reference_evidence(session),
        in_flight=find_in_flight(session),
        unread=find_unread_memory(session).result(),
        notes=[*_describe_truncation(session), *list_reader_notes(session), *describe_unreadable_pointers(session)],
        kernel=summarise_kernel_pointers(session),
        groups=_by_site(session, groups, stacks) if by == SITE else [leak.result(garbage=is_garbage(session, leak)) for leak in groups],
        next=(),
        suppressed=_list_suppressed(suppressions),
        unused_suppressions=[str(rule) for rule in suppressions.list_unused()] if suppressions else (),
        recorders=_recorders(session) if by == SITE else None,
        recording_hints=_recording_hints(session) if by == SITE else (),
        mappings=_mappings(session, Kind.DEFINITE, Kind.INDIRECT),
        possible_mappings=_mappings(session, Kind.POSSIBLE),
        garbage=Amount.of(garbage),
        garbage_heads=garbage_heads,
        definite=sum(leak.bytes + leak.indirect_bytes for leak in leaks if leak.kind == Kind.DEFINITE),
    )
    return FoundLeaks(result, groups)


def _describe_truncation(session: Session) -> list[str]:
    """Return what a truncated core lacks, as `verdict` reports it; [] for a complete core."""
    if not session.target.truncated:
        return []
    # The import loads all findings, and few cores are truncated.
    from findleaks.audit.findings.truncation import find_truncation

    return [f"{finding.title} {finding.cause}" for finding in find_truncation(session)]


# Few processes have recorded stacks, so this is imported here.


def _lost_by_site(session: Session, graph: Graph, suppressions: Optional[Suppressions]) -> list[Leak]:
    from findleaks.audit.site_groups import group_leaks_by_site

    return group_leaks_by_site(session, graph, suppressions)


def _recorders(session: Session) -> list[Recorder]:
    from findleaks.answers.sites import recorders

    return recorders(session)


def _recording_hints(session: Session) -> Sequence[str]:
    from findleaks.answers.sites import recording_hints

    return recording_hints(session)


def _by_site(session: Session, leaks: Sequence[Leak], stacks: int) -> list[LeakGroup]:
    from findleaks.answers.sites import allocation_site
    from findleaks.audit.site_stacks import SiteNames

    names, found = SiteNames(session), []
    for at, leak in enumerate(leaks):
        is_named = leak.site and (at < stacks or not stacks)
        site = allocation_site(session, names, leak.site) if is_named else None
        found.append(leak.result(site, is_garbage(session, leak)))
    return found


def _allocator(session: Session, allocator: Allocator) -> AllocatorInUse:
    directory = session.directory
    blocks, held = directory.totals(allocator)[State.IN_USE]
    return AllocatorInUse(allocator.name, allocator.version, allocator.where, blocks, held, allocator.summary())


def _totals(session: Session, graph: Graph) -> Totals:
    kinds = (Kind.REACHABLE, Kind.POSSIBLE, Kind.DEFINITE, Kind.INDIRECT)
    return Totals(Amount.of(session.directory.blocks.totals(State.IN_USE)), *(Amount.of(graph.totals(kind)) for kind in kinds))


def _mappings(session: Session, *kinds: Kind) -> Amount:
    """Return number and bytes of the leaked mappings whose block has one of these kinds."""
    found = list_mapping_blocks(session, *kinds)
    return Amount(len(found), sum(map(session.directory.blocks.size, found)))


def _list_suppressed(suppressions: Optional[Suppressions]) -> Sequence[Suppressed]:
    if not suppressions:
        return ()
    return [Suppressed(str(rule), use.groups, use.blocks, use.bytes) for rule, use in suppressions.uses.items()]
