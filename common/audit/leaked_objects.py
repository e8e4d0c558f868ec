"""Subtract leaked objects from the objects of a runtime."""

from __future__ import annotations

from findleaks.audit.managed import RuntimeHoldings
from findleaks.engine.terms import Kind, Totals
from findleaks.session import Session


def exclude_leaked(session: Session, one: RuntimeHoldings) -> RuntimeHoldings:
    """Return the holdings without leaked objects, if it is known which objects leaked.

    The bytes of a type include the blocks that belong to its objects, such as the elements of
    arrays. For the leaked ones of these blocks, only the sum of all types is known. Each type gets
    a share of this sum. The shares are in proportion to the bytes that the leaked objects would
    have in such blocks if all objects of a type had the same size."""
    leaked = [row.leaked or Totals(0, 0) for row in one.types]
    means = (row.type.bytes * lost.blocks // max(row.type.objects, 1) for row, lost in zip(one.types, leaked))
    expected = [max(mean - lost.bytes, 0) for mean, lost in zip(means, leaked)]
    parts, every, rows = _sum_leaked_parts(session, one), max(sum(expected), 1), []
    for row, lost, share in zip(one.types, leaked, expected):
        left = row.type.bytes - lost.bytes - parts * share // every
        kind = row.type._replace(objects=max(row.type.objects - lost.blocks, 0), bytes=max(left, 0))
        rows.append(row._replace(type=kind))
    return one._replace(types=sorted(rows, key=lambda row: (-row.bytes, -row.type.objects, row.type.name)))


def _sum_leaked_parts(session: Session, one: RuntimeHoldings) -> int:
    """Return the bytes of the leaked blocks that belong to objects of a runtime and have no row of
    their own."""
    known = session.object_types
    if known is None or known.runtime != one.name:
        return 0
    totals, names = session.graph().label_totals((Kind.DEFINITE, Kind.INDIRECT)), {row.type.name for row in one.types}
    return sum(totals[number].bytes for number in known.parts if known.names[number] not in names)
