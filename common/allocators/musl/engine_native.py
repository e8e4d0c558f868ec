"""The C engine's functions for musl (musl_groups.c, musl_oldmalloc.c); see engine.py."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import byref, c_uint64

from findleaks.allocators.musl import engine as s
from findleaks.allocators.musl.engine import SlotGroups, SlotRead, TagWalk
from findleaks.engine.native.declarations import CWords
from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.library import DISORDER
from findleaks.engine.native.memory import c_array, c_piece, c_ranges, zeros
from findleaks.target.base import Piece, Range


def read_groups(
    engine: NativeEngine, pieces: Sequence[Piece], areas: Sequence[int], classes: Sequence[int], regions: Sequence[Range]
) -> SlotGroups:
    wanted, units = array("Q", areas), array("Q", classes)
    sums = zeros("Q", len(s.LABELS) * s.CLASSES * s.SUMS)
    made = [CWords(), CWords(), CWords()]
    lists = (c_array(wanted), len(wanted), c_array(units), len(units), *c_ranges(regions))
    engine.library.fl_read_groups(*engine.pass_pieces(pieces), *lists, s.LONE, s.SPAN, *map(byref, made), c_array(sums))
    records, batches, wrong = map(engine.library.take, made)
    return SlotGroups(records, batches, wrong, sums)


def read_slots(engine: NativeEngine, pieces: Sequence[Piece], groups: SlotGroups, first: int, last: int, capacity: int) -> SlotRead:
    starts, sizes, states = zeros("Q", capacity), zeros("Q", capacity), zeros("B", capacity)
    made, troubles = c_uint64(), CWords()
    last = min(last, len(groups.records) // s.GROUP)
    slots = (c_array(groups.records), first, last, capacity)
    troubled = (byref(made), c_array(groups.sums), byref(troubles))
    code = engine.library.fl_read_slots(*engine.pass_pieces(pieces), *slots, *map(c_array, (starts, sizes, states)), *troubled)
    wrong = engine.library.take(troubles)
    if code == DISORDER:
        raise ValueError(f"groups {first} to {last} have more than {capacity} slots, or are not a batch")
    if made.value < capacity:
        del starts[made.value :], sizes[made.value :], states[made.value :]
    return SlotRead(starts, sizes, bytearray(states), wrong)


def walk_tags(engine: NativeEngine, piece: Piece, chunk: int, before: int, limit: int, capacity: int) -> TagWalk:
    starts, sizes, states = zeros("Q", capacity), zeros("Q", capacity), zeros("B", capacity)
    at, last, made = c_uint64(chunk), c_uint64(before), c_uint64()
    bounds = (byref(at), byref(last), limit, capacity)
    code = engine.library.fl_walk_tags(c_piece(piece), *bounds, *map(c_array, (starts, sizes, states)), byref(made))
    if made.value < capacity:
        del starts[made.value :], sizes[made.value :], states[made.value :]
    return TagWalk(starts, sizes, bytearray(states), at.value, last.value, code)
