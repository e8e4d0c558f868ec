"""Read features of pointers, in pure Python. engine/type_spread.py, Feature, explains them; the C
engine has the same code in common/native/type_features.c."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from findleaks.engine.type_spread import LAYOUT_MASK, MOST_SEPARATED, NO_FEATURE, NO_VALUE, ROOT, Feature
from findleaks.target.ranges import range_at

if TYPE_CHECKING:
    from findleaks.engine.reference.type_spread import PureTypeSpread

NEAREST = 64  # Bytes before and after a pointer in which features are looked for.
TAGGED = 24  # Bytes at the start of a block in which features are looked for.
CHAIN = 64  # Maximum number of blocks of a chain that are followed.
MOST_GROUPS = 24  # Maximum number of values of a feature, except BEGINNING.
PURE = 97  # Minimum percentage of a value's pointers that have its most frequent label.
LEAST_ADDRESS = 1 << 16
_IN_TARGET = (Feature.TARGET_BYTES, Feature.TARGET_BYTE)


_SIZES = {Feature.ONE_BYTE: 1, Feature.TARGET_BYTE: 1, Feature.TWO_BYTES: 2, Feature.EIGHT_BYTES: 8}


def feature_value(spread: PureTypeSpread, feature: int, owner: int, place: int, target: int) -> int:
    """Return the value of a feature for the pointer at `place` to the block `target`."""
    sort, offset = Feature(feature >> 8), (feature & 255) - 128
    if sort == Feature.BEGINNING:
        return _beginning(spread, owner)
    if sort == Feature.OWNER_WORD:
        return _word_of_owner(spread, feature & 255, owner)
    arch = spread.blocks.arch
    is_word = sort in (Feature.STATIC_WORD, Feature.TARGET_WORD)
    size = arch.word if is_word else _SIZES.get(sort, 4)
    if sort in (Feature.TARGET_WORD, *_IN_TARGET):
        owner, place = target, spread.blocks.address(target)
    data = _bytes_of(spread, owner, place + offset, size)
    if not data:
        return NO_VALUE
    value = int.from_bytes(data, arch.byteorder)
    if not is_word:
        return value
    is_static = value > LEAST_ADDRESS and range_at(spread.mapped, value) is not None and spread.used_block(value) < 0
    return value if is_static else NO_VALUE


def _is_part_of_address(spread: PureTypeSpread, feature: int, owner: int, place: int, target: int) -> bool:
    """Return whether a feature is a number that is a part of an address. Such a number separates
    types only by chance, for example if the addresses in some blocks are null."""
    sort, arch = Feature(feature >> 8), spread.blocks.arch
    if sort not in (*_IN_TARGET, Feature.FOUR_BYTES, Feature.ONE_BYTE):
        return False
    if sort in _IN_TARGET:
        owner, place = target, spread.blocks.address(target)
    at = place + (feature & 255) - 128
    value = int.from_bytes(_bytes_of(spread, owner, at - at % arch.word, arch.word), arch.byteorder)
    return value > LEAST_ADDRESS and range_at(spread.mapped, value) is not None


def _bytes_of(spread: PureTypeSpread, owner: int, address: int, size: int) -> bytes:
    """Return memory of an owner; empty if a part of it is missing or outside the block `owner`.
    Root memory (ROOT and above) has no such limits."""
    if owner < ROOT:
        start, own = spread.blocks.address(owner), spread.blocks.size(owner)
        if not 0 <= address - start <= own - size:
            return b""
    found = bytes(spread.memory.part(address, size)) if address >= 0 else b""
    return found if len(found) == size else b""


def _beginning(spread: PureTypeSpread, owner: int) -> int:
    """Return the value of Feature.BEGINNING for pointers of this owner."""
    origins, claims, count = spread.origins(), spread.claims(), len(spread.blocks)
    for _ in range(CHAIN):
        if owner >= count:
            return owner
        before = origins[owner]
        layout = claims[before] & LAYOUT_MASK if before < count else 0
        if not layout or layout != claims[owner] & LAYOUT_MASK:
            return before
        owner = before
    return owner


def _word_of_owner(spread: PureTypeSpread, number: int, owner: int) -> int:
    """Return the value of Feature.OWNER_WORD for pointers of this owner."""
    if number >= len(spread.owner_words):
        return NO_VALUE
    layout, offset, size = spread.owner_words[number]
    origins, claims, count = spread.origins(), spread.claims(), len(spread.blocks)
    for _ in range(CHAIN):
        if owner >= count or claims[owner] & LAYOUT_MASK == layout:
            break
        owner = origins[owner]
    if owner < count and claims[owner] & LAYOUT_MASK == layout:
        start = spread.blocks.address(owner)
    elif ROOT <= owner < ROOT + len(spread.roots) and spread.roots[owner - ROOT][2] == layout:
        start = spread.roots[owner - ROOT][0]
    else:
        return NO_VALUE
    data = _bytes_of(spread, owner, start + offset, size)
    return int.from_bytes(data, spread.blocks.arch.byteorder) if data else NO_VALUE


def separate(spread: PureTypeSpread, rows: Sequence[int], labels: Sequence[int]) -> int:
    """See TypeSpread.separate."""
    best, best_groups = NO_FEATURE, 1 << 32
    labels = labels[:MOST_SEPARATED]
    if any(label >= MOST_SEPARATED for label in labels):
        return NO_FEATURE
    for feature, most in _features(spread.blocks.arch.word):
        pointers = [tuple(rows[3 * at : 3 * at + 3]) for at in range(len(labels))]
        groups: dict[int, Counter[int]] = {}
        for one, label in zip(pointers, labels):
            groups.setdefault(feature_value(spread, feature, *one), Counter())[label] += 1
        pure = sum(max(one.values()) for one in groups.values())
        is_better = 1 < len(groups) <= most and pure * 100 >= PURE * len(labels) and len(groups) < best_groups
        if is_better and not any(_is_part_of_address(spread, feature, *one) for one in pointers):
            best, best_groups = feature, len(groups)
    return best


def _features(word: int) -> Iterator[tuple[int, int]]:
    """Yield each feature with the maximum number of values that it may have."""
    for at in range(0, TAGGED, word):
        yield Feature.TARGET_WORD << 8 | at + 128, MOST_GROUPS
    for at in range(0, TAGGED, 4):
        yield Feature.TARGET_BYTES << 8 | at + 128, MOST_GROUPS
    for at in range(word):
        yield Feature.TARGET_BYTE << 8 | at + 128, MOST_GROUPS
    for at in range(-NEAREST, NEAREST + 1, word):
        if at:
            yield Feature.STATIC_WORD << 8 | at + 128, MOST_GROUPS
    for at in range(-NEAREST, NEAREST + 1, 4):
        yield Feature.FOUR_BYTES << 8 | at + 128, MOST_GROUPS
    for at in range(-2 * word, 2 * word):
        yield Feature.ONE_BYTE << 8 | at + 128, MOST_GROUPS
    yield Feature.BEGINNING << 8 | 128, 1 << 32


def values_of(spread: PureTypeSpread, feature: int, rows: Sequence[int]) -> array[int]:
    """See TypeSpread.feature."""
    return array("Q", [feature_value(spread, feature, *rows[at : at + 3]) for at in range(0, len(rows), 3)])
