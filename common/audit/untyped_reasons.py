"""Explain why a block has no type, based on its referrers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from findleaks.audit.typed_places import place_at
from findleaks.engine.type_spread import DISPUTED
from findleaks.session import Session
from findleaks.session.known_types import known_types

if TYPE_CHECKING:
    from findleaks.types.known import KnownTypes


def explain_untyped(session: Session, index: int, referrer: Optional[int], is_leaked: bool) -> str:
    """Return why a block has no type. `referrer` is the address of a typed word that refers to the
    block, or None if no such word was found or searched for."""
    known = known_types(session)
    if known is None:
        return "no debug information"
    if known.claims[index] & DISPUTED:
        return "certain pointers contradict each other"
    if is_leaked:
        return "no typed memory refers to it, and no typed block resembles it"
    place = place_at(session, referrer) if referrer is not None else None
    if referrer is None or place is None:
        return "no typed memory refers to it"
    blocks, arch = session.directory.blocks, session.target.arch
    offset = arch.unpack(session.target.read(referrer, arch.word))[0] - blocks.address(index) - known.header(index)
    return _explain_pointer(session, known, place.type, blocks.size(index) - known.header(index), offset)


def _explain_pointer(session: Session, known: KnownTypes, number: int, size: int, offset: int) -> str:
    """Return why a pointer does not determine the type of a block of `size` bytes. `number` is the
    type of the pointer, which points to `offset` in the block."""
    from findleaks.debuginfo.type_table import Kind
    from findleaks.types.embedding import STRUCTURES
    from findleaks.types.sizes import SizeClasses

    table = known.table
    if table.kinds[number] != Kind.POINTER:
        return "the member is a number"
    pointee = table.pointee(number)
    name = table.expression(pointee)
    if table.kinds[pointee] in (Kind.VOID, Kind.UNKNOWN):
        return "the pointer is void *"
    if table.kinds[pointee] not in STRUCTURES:
        return f"the pointer is {table.expression(number)}"
    own = table.size_of(pointee)
    if not own:
        return f"{name} is only declared"
    if offset:
        return f"no type of this size is known to have {name} at +{offset:,}"
    if SizeClasses(session.directory, table.word).fits(own, size):
        return f"several types begin with {name}"
    return f"{name} has {own:,} bytes"
