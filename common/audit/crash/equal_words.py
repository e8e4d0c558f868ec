"""Search memory for the pointer that made a thread fault, if its origin in the code is unknown.

In a loop over a list, for example, the code does not show from which element a pointer was loaded.
If exactly one word outside of stacks has the value of the pointer, the pointer was probably loaded
from it. Small and round numbers are not searched: they may be equal by chance.

glibc (malloc/malloc.c: tcache_put) overwrites the first two words of a block that it puts into a
thread cache. The first word is a link to the next block, combined with its own address (since 2.32;
this is the number of the page if there is no next block). The second one is tcache_key, a random
number that is the same for all blocks (since 2.34). Other words of a freed block keep their values.
If a pointer is equal to such a word, this does not show that the block was used after it was freed.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.audit.crash.fault import Fault
from findleaks.audit.crash.pointer_source import WIDEST, Place, describe_in_block, describe_place, is_in_hint, text_around
from findleaks.audit.foreign_words import in_c_library
from findleaks.engine.terms import State
from findleaks.formatting import format_count, number, shorten
from findleaks.graph.roots import writable_ranges
from findleaks.libc.stacks import thread_stacks
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges, region_at, subtract
from findleaks.value_classes import NamedTuple

_LEAST_DIGITS = 24  # binary digits of a value that is hardly equal to another one by chance
_FARTHEST = 4096  # limit of EqualWords.distance; the offsets of most members are smaller
_MOST = 4096  # freed blocks with the key that are counted
_SI_ADDR = 16  # offset of the address in siginfo_t
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
    accessed; it is used only if the instruction is unknown, and not on 32-bit machines, where any
    number may be near an address."""
    if fault is not None and fault.kind not in ("pointer", "call", "jump"):
        return None
    value, word = fault.value if fault is not None else address, session.target.arch.word
    if value is None or _is_frequent(value, word) or region_at(session.target.regions(), value) is not None:
        return None
    if fault is None and word < 8:
        return None
    places = _search(session, value if fault is not None else value - _FARTHEST + 1, value)
    if not places or _is_frequent(places[0][1], word) or _is_in_siginfo(session, places[0][0]):
        return None
    distance = value - places[0][1]
    # If there are several words, all but the last are keys (see _search), so only the last is
    # checked.
    are_keys = not distance and all(_is_overwritten(session, place, (0, word)) for place, _ in (places[0], places[-1]))
    is_link = _is_overwritten(session, places[0][0], (0,))
    keys = len(places) if are_keys and (len(places) > 1 or not is_link) else 0
    if len(places) > max(keys, 1) or keys > _MOST:
        return None
    first = describe_place(session, places[0][0])
    first = first._replace(is_freed=is_link)
    return EqualWords(first, distance, keys, "" if keys else text_around(session, first.address))


def _is_frequent(value: int, word: int) -> bool:
    """Whether a value has few significant binary digits: a small or round number, also a negative
    one, or a floating-point number such as 0.5."""
    # One bit for each digit that differs from the next
    changes = (value ^ value << 1) & (1 << 8 * word) - 2
    return changes.bit_length() - (changes & -changes).bit_length() < _LEAST_DIGITS


def _is_in_siginfo(session: Session, place: int) -> bool:
    """Whether a word is the address in a copy of siginfo_t, which handlers of signals make."""
    number = Memory(session.target).word(place - _SI_ADDR)
    return number is not None and number & 0xFFFFFFFF in (signal.SIGSEGV, signal.SIGBUS)


def _search(session: Session, low: int, high: int) -> list[tuple[int, int]]:
    """Return the addresses and values of words with a value in [low, high]. Mapped addresses do not
    count; `high` is not mapped.

    The search ends after _MOST + 1 words. It ends at the second or a later word if this word or the
    one before is not a key of a thread cache."""
    target = session.target
    # Another mapping may end below the address. Pointers to that mapping are not searched.
    low = max([low, *(region.end for region in target.regions() if region.end <= high)])
    stacks = [Range(region.start, region.end) for region in target.regions() if region.name.startswith("[stack")]
    # A thread may use another stack, such as that of a coroutine.
    used = [_find_stack(session, thread.sp) for thread in target.threads()]
    # glibc has a copy of the key in its data.
    library = [Range(module.start, module.end) for module in target.modules() if in_c_library(module)]
    left_out = [*stacks, *library, *(one for one in used if one is not None), *thread_stacks(target).values(), *session.dead_stack()]
    found: list[tuple[int, int]] = []
    word, order = target.arch.word, target.arch.byteorder
    for piece in session.pieces(subtract(writable_ranges(target), merge_ranges(left_out)), "searching for a pointer", dead=True):
        for place in session.engine.search(piece, low, high + 1):
            at = place - piece.address
            found.append((place, int.from_bytes(piece.data[at : at + word], order)))
            if len(found) > _MOST or (len(found) > 1 and not all(_is_overwritten(session, one, (0, word)) for one, _ in found[-2:])):
                return found
    return found


def _find_stack(session: Session, sp: int) -> Optional[Range]:
    """Return the block or mapping to which a stack pointer refers; None if there is none."""
    blocks, region = session.directory.blocks, region_at(session.target.regions(), sp)
    index = blocks.find(sp)
    if index >= 0:
        return Range(blocks.address(index), blocks.address(index) + blocks.size(index))
    return Range(region.start, region.end) if region is not None else None


def _is_overwritten(session: Session, place: int, offsets: Sequence[int]) -> bool:
    """Whether a word is at one of these offsets of a block in a thread cache of glibc."""
    blocks, part = session.directory.blocks, session.directory.owner(place)
    index = blocks.find(place)
    is_cached = index >= 0 and blocks.state(index) == State.CACHED
    return is_cached and place - blocks.address(index) in offsets and part is not None and part.allocator.name == _ALLOCATOR


def describe_equal_words(found: EqualWords) -> str:
    """Return sentences about the word from which a pointer was probably loaded."""
    cause = "Probable cause: the pointer was loaded from a block after it was freed."
    if found.keys:
        count = f"{format_count(found.keys, 'free block')} {'contains' if found.keys == 1 else 'contain'} it"
        return f"This value is the number that glibc writes into blocks when they are freed: {count}. {cause}"
    place = found.place
    value = f"a value {number(found.distance)} less than this address" if found.distance else "this value"
    where = describe_in_block(place, place.block) if place.block is not None else shorten(place.phrase, WIDEST)
    sentences = [f"Outside of stacks, only one word has {value}: {where}."]
    if found.text and not is_in_hint(found.text, place):
        sentences.append(f'The memory there contains the text "{shorten(found.text, WIDEST)}".')
    return " ".join([*sentences, *([cause] if place.is_freed else [])])


def equal_words_facts(found: Optional[EqualWords]) -> Optional[dict[str, object]]:
    """Return the facts for the JSON."""
    if found is None:
        return None
    address, description = hex(found.place.address), found.place.phrase
    return {"address": address, "description": description, "distance": found.distance, "freed_blocks_with_key": found.keys}
