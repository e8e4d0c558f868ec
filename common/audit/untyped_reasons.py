"""Explain why a block has no type, based on its referrers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Optional

from findleaks.audit.references import find_root_references
from findleaks.audit.typed_places import place_at
from findleaks.engine.type_spread import DISPUTED
from findleaks.errors import UnreadableMemory
from findleaks.session import Session
from findleaks.session.known_types import known_types
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.debuginfo.type_table import TypeTable
    from findleaks.types.embedding import Embedding
    from findleaks.types.known import KnownTypes

MOST_CANDIDATES = 16
"""Maximum number of types listed for a block."""
MOST_REFERRERS = 16
"""Maximum number of typed blocks whose pointers to a block are read."""
WIDEST = 1 << 20
"""Maximum number of bytes of a block that are searched for a reference."""


class Reason(NamedTuple):
    """Why a block has no type. `candidates`: the types that it may have, as debuggers write them,
    at most MOST_CANDIDATES; empty if nothing limits them."""

    text: str
    candidates: Sequence[str] = ()


class _Sizes(NamedTuple):
    """The smallest and the largest size, in bytes, that the type of a block may have."""

    least: int
    most: int


def explain_untyped(session: Session, index: int, referrer: Optional[int], is_leaked: bool) -> Reason:
    """Return why a block has no type. `referrer` is the address of a typed word that refers to the
    block, or None if no such word was found or searched for."""
    known = known_types(session)
    if known is None:
        return Reason("no debug information")
    if known.claims[index] & DISPUTED:
        return Reason("certain pointers contradict each other", _pointees(session, known, index))
    sizes = _sizes(session, known, index)
    if is_leaked:
        return Reason("no typed memory refers to it, and no typed block resembles it", _of_sizes(session, known, sizes))
    place = place_at(session, referrer) if referrer is not None else None
    if referrer is None or place is None:
        return Reason("no typed memory refers to it", _of_sizes(session, known, sizes))
    blocks, arch = session.directory.blocks, session.target.arch
    offset = arch.unpack(session.target.read(referrer, arch.word))[0] - blocks.address(index) - known.header(index)
    return _explain_pointer(session, known, place.type, sizes, offset)


def find_typed_reference(session: Session, index: int) -> Optional[int]:
    """Return the address of a word of known type that refers to a block; None if there is none."""
    return next(_iterate_typed_references(session, index), None)


def _iterate_typed_references(session: Session, index: int) -> Iterator[int]:
    known, start = known_types(session), session.directory.blocks.address(index)
    typed = (one for one in session.graph().referrers(index) if known is not None and known.spec(one) is not None)
    words = (find_reference(session, one, index) for one in islice(typed, MOST_REFERRERS))
    yield from (word for word in words if word is not None and place_at(session, word) is not None)
    roots = (one.address for one in find_root_references(session, start, start + 1))
    yield from (word for word in roots if word and place_at(session, word) is not None)


def find_reference(session: Session, owner: int, index: int) -> Optional[int]:
    """Return the address of the first word in the block `owner` that refers to the block `index`;
    None if there is no such word."""
    blocks, arch = session.directory.blocks, session.target.arch
    start, low = blocks.address(owner), blocks.address(index)
    try:
        data = session.target.read(start, min(blocks.size(owner), WIDEST) // arch.word * arch.word)
    except UnreadableMemory:
        return None
    high = low + max(blocks.size(index), 1)
    place = next((at for at, word in enumerate(arch.unpack(data)) if low <= word < high), None)
    return start + place * arch.word if place is not None else None


def _sizes(session: Session, known: KnownTypes, index: int) -> _Sizes:
    from findleaks.types.sizes import SizeClasses

    size = session.directory.blocks.size(index) - known.header(index)
    # SizeClasses reads the sizes of all blocks once.
    classes = session.once(SizeClasses, lambda: SizeClasses(session.directory, known.table.word))
    return _Sizes(max(size if known.header(index) else classes.least(size), 1), size)


def _explain_pointer(session: Session, known: KnownTypes, number: int, sizes: _Sizes, offset: int) -> Reason:
    """Return why a pointer does not determine the type of a block. `number` is the number of
    the pointer's type. The pointer points to `offset` in the block."""
    from findleaks.debuginfo.type_table import Kind
    from findleaks.types.embedding import STRUCTURES

    table = known.table
    if table.kinds[number] != Kind.POINTER:
        return Reason("the member is a number", _of_sizes(session, known, sizes))
    pointee = table.pointee(number)
    name = table.expression(pointee)
    if table.kinds[pointee] in (Kind.VOID, Kind.UNKNOWN):
        return Reason("the pointer is void *", _of_sizes(session, known, sizes) if offset == 0 else ())
    if table.kinds[pointee] not in STRUCTURES:
        return Reason(f"the pointer is {table.expression(number)}")
    own = table.size_of(pointee)
    if not own:
        return Reason(f"{name} is only declared", _of_sizes(session, known, sizes))
    if offset:
        return Reason(f"no type of this size is known to have {name} at +{offset:,}")
    if sizes.least <= own <= sizes.most:
        return Reason(f"several types begin with {name}", _beginning_with(session, known, pointee, sizes))
    return Reason(f"{name} has {own:,} bytes", _beginning_with(session, known, pointee, sizes))


def _pointees(session: Session, known: KnownTypes, index: int) -> Sequence[str]:
    """Return the target types of typed pointers to a block."""
    places = (place_at(session, word) for word in _iterate_typed_references(session, index))
    pointees = (known.table.pointee(place.type) for place in places if place is not None)
    return _names(known.table, (one for one in pointees if known.table.size_of(one)))


def _of_sizes(session: Session, known: KnownTypes, sizes: _Sizes) -> Sequence[str]:
    """Return the structs with these sizes, except those that only the C library has."""
    numbers = _embedding(session, known).of_sizes(*sizes)
    return _names(known.table, (one for one in numbers if known.is_of_program(one)))


def _beginning_with(session: Session, known: KnownTypes, pointee: int, sizes: _Sizes) -> Sequence[str]:
    """Return the types with these sizes that begin with the type `pointee`."""
    whole = _embedding(session, known).places(pointee).get(0, ())
    return _names(known.table, (one for one in whole if sizes.least <= known.table.sizes[one] <= sizes.most))


def _embedding(session: Session, known: KnownTypes) -> Embedding:
    from findleaks.types.embedding import Embedding

    return session.once(_embedding, lambda: Embedding(known.table))


def _names(table: TypeTable, numbers: Iterable[int]) -> Sequence[str]:
    return sorted({table.expression(one) for one in numbers})[:MOST_CANDIDATES]
