"""Subtract leaked objects from the objects of a runtime."""

from __future__ import annotations

from findleaks.audit.managed import RuntimeHoldings
from findleaks.engine.terms import Totals
from findleaks.session import Session


def exclude_leaked(session: Session, one: RuntimeHoldings) -> RuntimeHoldings:
    """Return the holdings without leaked objects, if it is known which objects leaked.

    The bytes of a type may include blocks that belong to its objects, such as the elements of
    arrays. How many bytes belong to leaked objects is not counted: the objects of a type are taken
    to have the same size."""
    known, rows = session.object_types, []
    has_parts = known is not None and bool(known.parts)
    for row in one.types:
        lost, objects = row.leaked or Totals(0, 0), max(row.type.objects, 1)
        held = max(lost.bytes, row.type.bytes * min(lost.blocks, objects) // objects) if has_parts else lost.bytes
        kind = row.type._replace(objects=max(row.type.objects - lost.blocks, 0), bytes=max(row.type.bytes - held, 0))
        rows.append(row._replace(type=kind))
    return one._replace(types=sorted(rows, key=lambda row: (-row.bytes, -row.type.objects, row.type.name)))
