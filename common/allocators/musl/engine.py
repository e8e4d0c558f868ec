"""The engine's functions for musl: mallocng's groups and slots, and oldmalloc's chunks.

The structures are the same in musl 1.2.1 to 1.2.6 (src/malloc/mallocng/meta.h, malloc.c), and in
oldmalloc since 0.9. layout.Meta has the parts that depend on the word size. The functions return
codes for problems. The caller formats the messages."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from findleaks.engine.contract import Engine
from findleaks.engine.loops import import_loops
from findleaks.target.base import Piece, Range

UNIT = 16
HEADER = 4  # bytes before each slot's user memory (IB)
LARGE = 63  # size class of a block with its own mapping
MOVED = 0xE0  # 7 << 5, in the byte of index and reserve: the block begins further inside the slot

LABELS = ("main", "donated", "mmapped")
"""Labels of groups: in memory mapped by malloc, in memory donated by ld.so, of class LARGE. Records
contain the index of a label."""

# bytes; groups with larger slots are in separate batches, because they need not be read as a whole
LONE = 1 << 16
# bytes of adjacent groups in one batch; for LONE slots the limit is MAX_LONE groups
SPAN = 16 << 20
MAX_LONE = 1024

GROUP = 8
"""Words of a group's record:

- mem, and the address of the meta
- avail_mask, and freed_mask << 32
- the meta's last word (last_idx in 5 bits, freeable, sizeclass in 6, and maplen)
- stride, and the end of its memory
- 1 + the index of the group that contains it, or 0
- a bit for each slot that contains a group"""

BATCH = 7
"""Words of a batch: label; start, end; groups [first, last); number of slots; 1 if larger than
LONE."""

WRONG = 4
"""Words of a rejected group's record: a code of those below; the meta (with MISSING the area); mem;
with CORRUPT the meta's last word, otherwise mem of the group around it, or 0."""

SUMS, CLASSES = 7, 64
"""Words of sums, by label and size class (label * CLASSES + class): groups; slots; free slots;
slots that contain groups; bytes of memory, each counted with the innermost group; usable bytes of
free slots; bytes in use of the slots that were read."""

# words for a bad slot: one of the codes below, the index of its group, the slot's number
TROUBLE = 3

# The reasons why a group is rejected. musl_groups.c has the same numbers.
MISSING, CORRUPT, NO_SLOT, NO_REGION, OVERLAPS, MISFIT, IN_FREE = range(1, 8)

# Problems of a slot, or of the first word of a group. musl_groups.c has the same numbers.
UNREADABLE, NOT_THERE, OVERRUN, UNKNOWN_GROUP, BETWEEN, OVERWRITTEN, GROUP_HEADER = range(1, 8)

# The reasons why a walk over oldmalloc's chunks stopped. musl_oldmalloc.c has the same numbers.
MORE, ENDS, DIFFERS, NO_SIZE = range(4)


class SlotGroups(NamedTuple):
    """mallocng's groups by address. A group precedes the groups inside it. `batches` must be read
    one after the other."""

    records: array[int]
    batches: array[int]
    wrong: array[int]
    sums: array[int]


class SlotRead(NamedTuple):
    """The slots of a batch, ascending. The state METADATA means that the slot contains an unknown
    group, according to the slot's header."""

    starts: array[int]
    sizes: array[int]
    states: bytearray
    troubles: array[int]


class TagWalk(NamedTuple):
    """The blocks of chunks, and the reason why the walk ended at `chunk`. MORE: more chunks follow,
    beyond the piece or the capacity. ENDS: the run ends. DIFFERS: psize differs from `before`, the
    last csize. NO_SIZE: the header has no valid size."""

    starts: array[int]
    sizes: array[int]
    states: bytearray
    chunk: int
    before: int
    code: int


def read_groups(
    engine: Engine, pieces: Sequence[Piece], areas: Sequence[int], classes: Sequence[int], regions: Sequence[Range]
) -> SlotGroups:
    """Read the groups of mallocng's meta_areas. `classes` has the units of each size class's slots.
    A group that is not inside another must be in one of `regions`, which are sorted and
    disjoint."""
    groups: SlotGroups = _loops(engine).read_groups(engine, pieces, areas, classes, regions)
    return groups


def read_slots(engine: Engine, pieces: Sequence[Piece], groups: SlotGroups, first: int, last: int, capacity: int) -> SlotRead:
    """Read the slots of a batch of groups, at most `capacity`. Raises ValueError if there are more.

    This adds the bytes in use to the sums of `groups`, so call it once for each batch. [first,
    last) must begin and end where a batch does, or at groups that are not inside another group."""
    read: SlotRead = _loops(engine).read_slots(engine, pieces, groups, first, last, capacity)
    return read


def walk_tags(engine: Engine, piece: Piece, chunk: int, before: int, limit: int, capacity: int) -> TagWalk:
    """Walk oldmalloc's chunks in `piece` from the header at `chunk`, whose psize must be `before`.
    Return at most `capacity` blocks. No chunk may extend beyond `limit` minus the size of a
    header."""
    walked: TagWalk = _loops(engine).walk_tags(engine, piece, chunk, before, limit, capacity)
    return walked


def _loops(engine: Engine) -> Any:
    return import_loops(engine, "findleaks.allocators.musl")
