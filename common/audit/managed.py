"""Native memory that managed objects hold: which blocks would go if all objects of one type went."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple, Optional

from findleaks.graph.base import Totals
from findleaks.runtimes.base import Holders, Runtime, Type
from findleaks.session import SLICE, Session

REST = 0
"""The number of the root that stands for all root memory outside managed objects."""


class Held(NamedTuple):
    """A type with the blocks in use that only its objects hold."""

    type: Type
    native: Optional[Totals]  # None: not known


class Managed(NamedTuple):
    """A runtime with its types, those first that hold most bytes, native and their own. `native` sums the blocks its objects hold;
    `several` are those that objects of more types than one hold together, or objects and something else."""

    runtime: Runtime
    types: list[Held]
    native: Optional[Totals]


def managed(session: Session, runtimes: Sequence[Runtime], native: bool = True) -> list[Managed]:
    """Each runtime's objects by type. Without `native` the graph of blocks is not needed, and what they hold is not known."""
    holders = [runtime.holders() for runtime in runtimes] if native else [None for _ in runtimes]
    totals = held(session, [one for one in holders if one is not None]) if any(holders) else []
    found, which = [], iter(totals)
    for runtime, one in zip(runtimes, holders):
        session.tell(f"counting the objects of {runtime.name}", 0.0)
        mine: dict[str, Totals] = {}
        for name, total in zip(one.names, next(which)) if one is not None else ():
            before = mine.get(name, Totals(0, 0))
            mine[name] = Totals(before.blocks + total.blocks, before.bytes + total.bytes)
        rows = [Held(kind, mine.get(kind.name, Totals(0, 0)) if one else None) for kind in runtime.types()]
        rows.sort(key=lambda row: (-row.type.bytes - (row.native.bytes if row.native else 0), -row.type.objects, row.type.name))
        summed = Totals(sum(total.blocks for total in mine.values()), sum(total.bytes for total in mine.values())) if one else None
        found.append(Managed(runtime, rows, summed))
    return found


def held(session: Session, holders: Sequence[Holders]) -> list[list[Totals]]:
    """Per runtime and type number: blocks and bytes that only objects of this type hold."""
    graph = session.graph()
    bounds, owners, first = _bounds(holders)
    count = first[-1]
    tree = graph.dominators(count, bounds, owners)
    for piece in session.pieces(session.roots, "reading what managed objects refer to"):
        tree.scan_roots(piece)
    while not tree.compute(SLICE):
        session.tell("finding what managed objects hold", tree.part())
    totals = tree.by_root()
    return [totals[start:end] for start, end in zip(first, first[1:])]


def _bounds(holders: Sequence[Holders]) -> tuple[array[int], array[int], list[int]]:
    """Where each object begins and ends, whose these words are, and the first root number of each runtime (the last: how many)."""
    first = [REST + 1]
    for one in holders:
        first.append(first[-1] + len(one.names))
    if len(holders) == 1:
        bounds, owners = _of(holders[0], first[0])
    else:
        parts = sorted(
            (item for one, start in zip(holders, first) for item in zip(*_of(one, start))), key=lambda item: item[0]
        )  # rare: two runtimes in a process
        bounds, owners = array("Q", (bound for bound, _ in parts)), array("I", (owner for _, owner in parts))
    return array("Q", [0]) + bounds, array("I", [REST]) + owners, first


def _of(one: Holders, start: int) -> tuple[array[int], array[int]]:
    count = len(one.addresses)
    bounds, owners = array("Q", bytes(16 * count)), array("I", [REST]) * (2 * count)
    bounds[0::2] = one.addresses
    bounds[1::2] = array("Q", map(int.__add__, one.addresses, one.sizes))
    owners[0::2] = array("I", map(start.__add__, one.types))
    return bounds, owners
