"""The Python reference engine's function for PartitionAlloc; see engine.py.

Tests compare it with partition_slots.c."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

from findleaks.allocators.partitionalloc.engine import SPAN, Links, Slots
from findleaks.allocators.partitionalloc.layout import COUNTER, HELD, PAGE, REFERENCES, SUPER_PAGE, TABLE, TABLE_STRIDE
from findleaks.engine.contract import Engine
from findleaks.target.base import Piece

_MASK = (1 << 64) - 1


class _Reader:
    """Reads bytes from pieces of memory, and sets bits of the bitmap."""

    def __init__(self, pieces: Sequence[Piece], bits: bytearray) -> None:
        self.pieces = pieces
        self.starts = [piece.address for piece in pieces]
        self.bits = bits

    def read(self, address: int, size: int) -> bytes:
        at = bisect_right(self.starts, address) - 1
        offset = address - self.starts[at] if at >= 0 else 0
        data = bytes(self.pieces[at].data[offset : offset + size]) if at >= 0 else b""
        return data if len(data) == size else b""

    def has(self, bit: int) -> bool:
        return bool(self.bits[bit // 8] >> bit % 8 & 1)

    def mark(self, bit: int) -> bool:
        """Set a bit. Return False if it was already set."""
        fresh = not self.has(bit)
        self.bits[bit // 8] |= 1 << bit % 8
        return fresh


def read_slots(
    engine: Engine, pieces: Sequence[Piece], spans: array[int], links: Links, counted: bool, cached: array[int], bits: int
) -> Slots:
    reader, outcomes, known = _Reader(pieces, bytearray((bits + 7) // 8)), array("Q"), set(cached)
    for at in range(0, len(spans), SPAN):
        start, stride, count, head, bit = spans[at : at + SPAN]
        freed, damaged = _follow_free(reader, start, stride, count, head, bit, links)
        quarantined = 0
        for number in range(count) if counted else ():
            slot = start + number * stride
            if not reader.has(bit + number) and slot not in known and _is_quarantined(reader, slot, stride):
                reader.mark(bit + number)
                quarantined += 1
        outcomes.extend((freed, quarantined, damaged))
    return Slots(reader.bits, outcomes)


def _follow_free(reader: _Reader, start: int, stride: int, count: int, head: int, bit: int, links: Links) -> tuple[int, int]:
    """Mark the slots of a free list. Return the number of these slots, and the address of the slot
    whose link is damaged (or 0)."""
    freed, slot, before = 0, head, head
    while slot:
        number, inside = divmod(slot - start & _MASK, stride)
        link = reader.read(slot, 16) if number < count and not inside else b""
        if not link or not reader.mark(bit + number):
            return freed, before
        freed += 1
        word = int.from_bytes(link[:8], "little")
        if word and links.has_shadow and int.from_bytes(link[8:], "little") != word ^ _MASK:
            return freed, slot
        before, slot = slot, links.pool + int.from_bytes(link[:8], "big") & _MASK if word else 0
    return freed, 0


def _is_quarantined(reader: _Reader, slot: int, stride: int) -> bool:
    """Return whether the program freed a slot that raw_ptr still refers to."""
    at = slot + stride - COUNTER
    if slot % PAGE == 0:
        at = (slot & -SUPER_PAGE) + TABLE + slot % SUPER_PAGE // PAGE * TABLE_STRIDE
    counter = reader.read(at, COUNTER)
    value = int.from_bytes(counter, "little") if counter else HELD
    return not value & HELD and bool(value & REFERENCES)
