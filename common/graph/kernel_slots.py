"""musl's groups, slots and chunks in the C kernel (../kernel/slots.c, tags.c)."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import byref, c_uint64

from findleaks.graph import slots as s
from findleaks.graph.kernel_blocks import Passed
from findleaks.graph.kernel_library import DISORDER, CPiece, CRange, CWords, check, taken
from findleaks.graph.slots import SlotGroups, SlotRead, TagWalk
from findleaks.target.base import Piece, Range

Pieces = tuple["ctypes.Array[CPiece]", int]
"""Pieces as the kernel takes them: an array of CPiece, and how many."""


def read_groups(library: ctypes.CDLL, pieces: Pieces, areas: Sequence[int], classes: Sequence[int], regions: Sequence[Range]) -> SlotGroups:
    """See base.Engine."""
    wanted, units = array("Q", areas), array("Q", classes)
    places = (CRange * len(regions))(*(CRange(*region) for region in regions))
    sums = array("Q", bytes(8 * len(s.LABELS) * s.CLASSES * s.SUMS))
    made = [CWords(), CWords(), CWords()]
    lists = (wanted.buffer_info()[0], len(wanted), units.buffer_info()[0], len(units), places, len(regions))
    code = library.fl_read_groups(*pieces, *lists, s.LONE, s.SPAN, *map(byref, made), sums.buffer_info()[0])
    records, batches, wrong = (taken(library, words) for words in made)
    check(code, "groups")
    return SlotGroups(records, batches, wrong, sums)


def read_slots(library: ctypes.CDLL, pieces: Pieces, groups: SlotGroups, first: int, last: int, room: int) -> SlotRead:
    """See base.Engine."""
    starts, sizes, states = array("Q", bytes(8 * room)), array("Q", bytes(8 * room)), array("B", bytes(room))
    made, troubles = c_uint64(), CWords()
    last = min(last, len(groups.records) // s.GROUP)
    outputs = (starts.buffer_info()[0], sizes.buffer_info()[0], states.buffer_info()[0], byref(made), byref(troubles))
    code = library.fl_read_slots(*pieces, groups.records.buffer_info()[0], first, last, room, *outputs, groups.sums.buffer_info()[0])
    wrong = taken(library, troubles)
    if check(code, "slots") == DISORDER:
        raise ValueError(f"groups {first} to {last} have more than {room} slots, or are no batch")
    if made.value < room:
        del starts[made.value :], sizes[made.value :], states[made.value :]
    return SlotRead(starts, sizes, bytearray(states), wrong)


def walk_tags(library: ctypes.CDLL, piece: Piece, chunk: int, before: int, limit: int, room: int) -> TagWalk:
    """See base.Engine."""
    starts, sizes, states = array("Q", bytes(8 * room)), array("Q", bytes(8 * room)), array("B", bytes(room))
    at, last, made = c_uint64(chunk), c_uint64(before), c_uint64()
    outputs = (starts.buffer_info()[0], sizes.buffer_info()[0], states.buffer_info()[0], byref(made))
    code = library.fl_walk_tags(byref(Passed(piece).piece), byref(at), byref(last), limit, room, *outputs)
    if made.value < room:
        del starts[made.value :], sizes[made.value :], states[made.value :]
    return TagWalk(starts, sizes, bytearray(states), at.value, last.value, code)
