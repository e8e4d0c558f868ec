"""Decode references to Java objects: plain references, compressed references, and ZGC's references
with colors.

A color is a set of bits that states what the collector has already done with a reference. Without
generations, the color is above the address (ABOVE). With generations it is below the address
(BELOW), and the position of one of its bits determines where the address begins. An object may have
been moved since the reference was written. In this case the tables of moves have its new address.

Sources: OpenJDK 17, src/hotspot/share/gc/z: zGlobals.hpp, zAddress.inline.hpp, zBarrier.inline.hpp
(relocate_or_mark, remap); 21 and 25, the same folder, zAddress.hpp and zBarrier.inline.hpp
(remap_generation)."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal

from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple

NONE, ABOVE, BELOW = range(3)
"""Where the color of a reference is."""

REMAPPED_SHIFT = 12
_REMAPPED_MASK = 0xF
"""With generations, each reference has exactly one of these four bits set. In the number of this
bit (0 to 3), bit 0 belongs to the young generation, and bit 1 to the old generation."""
_OLD, _YOUNG = 2, 1
_ABOVE_BITS, _VIEWS = 4, 7  # bits of a color without generations; three, of which one is set
_RESERVED, _REMEMBERED = 0xF, 0x30
_WORD_BITS = 64
_MASK = (1 << _WORD_BITS) - 1


class Moves(NamedTuple):
    """Objects that were moved: their previous addresses ("Q", ascending), and their current
    addresses."""

    before: array[int]
    now: array[int]

    def find(self, address: int) -> int:
        """Return the current address of the object that was at this address; 0 if no object was
        moved from this address."""
        at = bisect_left(self.before, address)
        return self.now[at] if at < len(self.before) and self.before[at] == address else 0


NO_MOVES = Moves(array("Q"), array("Q"))


class Colors(NamedTuple):
    """The colors of references. `offsets` is the mask of the bits of an address in the heap.

    A reference is current if its object was not moved after the reference was written. With
    ABOVE, `current` is a mask: a current reference has at least one of its bits set. With BELOW,
    `current` is the number (0 to 3) of the bit of _REMAPPED_MASK that is set in current references.
    `young` and `old`: the moves of both generations. Without generations, and with Shenandoah, all
    moves are in `young`."""

    place: int
    offsets: int
    current: int
    young: Moves = NO_MOVES
    old: Moves = NO_MOVES


NO_COLORS = Colors(NONE, 0, 0)


class References(NamedTuple):
    """The format of references. A reference has `size` bytes (4 or 8). Without colors, the value 0
    is null; another value refers to the address `base` + (value << `shift`). With colors, `base` is
    the address of the heap."""

    size: int
    base: int
    shift: int
    colors: Colors = NO_COLORS

    @property
    def has_colors(self) -> bool:
        """Whether references have colors."""
        return self.colors.place != NONE

    @property
    def are_addresses(self) -> bool:
        """Whether each reference in native memory is the address of an object. A reference with
        colors is not, and another one may be the previous address of a moved object."""
        return self.colors.place == NONE and not self.colors.young.before

    def decode(self, value: int) -> int:
        """Return the address to which a reference points, 0 for null. With colors, also return 0 if
        the value is not a valid reference."""
        if self.colors.place == NONE:
            address = self.base + (value << self.shift) & _MASK if value else 0
            return (self.colors.young.find(address) or address) if self.colors.young.before else address
        return self._decode_above(value) if self.colors.place == ABOVE else self._decode_below(value)

    def decode_at(self, data: bytearray, offset: int, byteorder: Literal["little", "big"]) -> int:
        """Return the address to which the reference at an offset in `data` points; see `decode`."""
        return self.decode(int.from_bytes(data[offset : offset + self.size], byteorder))

    def _decode_above(self, value: int) -> int:
        offsets, current = self.colors.offsets, self.colors.current
        color = value & ~offsets
        views = value >> offsets.bit_length() & _VIEWS
        if value >> offsets.bit_length() + _ABOVE_BITS or not views or views & (views - 1):
            return 0
        address = self.base | value & offsets
        return address if color & current else self.colors.young.find(address) or address

    def _decode_below(self, value: int) -> int:
        colors, bits = self.colors, value >> REMAPPED_SHIFT & _REMAPPED_MASK
        number = bits.bit_length() - 1
        if bits & (bits - 1) or not bits or value & _RESERVED:
            return 0
        address = value >> REMAPPED_SHIFT + 1 + number
        if address & ~colors.offsets != self.base:
            return 0
        missed = number ^ colors.current
        if not missed:
            return address
        if missed == _YOUNG:
            return colors.young.find(address) or address
        # A reference from an old object to an old object has both bits of _REMEMBERED set.
        if missed == _OLD or value & _REMEMBERED == _REMEMBERED:
            return colors.old.find(address) or address
        return colors.young.find(address) or colors.old.find(address) or address

    def targets(self, word: int) -> Sequence[int]:
        """Return the addresses to which a word of native memory may refer. With BELOW, a word may
        also contain an address without a color. This address may be the previous address of an
        object that was moved."""
        if self.colors.place == NONE:
            return (self.colors.young.find(word) or word,) if self.colors.young.before else (word,)
        if self.colors.place == BELOW and word & ~self.colors.offsets == self.base:
            moved = self.colors.young.find(word), self.colors.old.find(word)
            return (word, *(one for one in moved if one))
        found = self.decode(word)
        return (found,) if found else ()

    def values(self, low: int, high: int) -> list[Range]:
        """Return ranges of values. Each word of native memory that refers to [low, high) has a
        value in one of these ranges. Other words may also have such a value."""
        if self.colors.place == NONE:
            return [self.sources(low, high)]
        offsets = self.colors.offsets
        if self.colors.place == ABOVE:
            return [Range(offsets + 1, offsets + 1 << _ABOVE_BITS)]
        first = REMAPPED_SHIFT + 1
        return [Range(self.base, self.base + offsets + 1), Range(self.base << first, self.base + offsets + 1 << first + 3)]

    def sources(self, low: int, high: int) -> Range:
        """Return the range of addresses that references without colors to [low, high) contain. It
        includes the previous addresses of moved objects."""
        before = self.colors.young.before
        if self.colors.place != NONE or not before:
            return Range(low, high)
        return Range(min(low, before[0]), max(high, before[-1] + 1))

    def locate(self, address: int) -> int:
        """Return the address at which the memory at `address` is mapped now. Without generations,
        ZGC maps the heap at one address for each color. `base` is the address for the current
        color."""
        above = self.colors.place == ABOVE and address > self.colors.offsets
        return self.base | address & self.colors.offsets if above else address
