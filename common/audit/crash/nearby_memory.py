"""Describe the memory that belongs to an address which a thread could not access: the array whose
index was wrong, or the memory that ends directly before the address.

A loop that runs past the end of memory faults directly behind it. But the address may also be the
start of other memory that was unmapped, protected or is read-only. Then the memory before it has
nothing to do with the crash. Therefore it is named only in two cases:

- It is the heap that glibc grows with brk(). No other mapping begins directly behind it.
- The address is in a guard page, and no word in memory is an address between the start of this page
  and the address."""

from __future__ import annotations

from typing import Literal, Optional

from findleaks.allocators.search import find_words_between
from findleaks.audit.crash.fault import Fault
from findleaks.audit.crash.pointer_source import WIDEST, Place, block_facts, describe_block, describe_place
from findleaks.formatting import number, shorten, size
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.target.ranges import region_at
from findleaks.value_classes import NamedTuple

_REACH = 64  # bytes beyond the end of accessible memory, for a loop that passes this end
_TOP = "glibc, top of main"  # the description of the end of the heap that glibc grows with brk()
_MOST_SEARCHED = 256 << 20  # bytes of memory that are searched for pointers; about 0.1 s
_HEADER = 64  # maximum bytes before the first block of a mapping


class NearbyMemory(NamedTuple):
    """The memory near an address. `kind`: "array" if the address was computed from the address of
    `place`; "before" if `place` is the memory that ends directly before it. `start`, `end`: the
    block or mapping at `place`; both 0 if it is unknown. `distance`: the number of bytes from `end`
    to the address; if the address is below `start`, minus the number of bytes to `start`; None if
    the address is in between, or if `end` is unknown."""

    kind: Literal["array", "before"]
    place: Place
    start: int
    end: int
    distance: Optional[int]


def find_nearby_memory(session: Session, fault: Optional[Fault], address: Optional[int]) -> Optional[NearbyMemory]:
    """Return the memory that belongs to an address which a thread could not access; None if there
    is none. The address is not that of code or of a stack. It is None if it is unknown, as for an
    address that is not valid."""
    if fault is not None and fault.array is not None:
        return _at(session, "array", fault.array, address)
    # A pointer whose origin is known is not one that a loop increments.
    if address is None or (fault is not None and fault.origin is not None):
        return None
    before = max((one for one in session.target.regions() if one.end <= address), key=lambda one: one.end, default=None)
    here = region_at(session.target.regions(), address)
    if before is None or not before.readable or address - before.end >= _REACH:
        return None
    found = _at(session, "before", before.end - 1, address)
    if here is None:
        return found if found.place.phrase.startswith(_TOP) else None
    return found if not here.readable and not _is_referenced(session, before.end, address) else None


def _is_referenced(session: Session, first: int, last: int) -> bool:
    """Whether a word in memory refers to an address from `first` to `last`. True if there is too
    much memory to search it."""
    regions = [Range(one.start, one.end) for one in session.target.regions() if one.readable and one.writable]
    if sum(one.end - one.start for one in regions) > _MOST_SEARCHED:
        return True
    return any(True for _ in find_words_between(session.target, session.engine, regions, first, last + 1))


def first_block(session: Session, start: int) -> int:
    """Return the address of the first block of the mapping that begins at `start`, behind the
    allocator's header; `start` if there is none."""
    blocks = session.directory.blocks
    return next((at for at in range(start, start + _HEADER, 8) if blocks.find(at) >= 0), start)


def _at(session: Session, kind: Literal["array", "before"], inside: int, address: Optional[int]) -> NearbyMemory:
    place = describe_place(session, inside)
    region = region_at(session.target.regions(), inside)
    start = end = 0
    if place.block is not None:
        start, end = place.block.address, place.block.address + place.block.size
    elif place.sort == "mapping" and region is not None:
        start, end = region.start, region.end
    distance = None
    if address is not None and end:
        distance = address - end if end <= address else address - start if address < start else None
    return NearbyMemory(kind, place, start, end, distance)


def describe_nearby_memory(found: NearbyMemory) -> str:
    """Return a sentence about the memory near the address."""
    place = found.place
    if found.kind == "array":
        where = f"; the address is {_describe_distance(found, '')}" if found.distance is not None else ""
        return f"The array is {_describe_array(found)}{where}."
    if place.block is not None and found.distance is not None:
        return f"The address is {_describe_distance(found, describe_block(place.block))}."
    if place.sort == "mapping" and found.distance is not None:
        return f"The address is {_describe_distance(found, _mapping(found))}."
    sentence = f"The memory directly before it is {shorten(place.phrase, WIDEST)}."
    if place.sort == "allocator":
        sentence += " Probable cause: a loop ran past the end of a block, or read a freed block, to the end of the heap."
    return sentence


def _describe_distance(found: NearbyMemory, of: str) -> str:
    """Return where the address is: "8 bytes past the end of the heap", if `of` is "the heap"; "8
    bytes past its end", if `of` is empty."""
    distance = found.distance or 0
    side, part = ("before", "start") if distance < 0 else ("past", "end")
    which = f"the {part} of {of}" if of else f"its {part}"
    return f"{_bytes(abs(distance)) if distance else 'directly'} {side} {which}"


def _bytes(count: int) -> str:
    return f"{number(count)} byte{'' if count == 1 else 's'}"


def _mapping(found: NearbyMemory) -> str:
    return f"the mapping of {size(found.end - found.start)} at {found.start:#x}"


def _describe_array(found: NearbyMemory) -> str:
    place = found.place
    if place.block is not None:
        inside = place.address - found.start
        return f"{_bytes(inside)} into {describe_block(place.block)}" if inside else describe_block(place.block)
    if place.sort in ("module", "thread-local"):
        return shorten(place.phrase.replace("[0] (", " (", 1), WIDEST)
    if place.sort == "mapping" and found.end:
        inside = place.address - found.start
        return f"{_bytes(inside)} into {_mapping(found)}" if inside else _mapping(found)
    return f"at {place.address:#x} ({shorten(place.phrase, WIDEST)})"


def nearby_facts(found: Optional[NearbyMemory]) -> Optional[dict[str, object]]:
    """Return the facts that the sentence states, for the JSON."""
    if found is None:
        return None
    return {
        "relation": found.kind,
        "address": hex(found.place.address),
        "description": found.place.phrase,
        "start": hex(found.start) if found.end else None,
        "end": hex(found.end) if found.end else None,
        "distance": found.distance,
        "block": block_facts(found.place.block),
    }
