"""Check the integrity of mallocng: checks mallocng's assertions for all blocks, and compares its
lists.

mallocng crashes on purpose (a_crash) if an assertion fails in get_meta, get_nominal_size, enframe,
queue or activate_group (src/malloc/mallocng/meta.h). Here all assertions are checked in advance."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from struct import Struct
from typing import Optional, Protocol

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.musl.engine import HEADER, UNIT
from findleaks.allocators.musl.groups import Batch, Group, Groups
from findleaks.allocators.musl.layout import AREA, CLASSES, LocatedContext, Meta, head_of
from findleaks.allocators.musl.slots import Slots
from findleaks.engine.contract import Engine
from findleaks.engine.terms import State
from findleaks.target.base import Range

SHOWN = 16  # maximum number of overwritten bytes that a problem shows


class MallocNGView(Protocol):
    """The part of ng.MallocNG that the checks need. The checks set `checked`, and change nothing
    else."""

    memory: Memory
    engine: Engine
    context: LocatedContext
    meta: Meta
    areas: list[int]
    groups: Groups
    slots: Slots
    problems: list[Problem]
    checked: dict[str, int]


def verify(allocator: MallocNGView) -> Iterator[Optional[Problem]]:
    """Check groups first, then lists, then all slots in ascending order."""
    for number, group in enumerate(allocator.groups.all):
        yield from _group(group)
        if number % 10_000 == 9_999:
            yield None
    allocator.checked["groups"] = len(allocator.groups.all)
    yield from _lists(allocator)
    for batch in allocator.groups.batches:
        yield None
        yield from _slots(allocator, batch)


def _group(group: Group) -> Iterator[Problem]:
    """Compare the masks with each other and with the number of slots."""
    name = f"meta {group.meta:#x} of the group {group.mem:#x}"
    beyond = (group.avail | group.freed) >> group.count
    if beyond:
        yield Problem(group.meta, f"{name} has bits {beyond << group.count:#x} for slots it does not have ({group.count} slots)")
    if group.avail & group.freed:
        yield Problem(group.meta, f"{name} has slots both available and freed: bits {group.avail & group.freed:#x}")
    if group.active >= group.count:
        what = f"the group {group.mem:#x} has active_idx {group.active}, but {group.count} slots: its header was overwritten"
        yield Problem(group.mem, what)
    elif group.avail >> (group.active + 1):
        yield Problem(group.meta, f"{name} has slots available beyond active_idx {group.active}: bits {group.avail:#x}")


def _lists(allocator: MallocNGView) -> Iterator[Problem]:
    """Check two kinds of rings: the rings of groups with free slots, one for each class, and the
    ring of unused metas. Check the links in both directions, and which groups must be in the
    rings."""
    memory, context = allocator.memory, allocator.context
    by_meta = {group.meta: group for group in allocator.groups.all}
    on_list: set[int] = set()
    limit = len(allocator.areas) * allocator.meta.count
    heads = memory.words(context.address + context.layout.active, len(CLASSES)) or ()
    for number, head in enumerate(heads):
        for meta, problem in _ring(allocator, head, limit):
            group = by_meta.get(meta)
            on_list.add(meta)
            if problem:
                yield Problem(meta, f"active[{number}]: {problem}")
            elif group is None:
                yield Problem(meta, f"active[{number}] holds meta {meta:#x}, which describes no group")
            elif group.number != number:
                yield Problem(meta, f"active[{number}] holds meta {meta:#x} of size class {group.number}")
    head = memory.word(context.address + context.layout.free_meta_head) or 0
    for meta, problem in _ring(allocator, head, limit):
        if problem:
            yield Problem(meta, f"free_meta_head: {problem}")
        elif meta in by_meta:
            yield Problem(meta, f"meta {meta:#x} is on the list of unused metas, but describes the group {by_meta[meta].mem:#x}")
    for group in allocator.groups.all:
        if group.number < len(CLASSES) and group.mask and group.meta not in on_list:
            what = f"meta {group.meta:#x} of the group {group.mem:#x} has free slots, but is not on active[{group.number}]"
            yield Problem(group.meta, f"{what}: they are never used again")
    allocator.checked["list links"] = len(on_list)


def _ring(allocator: MallocNGView, head: int, limit: int) -> Iterator[tuple[int, str]]:
    """Yield (meta, what is wrong with its links, or "") along a ring, up to the first broken
    link."""
    memory = allocator.memory
    areas = set(allocator.areas)
    node, seen = head, 0
    while node:
        if node & -AREA not in areas or (node % AREA - allocator.meta.first) % allocator.meta.size:
            yield node, f"{node:#x} is not a meta"
            return
        links = memory.words(node, 2)
        after = links[1] if links else 0
        back = memory.word(after)
        if back != node:
            yield node, f"meta {node:#x} is followed by {after:#x}, which has {back or 0:#x} before it"
            return
        yield node, ""
        seen += 1
        if after == head or seen > limit:
            if after != head:
                yield node, "the ring does not close"
            return
        node = after


def _slots(allocator: MallocNGView, batch: Batch) -> Iterator[Problem]:
    """Check every slot: the byte before it, and for a block in use, the header and the bytes after
    the requested size."""
    read, pieces = allocator.slots.read(batch, again=True)
    gather, order = allocator.engine.gather, allocator.memory.arch.byteorder
    segments = allocator.groups.segments_of(batch)
    slots, ends = array("Q"), array("Q")
    for start, group, low, high in segments:
        slots.extend(range(start - HEADER, start - HEADER + (high - low) * group.stride, group.stride))
        ends.extend(range(start + group.usable, start + group.usable + (high - low) * group.stride, group.stride))
    before, _ = gather(pieces, slots, 1)
    found, _ = gather(pieces, array("Q", [start - HEADER for start in read.starts]), HEADER)
    heads = [head_of(number, order) for (number,) in Struct(f"{allocator.memory.arch.word_format[0]}I").iter_unpack(found)]
    first, _ = gather(pieces, array("Q", [start + size for start, size in zip(read.starts, read.sizes)]), 1)
    last, _ = gather(pieces, ends, 1)
    allocator.checked["slots"] = allocator.checked.get("slots", 0) + len(ends)
    number = 0
    behind = 0  # end of the previous slot, if it is in use: an error there was already reported
    for _, group, low, high in segments:
        for slot in range(low, high):
            state, start = read.states[number], read.starts[number]
            if state == State.IN_USE:
                head = heads[number]
                right = slot << 8 | (slot * (group.stride // UNIT) & 0xFFFF) << 16
                if first[number] or last[number] or head & 0xFFFF1FFF != right or head >> 13 & 7 > 4:
                    problem = _block(allocator, group, slot, start, read.sizes[number])
                    if problem is not None:
                        yield problem
                behind = ends[number]
            elif state == State.FREE:
                written = before[number]
                if written and slot and behind != start - HEADER:
                    what = f"{written:#04x} was written between the free slots around {start:#x}: free() and malloc() of them would crash"
                    yield Problem(start - HEADER, what, damaged=Range(start - HEADER, start - HEADER + 1))
                if last[number] and slot == group.count - 1:
                    what = f"{last[number]:#04x} was written behind the last slot of the group {group.mem:#x}, which is free"
                    yield Problem(ends[number], what, damaged=Range(ends[number], ends[number] + 1))
            number += 1


def _block(allocator: MallocNGView, group: Group, number: int, address: int, size: int) -> Optional[Problem]:
    """Check a block in use as get_meta and get_nominal_size do when it is freed."""
    memory = allocator.memory
    slot = group.slot(number)
    end = slot + group.usable
    stored = memory.int32(address - HEADER)
    if stored is None or any(problem.address in (slot, slot - HEADER) and problem.corrupt for problem in allocator.problems):
        return None  # missing, or already reported by the walk

    def crash(damaged: Range, what: str, why: str = ": overwritten") -> Problem:
        return Problem(
            damaged.start, f"the block {address:#x} ({size:,} bytes) {what}{why}; free() of this block would crash", damaged=damaged
        )

    head = head_of(stored, memory.arch.byteorder)
    index, reserve, offset = head >> 8 & 31, head >> 13 & 7, head >> 16
    header = Range(address - HEADER, address)
    if head & 0xFF:
        wide = memory.int32(address - 2 * HEADER) or 0
        if offset or wide <= 0xFFFF:
            return crash(header, f"has {head & 0xFF:#04x} before its header")
        offset = wide
    if index != number:
        return crash(header, f"has a header of slot {index}, but is in slot {number}")
    if group.storage + offset * UNIT != address:
        return crash(header, f"has the wrong offset {offset:#x}")
    unasked = end - address - size
    tail = Range(end - HEADER - 1, end)
    # The overwritten bytes begin at the end of the requested size.
    whole = (memory.int32(end - HEADER) or 0) == unasked
    if reserve > 5 or (reserve == 5 and not (whole and (_byte(allocator, end - unasked) or not _byte(allocator, tail.start)))):
        return crash(tail, "was overrun up to the end of its slot, where its size is stored")
    for place in dict.fromkeys((end - unasked, end)):
        if _byte(allocator, place):
            found = _behind(allocator, place, tail.start if reserve == 5 and place < end else end)
            distance = place - address - size
            where = f"{distance} bytes after its end" if distance else "directly after its end"
            what = f'was overrun: "{repr(found)[2:-1]}" is {where}, where a 0 belongs'
            return crash(Range(place, place + len(found)), what, "")
    return None


def _behind(allocator: MallocNGView, at: int, end: int) -> bytes:
    """Return the bytes written at an address, up to the next 0 or the end of the slot."""
    data = bytes(_byte(allocator, place) for place in range(at, min(at + SHOWN, end + 1)))
    return data.partition(b"\0")[0]


def _byte(allocator: MallocNGView, address: int) -> int:
    """Return a byte, or 0 if it is unreadable."""
    found = allocator.memory.read(address, 1)
    return found[0] if found else 0
