"""The contract of the engine's calls for musl's mallocs: mallocng's groups and slots, oldmalloc's chunks.

The structures are the same in musl 1.2.1 to 1.2.6 (src/malloc/mallocng/meta.h, malloc.c), and of oldmalloc since 0.9; what differs with
the size of a word is META's business. Codes say what is wrong; words for users are the caller's.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

from findleaks.engine.contract import Engine
from findleaks.target.base import Piece, Range

AREA = 4096
"""Bytes of a meta_area, and what it is aligned to, whatever the size of a page; `maplen` counts the same."""

UNIT = 16
HEADER = 4
"""Bytes in front of each slot's user memory (IB)."""

LARGE = 63
"""Size class of a block that has a mapping of its own."""

MOVED = 0xE0
"""The byte of index and reserve of a slot's start whose block begins further on (7 << 5)."""

LABELS = ("main", "donated", "mmapped")
"""Of groups that malloc mapped, that ld.so donated, and of class LARGE; batches and sums have their numbers."""

LONE = 1 << 16
"""Groups with slots larger than this are batches apart: their memory need not be read whole."""

SPAN = 16 << 20
"""Bytes of groups side by side that are one batch; of groups of LONE slots, MOST_LONE are one."""

MOST_LONE = 1024

GROUP = 8
"""Words of a group: mem; meta; avail_mask, and freed_mask << 32; the meta's last word (last_idx in 5 bits, freeable, sizeclass in 6, and
maplen); stride; end of its memory; 1 + the number of the group it stands in, or 0; a bit for each slot that holds a group."""

BATCH = 7
"""Words of a batch: label; start and end of its memory; its groups [first, last); slots in all; 1 if they are larger than LONE."""

WRONG = 4
"""Words of what is no group: a code below; meta (of MISSING: the area); mem; of CORRUPT the meta's last word, otherwise mem of the group
around it, or 0."""

SUMS, CLASSES = 7, 64
"""Words of sums, by label and size class (label * CLASSES + class): groups; slots; free slots; slots that hold groups; bytes of memory,
counted with the innermost group; usable bytes of free slots; bytes in use of those slots that were read."""

TROUBLE = 3
"""Words of a slot that is not as it must be: a code below, the number of its group, its own."""

# Why there is no group; musl_groups.c has the same numbers.
MISSING, CORRUPT, NO_SLOT, NO_REGION, OVERLAPS, MISFIT, IN_FREE = range(1, 8)

# What is wrong with a slot, or with the word at the beginning of a group; musl_groups.c has the same numbers.
UNREADABLE, NOT_THERE, OVERRUN, UNKNOWN_GROUP, BETWEEN, OVERWRITTEN, GROUP_HEADER = range(1, 8)

# Why a walk over oldmalloc's chunks stopped; musl_oldmalloc.c has the same numbers.
MORE, ENDS, DIFFERS, NO_SIZE = range(4)


class SlotGroups(NamedTuple):
    """mallocng's groups by address, outer before inner; `batches` are to be read one by one."""

    records: array[int]
    batches: array[int]
    wrong: array[int]
    sums: array[int]


class SlotRead(NamedTuple):
    """The slots of a batch, ascending; free ones are FREE, and one whose header says that an unknown group stands there is METADATA."""

    starts: array[int]
    sizes: array[int]
    states: bytearray
    troubles: array[int]


class TagWalk(NamedTuple):
    """Blocks of chunks, and why the walk ended at `chunk`: MORE to come beyond the piece or the room, ENDS, or a psize that DIFFERS from
    `before`, the csize of the chunk before, or NO_SIZE."""

    starts: array[int]
    sizes: array[int]
    states: bytearray
    chunk: int
    before: int
    code: int


def read_groups(
    engine: Engine, pieces: Sequence[Piece], areas: Sequence[int], classes: Sequence[int], regions: Sequence[Range]
) -> SlotGroups:
    """The groups that mallocng's meta_areas describe. `classes` are the units of each size class's slots; groups that stand in no
    other must lie whole in one of `regions`, which are sorted and disjoint. See engine.py."""
    return _loops(engine).read_groups(engine, pieces, areas, classes, regions)


def read_slots(engine: Engine, pieces: Sequence[Piece], groups: SlotGroups, first: int, last: int, room: int) -> SlotRead:
    """The slots, `room` at most, of a batch of groups (ValueError where it has more); the sums of `groups` then have what is in use:
    call it once a batch. Other groups may not begin or end such a call than a batch, or groups that stand in no other."""
    return _loops(engine).read_slots(engine, pieces, groups, first, last, room)


def walk_tags(engine: Engine, piece: Piece, chunk: int, before: int, limit: int, room: int) -> TagWalk:
    """Walk oldmalloc's chunks from the header at `chunk`, whose psize must be `before`, through `piece`: at most `room` blocks. No
    chunk reaches beyond `limit` less a header."""
    return _loops(engine).walk_tags(engine, piece, chunk, before, limit, room)


class _Loops(Protocol):
    """What musl/engine_kernel.py and its twin, engine_python.py, both have."""

    def read_groups(
        self, engine: Any, pieces: Sequence[Piece], areas: Sequence[int], classes: Sequence[int], regions: Sequence[Range]
    ) -> SlotGroups: ...

    def read_slots(self, engine: Any, pieces: Sequence[Piece], groups: SlotGroups, first: int, last: int, room: int) -> SlotRead: ...

    def walk_tags(self, engine: Any, piece: Piece, chunk: int, before: int, limit: int, room: int) -> TagWalk: ...


def _loops(engine: Engine) -> _Loops:
    """The loops that belong to the engine."""
    name = "engine_kernel" if engine.name == "kernel" else "engine_python"
    return cast(_Loops, import_module(f"findleaks.allocators.musl.{name}"))
