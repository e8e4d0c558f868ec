"""Answer the question "what refers to this address?"."""

from __future__ import annotations

from typing import Optional

from findleaks.audit import references
from findleaks.audit.address_info import AddressDescription, Describer
from findleaks.audit.references import find_references
from findleaks.results.references import Reference, References
from findleaks.session import Session


def referrers(session: Session, address: int, exact: bool = False, limit: int = 0) -> References:
    """Return every word that refers to the block or managed object that contains `address`. With
    `exact`, or if there is no block or object, return every word that equals `address`. A managed
    object may be referred to by the runtime's roots and by other objects.

    `limit`: number of references to describe (0: all). All references are counted."""
    describer = Describer(session)
    answer = describer.subject(address)
    if answer.object is not None and answer.object.graph.graph is not None:
        from findleaks.answers.managed_references import list_object_references

        return list_object_references(session, describer, answer, exact, limit)
    low, high = address, address + 1
    if answer.block is not None and not exact:
        low, high = answer.block.address, answer.block.address + max(answer.block.size, 1)
    found: list[Reference] = []
    count = live = 0
    # A block may have millions of references, so those that are not shown are only counted.
    for reference in find_references(session, low, high):
        count += 1
        live += reference.live
        if limit <= 0 or count <= limit:
            origin = describer.answer(reference.address) if reference.address else None
            found.append(_result(reference, origin, low))
    return References(answer.result(), count, live, found)


def _result(reference: references.Reference, origin: Optional[AddressDescription], low: int) -> Reference:
    in_register = not reference.kernel and origin is None
    return Reference(
        kernel=reference.kernel or None,
        register=reference.register if in_register else None,
        thread=reference.tid if in_register else None,
        address=reference.address if origin is not None else None,
        value=reference.value,
        offset=reference.value - low,
        interior=reference.value != low,
        live=reference.live,
        why=reference.why or None,
        disguise=reference.disguise or None,
        origin=origin.result() if origin is not None else None,
    )
