"""The engine's function for PartitionAlloc. It reads the free lists of slot spans."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from findleaks.engine.contract import Engine
from findleaks.engine.loops import import_loops
from findleaks.target.base import Piece

SPAN = 5
"""Number of words that describe a span: address of the first slot, bytes of a slot, number of
slots, address of the first free slot (or 0), number of the bit of the first slot in the bitmap."""
OUTCOME = 3
"""Number of words of an outcome: number of slots in the free list, number of quarantined slots,
address of the slot whose link is damaged (or 0). partition_slots.c has both layouts."""


class Links(NamedTuple):
    """How the links of free lists are encoded. If links are offsets, `pool` is the address to which
    the offset is added; if links are addresses, it is 0. `has_shadow`: whether each link is
    followed by its inverted copy."""

    pool: int
    has_shadow: bool


class Slots(NamedTuple):
    """A bitmap of the slots that are free or quarantined, and the outcome of each span."""

    bits: bytearray
    outcomes: array[int]


def read_slots(
    engine: Engine, pieces: Sequence[Piece], spans: array[int], links: Links, counted: bool, cached: array[int], bits: int
) -> Slots:
    """Read the slots of `spans` ("Q", SPAN words each). `bits` is the number of bits in the bitmap.

    `counted`: whether slots have reference counters (BackupRefPtr). `cached` are the addresses of
    slots in thread caches ("Q", ascending). A free list is read up to its first damaged link."""
    loops: Any = import_loops(engine, "findleaks.allocators.partitionalloc")
    read: Slots = loops.read_slots(engine, pieces, spans, links, counted, cached, bits)
    return read
