"""The parts of blocks that are certain although the types of the blocks are inferred, and the
retraction of claims, in pure Python. The C engine has the same code in
common/native/type_parts.c and common/native/type_retract.c."""

from __future__ import annotations

from typing import TYPE_CHECKING

from findleaks.engine.type_spread import DECISION, DISPUTED, INFERRED, LAYOUT_MASK, LEVEL_MASK, LEVEL_SHIFT, NO_ORIGIN, NO_PART, ROOT, Level
from findleaks.target.base import Range

if TYPE_CHECKING:
    from findleaks.engine.reference.type_spread import PureTypeSpread


def part_of(spread: PureTypeSpread, owner: int, claim: int) -> Range:
    """Return the addresses of the certain part of an owner with this claim."""
    decided = spread.certain_parts.get(owner, -1) if owner < ROOT and claim & INFERRED else -1
    if decided < 0:
        return NO_PART
    start, part = spread.blocks.address(owner), spread.decisions[decided].part
    return Range(start + part.start, start + part.end)


def note_part(spread: PureTypeSpread, decided: int, index: int) -> None:
    """Note that the common part of a decision is certain in a block with an inferred claim. A
    certain pointer refers to the block."""
    part = spread.decisions[decided].part
    if part.start < part.end and spread.claims()[index] & INFERRED:
        spread.certain_parts[index] = decided


def follow_to_inferred(spread: PureTypeSpread, reference: int, place: int, index: int, rule: int, owner: int) -> None:
    """Follow a certain pointer to a block with an inferred claim.

    If the pointer determines the type of the block, and the block already has this type, the claim
    becomes certain. If the pointer determines a part of the block, this part does. The pointers of
    the block are then followed again. A block with a part keeps its origin: the new owner may have
    its type from the block."""
    layout, origins, had_part = spread.claims()[index] & LAYOUT_MASK, spread.origins(), index in spread.certain_parts
    if rule & DECISION:
        decided = rule & LAYOUT_MASK
        options, part = spread.decisions[decided].options, spread.decisions[decided].part
        if part.start < part.end and not had_part and any(one.claim & LAYOUT_MASK == layout for one in options):
            origins[index] = owner
            note_part(spread, decided, index)
            spread.queue(index)
        else:
            offset = (spread.memory.word(place) or 0) - spread.blocks.address(index)
            spread.defer(reference, offset, owner, place, index)
    elif rule >> LEVEL_SHIFT & LEVEL_MASK < Level.BASE and rule & LAYOUT_MASK == layout:
        before = origins[index]
        spread.claim_target(reference, place, index, rule, False, owner)
        if had_part:
            origins[index] = before


def retract(spread: PureTypeSpread) -> int:
    """Remove all claims that come from disputed blocks. Return their number."""
    fallen, claims, origins = 0, spread.claims(), spread.origins()
    while True:
        before = fallen
        for index, claim in enumerate(claims):
            origin = origins[index]
            if not claim or claim & DISPUTED or origin >= ROOT:
                continue
            if not claims[origin] or claims[origin] & DISPUTED:
                claims[index], origins[index] = 0, NO_ORIGIN
                spread.limits.pop(index, None)
                spread.certain_parts.pop(index, None)
                fallen += 1
        if fallen == before:
            return fallen
