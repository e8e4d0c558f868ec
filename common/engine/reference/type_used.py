"""Determine which part of a block is in use, in pure Python. The C engine has the same code in
common/native/type_used.c."""

from __future__ import annotations

from typing import TYPE_CHECKING

from findleaks.engine.type_spread import (
    FARTHEST,
    FARTHEST_TABLE,
    LAYOUT_MASK,
    LENGTHS,
    LEVEL_MASK,
    LEVEL_SHIFT,
    UNKNOWN,
    Flag,
    Level,
    Question,
)

if TYPE_CHECKING:
    from findleaks.engine.reference.type_layouts import Elements
    from findleaks.engine.reference.type_spread import PureTypeSpread

# The flags of references whose blocks may have a limit.
LIMITED = LENGTHS | Flag.RING | Flag.TABLE | Flag.END


def limits_of(spread: PureTypeSpread, reference: int, claim: int) -> int:
    """Return the flags of a pointer that determine which part of its block is in use, if the block
    gets this claim; 0 if the whole block is in use. Depending on its discriminant, an enum refers
    to the buffer of a container, or to one object."""
    flags = spread.flags[reference] if reference < len(spread.flags) else 0
    return flags & LIMITED if claim >> LEVEL_SHIFT & LEVEL_MASK >= Level.ARRAY else 0


def used_size(spread: PureTypeSpread, reference: int, place: int, index: int, claim: int) -> int:
    """Return how many bytes of a block are in use, if the block gets this claim. The pointer at
    `place` refers to the block."""
    flags, layout = limits_of(spread, reference, claim), claim & LAYOUT_MASK
    start, size, word, read = spread.blocks.address(index), spread.blocks.size(index), spread.blocks.arch.word, spread.memory.word
    value = read(place) or 0
    if flags & Flag.TABLE:
        return value - start
    if flags & Flag.END:
        end = read(place + word) or 0
        return end - start if value <= end <= start + size else size
    distance = (flags & LENGTHS) // Flag.LENGTH
    if not distance:
        return size
    stride = spread.layouts[layout][0].stride if spread.layouts[layout] else 0
    room = size // stride if stride else 0
    length = read(place + distance * word) or 0
    first = (read(place + (distance - 1) * word) or 0) if flags & Flag.RING else 0
    return (first + length) * stride if first + length <= room else size


def requested_count(spread: PureTypeSpread, one: Elements, size: int, is_known: bool) -> int:
    """Return how many elements fit into the smallest request that results in a block of `size`
    bytes; UNKNOWN if an answer is missing. The last of them may be only partly inside. `is_known`:
    the memory is not a block, or the part of the block that is in use is known."""
    count = len(one.bases(size)) if one.slots else 0
    if one.number or not count or is_known:
        return count
    unrequested = spread.rule((Question.UNREQUESTED << 32, 0, size))
    if unrequested == UNKNOWN:
        return UNKNOWN
    least = max(size - unrequested, 0)
    return min(-(-max(least - one.start, 0) // one.stride), count)


def is_too_far(spread: PureTypeSpread, reference: int, offset: int) -> bool:
    """Return whether `offset` in a block is so large that a pointer to it makes no claim on the
    block's type."""
    is_table = reference < len(spread.flags) and spread.flags[reference] & Flag.TABLE
    return offset >= (FARTHEST_TABLE if is_table else FARTHEST)


def is_empty(spread: PureTypeSpread, address: int, size: int, stride: int, number: int) -> bool:
    """Return whether an element of a table is not in use. The elements end at `address + size`."""
    place = size // stride - 1 - number
    state = spread.memory.bytes(address + size + place, 1) if place >= 0 else None
    return not state or bool(state[0] & 0x80)
