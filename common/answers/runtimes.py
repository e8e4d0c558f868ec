"""Answer the question "which objects do managed runtimes have, and what do these objects
retain?"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from findleaks.audit.managed import RuntimeHoldings, list_runtime_holdings, package_of_type, with_retained
from findleaks.results.amounts import Amount
from findleaks.results.runtimes import ObjectType, RetainingObject, Runtime, RuntimePart, Runtimes, RuntimeSite
from findleaks.results.stacks import Deadlock
from findleaks.runtimes import base as managed
from findleaks.runtimes.base import Part, Site
from findleaks.runtimes.directory import find_frames
from findleaks.session import Session

RETAINERS = 5  # number of the objects of each runtime that retain the most


class FoundRuntimes(NamedTuple):
    """The result, and the analysis that it was computed from: the holdings and the allocation sites
    of each runtime."""

    result: Runtimes
    holdings: Sequence[RuntimeHoldings]
    sites: Sequence[Sequence[Site]]


def describe_runtimes(
    session: Session, only: Optional[str] = None, native: bool = True, by_package: bool = False, limit: Optional[int] = None
) -> FoundRuntimes:
    """Return every managed runtime, or those that the module `only` has found. `native`: whether to
    find leaked objects, native memory of objects, and what objects retain in the managed heap.
    `limit`: number of types and sites in the result (0, None: all)."""
    runtimes = [one for one in session.runtimes if not only or one.module == only]
    group = package_of_type if by_package else str
    found = list_runtime_holdings(session, runtimes, native, group)
    if native:
        found = [with_retained(session, one, group) for one in found]
    sites = [[site for site in one.runtime.sites() if site.blocks] for one in found]
    made = [_runtime(one, its, _retainers(session, one.runtime) if native else [], limit or None) for one, its in zip(found, sites)]
    return FoundRuntimes(Runtimes(made, _deadlocks(session) if made else ()), found, sites)


def _deadlocks(session: Session) -> list[Deadlock]:
    # Imported here, because a process without a runtime does not need this module.
    from findleaks.answers.locks import list_deadlocks

    return list_deadlocks(find_frames(session.target))


def _retainers(session: Session, runtime: managed.Runtime) -> list[RetainingObject]:
    graph = runtime.object_graph()
    if graph is None:
        return []
    from findleaks.answers.managed_references import describe_retainers

    return describe_retainers(session, graph, RETAINERS)


def _runtime(one: RuntimeHoldings, sites: Sequence[Site], retainers: Sequence[RetainingObject], limit: Optional[int]) -> Runtime:
    runtime = one.runtime
    return Runtime(
        runtime.name,
        runtime.version or None,
        runtime.where or None,
        counters={name: count.value for name, count in runtime.counters().items()},
        parts=[_part(part) for part in runtime.parts()],
        native=Amount.of_known(one.native),
        types=[
            ObjectType(
                row.type.name,
                row.type.objects,
                row.type.bytes,
                native_blocks=row.native.blocks if row.native is not None else None,
                native_bytes=row.native.bytes if row.native is not None else None,
                reported_bytes=row.reported,
                leaked=Amount.of_known(row.leaked),
                retained_bytes=row.retained,
                own=row.type.own,
            )
            for row in one.types[:limit]
        ],
        sites=[RuntimeSite(site.frames, site.blocks, site.bytes, site.rate if site.rate > 1 else None) for site in sites[:limit]],
        retainers=retainers,
        note=runtime.types_note() or None,
    )


def _part(part: Part) -> RuntimePart:
    return RuntimePart(
        part.name, part.bytes, part.used, part.inside, part.freed, part.detail or None, part.ranges, [_part(one) for one in part.parts]
    )
