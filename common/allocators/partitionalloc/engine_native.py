"""The C engine's function for PartitionAlloc (partition_slots.c); see engine.py."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from findleaks.allocators.partitionalloc.engine import OUTCOME, SPAN, Links, Slots
from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.memory import c_array, zeros
from findleaks.target.base import Piece


def read_slots(
    engine: NativeEngine, pieces: Sequence[Piece], spans: array[int], links: Links, counted: bool, cached: array[int], bits: int
) -> Slots:
    number = len(spans) // SPAN
    made = Slots(bytearray((bits + 7) // 8), zeros("Q", number * OUTCOME))
    lists = (c_array(spans), number, *links, counted, c_array(cached), len(cached))
    engine.library.fl_partition_slots(*engine.pass_pieces(pieces), *lists, c_array(made.bits), c_array(made.outcomes))
    return made
