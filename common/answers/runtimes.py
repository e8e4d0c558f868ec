"""The answer to "which objects do managed runtimes have, and what do these retain?"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from findleaks.audit.managed import RuntimeHoldings, list_runtime_holdings, package_of_type
from findleaks.results.amounts import Amount
from findleaks.results.runtimes import ObjectType, Runtime, RuntimePart, Runtimes, RuntimeSite
from findleaks.runtimes.base import Part, Site
from findleaks.runtimes.directory import find
from findleaks.session import Session


class FoundRuntimes(NamedTuple):
    """The result, and the analysis behind it: the holdings and the allocation sites of each
    runtime."""

    result: Runtimes
    holdings: Sequence[RuntimeHoldings]
    sites: Sequence[Sequence[Site]]


def describe_runtimes(
    session: Session, only: Optional[str] = None, native: bool = True, by_package: bool = False, limit: Optional[int] = None
) -> FoundRuntimes:
    """Every managed runtime, or `only` the one with this name. `native`: also search for leaked
    objects and for native memory of objects. `limit`: types and sites in the result (0, None:
    all)."""
    runtimes = find(session.target, session.engine, session.directory, [only]) if only else session.runtimes
    found = list_runtime_holdings(session, runtimes, native, package_of_type if by_package else str)
    sites = [one.runtime.sites() for one in found]
    return FoundRuntimes(Runtimes([_runtime(one, its, limit or None) for one, its in zip(found, sites)]), found, sites)


def _runtime(one: RuntimeHoldings, sites: Sequence[Site], limit: Optional[int]) -> Runtime:
    runtime = one.runtime
    return Runtime(
        runtime.name,
        runtime.version or None,
        runtime.where or None,
        counters={name: count.value for name, count in runtime.counters().items()},
        parts=[_part(part) for part in runtime.parts()],
        native=Amount.known(one.native),
        types=[
            ObjectType(
                row.type.name,
                row.type.objects,
                row.type.bytes,
                native_blocks=row.native.blocks if row.native is not None else None,
                native_bytes=row.native.bytes if row.native is not None else None,
                reported_bytes=row.reported,
                leaked=Amount.known(row.leaked),
                own=row.type.own,
            )
            for row in one.types[:limit]
        ],
        sites=[RuntimeSite(site.frames, site.blocks, site.bytes) for site in sites[:limit]],
    )


def _part(part: Part) -> RuntimePart:
    return RuntimePart(
        part.name, part.bytes, part.used, part.inside, part.freed, part.detail or None, part.ranges, [_part(one) for one in part.parts]
    )
