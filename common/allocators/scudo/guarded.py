"""Read the pool of guarded blocks. scudo puts one of about 5,000 blocks into a slot of this pool,
between inaccessible pages, to detect overflows.

Source: gwp_asan/common.h (AllocatorState, AllocationMetadata) and gwp_asan/guarded_pool_allocator.h
of LLVM 14 to 23."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.allocators.scudo.layout import (
    GUARDED_BYTES,
    GUARDED_MAGICS,
    GUARDED_METADATA,
    GUARDED_STATE_WORDS,
    MOST_SLOTS,
    RING_BUFFER,
    SLOT_FREED,
    SLOT_RECORD,
)
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Range


class Slot(NamedTuple):
    """A block in a slot."""

    address: int
    size: int
    state: State


class Guarded(NamedTuple):
    """A pool of guarded blocks, the variables of the pool, and the memory of the slots' records.
    The slots ascend."""

    pool: Range
    state: Range
    records: Range
    slots: Sequence[Slot]

    def walk(self, blocks: Blocks) -> None:
        """Append the blocks."""
        columns = list(zip(*self.slots))
        if columns:
            blocks.append(*columns)


def find_guarded(memory: Memory, engine: Engine, image: Image, problems: list[Problem]) -> Optional[Guarded]:
    """Read the pool whose state is in the data of `image`; None if there is none."""
    for piece in image.pieces(memory.target):
        for address in engine.search_any(piece, GUARDED_MAGICS):
            words = memory.words(address, GUARDED_STATE_WORDS) or (0, 0, 0, 0, 0)
            _, count, start, end, page = words
            records = memory.word(address + GUARDED_METADATA) or 0
            if page == memory.target.arch.page and 0 < count <= MOST_SLOTS and start % page == 0 and (2 * count + 1) * page <= end - start:
                return _read(memory, Range(start, end), Range(address, address + GUARDED_BYTES), records, count, problems)
    return None


def find_ring_buffer(memory: Memory, engine: Engine, image: Image) -> list[Range]:
    """Return the ring buffer, which is not used, and the variables with its address: {address, the
    number of elements in some versions, address, size}; [] if there is none."""
    for piece in image.pieces(memory.target):
        for at in engine.search(piece, RING_BUFFER, RING_BUFFER + 1):
            *others, address = memory.words(at - 24, 3) or (0,)
            if address and address % memory.target.arch.page == 0 and address in others:
                return [Range(at - 24 if others[0] == address else at - 16, at + 8), Range(address, address + RING_BUFFER)]
    return []


def _read(memory: Memory, pool: Range, state: Range, records: int, count: int, problems: list[Problem]) -> Guarded:
    """Read the records of the slots. A core lacks the pages of records that were never used."""
    page, slots, wrong = memory.target.arch.page, [], 0
    for number in range(count):
        at, slot = records + number * SLOT_RECORD, pool.start + page * (2 * number + 1)
        address, size = memory.words(at, 2) or (0, 0)
        freed = memory.read(at + SLOT_FREED, 1)
        if address == 0:
            continue  # never used
        if not freed or not slot <= address <= address + size <= slot + page:
            wrong = wrong or at
            continue
        slots.append(Slot(address, size, State.FREE if freed != b"\0" else State.IN_USE))
    if wrong:
        problems.append(Problem(wrong, f"scudo's record of a guarded block at {wrong:#x} is damaged: the block is not read"))
    return Guarded(pool, state, Range(records, records + count * SLOT_RECORD), slots)
