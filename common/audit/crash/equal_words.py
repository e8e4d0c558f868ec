"""Search memory for the pointer that made a thread fault, if its origin in the code is unknown.

In loops, as over a list, the code does not show from which element a pointer was loaded. If exactly
one word outside of stacks has the value of the pointer, the pointer was probably loaded from it.

glibc (2.29 and later, malloc/malloc.c: tcache_key) writes a random number into the second word of a
block that it puts into a thread cache. The number is the same for all blocks."""

from __future__ import annotations

from typing import Optional

from findleaks.audit.crash.fault import Fault
from findleaks.audit.crash.pointer_source import WIDEST, Place, describe_block, describe_place, text_around
from findleaks.audit.foreign_words import in_c_library
from findleaks.engine.terms import State
from findleaks.formatting import format_count, number, shorten
from findleaks.graph.roots import writable_ranges
from findleaks.libc.stacks import thread_stacks
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges, region_at, subtract
from findleaks.value_classes import NamedTuple

_LOWEST = 1 << 16  # smaller values are not pointers, and frequent
_FARTHEST = 4096  # limit of EqualWords.distance; the offsets of most members are smaller
_MOST = 64  # words that are examined
_ALLOCATOR = "glibc"


class EqualWords(NamedTuple):
    """The only word with the value of a pointer, and what is there. `distance`: the accessed
    address minus this value, if only the address is known. `keys`: 0, or the number of freed blocks
    in which the word is glibc's key; `place` is then the first of them. `text`: the text around the
    word."""

    place: Place
    distance: int
    keys: int
    text: str


def find_equal_words(session: Session, fault: Optional[Fault], address: Optional[int]) -> Optional[EqualWords]:
    """Return the word with the value of the pointer of a fault; None unless it is certain which
    word this is. `fault`: None if the instruction is unknown. `address`: the address that was
    accessed; it is used only if the instruction is unknown."""
    if fault is not None and fault.kind not in ("pointer", "call", "jump"):
        return None
    value = fault.value if fault is not None else address
    if value is None or value < _LOWEST or region_at(session.target.regions(), value) is not None:
        return None
    places = _search(session, value if fault is not None else value - _FARTHEST + 1, value)
    if not places:
        return None
    distance = value - places[0][1]
    keys = len(places) if not distance and all(_is_key(session, place) for place, _ in places) else 0
    if len(places) > 1 and (not keys or keys > _MOST):
        return None
    first = places[0][0]
    return EqualWords(describe_place(session, first), distance, keys, "" if keys else text_around(session, first))


def _search(session: Session, low: int, high: int) -> list[tuple[int, int]]:
    """Return the addresses and values of words with a value in [low, high] that is not a mapped
    address, at most _MOST + 1."""
    target = session.target
    main = [Range(region.start, region.end) for region in target.regions() if region.name.startswith("[stack")]
    # glibc has a copy of the key in its data.
    library = [Range(module.start, module.end) for module in target.modules() if in_c_library(module)]
    memory = subtract(writable_ranges(target), merge_ranges([*main, *library, *thread_stacks(target).values()]))
    found: list[tuple[int, int]] = []
    word, order = target.arch.word, target.arch.byteorder
    for piece in session.pieces(memory, "searching for a pointer", dead=True):
        for place in session.engine.search(piece, low, high + 1):
            at = place - piece.address
            one = int.from_bytes(piece.data[at : at + word], order)
            # A pointer to mapped memory before the address has nothing to do with it.
            if region_at(target.regions(), one) is None:
                found.append((place, one))
            if len(found) > _MOST:
                return found
    return found


def _is_key(session: Session, place: int) -> bool:
    """Whether a word is the second one of a block in a thread cache of glibc."""
    blocks, part = session.directory.blocks, session.directory.owner(place)
    index = blocks.find(place)
    is_cached = index >= 0 and blocks.state(index) == State.CACHED
    return (
        is_cached and place - blocks.address(index) == session.target.arch.word and part is not None and part.allocator.name == _ALLOCATOR
    )


def describe_equal_words(found: EqualWords) -> str:
    """Return sentences about the word from which a pointer was probably loaded."""
    cause = "Probable cause: the pointer was loaded from a block after it was freed."
    if found.keys:
        count = f"{format_count(found.keys, 'free block')} {'contains' if found.keys == 1 else 'contain'} it"
        return f"This value is the number that glibc writes into blocks when they are freed: {count}. {cause}"
    place = found.place
    value = f"a value {number(found.distance)} less than this address" if found.distance else "this value"
    where = shorten(place.phrase, WIDEST)
    if place.block is not None:
        member = f"{shorten(place.member)}, at " if place.member else ""
        where = f"{member}offset {number(place.address - place.block.address)} of {describe_block(place.block)}"
    sentences = [f"Outside of stacks, only one word has {value}: {where}."]
    if found.text and not (place.block is not None and found.text.startswith(place.block.hint.strip('"…') or "\n")):
        sentences.append(f'The memory there contains the text "{shorten(found.text, WIDEST)}".')
    return " ".join([*sentences, *([cause] if place.is_freed else [])])


def equal_words_facts(found: Optional[EqualWords]) -> Optional[dict[str, object]]:
    """Return the facts for the JSON."""
    if found is None:
        return None
    address, description = hex(found.place.address), found.place.phrase
    return {"address": address, "description": description, "distance": found.distance, "freed_blocks_with_key": found.keys}
