"""Structures of LuaJIT's allocator: its states, segments, and directly mapped chunks.

Source: src/lj_alloc.c of LuaJIT 2.1 (2020-06 to 2026; struct malloc_state, malloc_segment,
malloc_chunk, lj_alloc_create, alloc_sys, direct_alloc), 64-bit; lj_obj.h (lua_State, global_State)
from 2020-09 on, with LJ_GC64. Before 2020-06, `malloc_state` had one word less.

A chunk begins with two words: the size of the previous chunk if that is free, and its own size with
two flags. The block begins after them, and extends over the first word of the next chunk. The state
is the first block of the first mapping, so its chunk begins at a page. A later mapping right below
becomes part of the same segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.bulk import read_records
from findleaks.allocators.mappings import MappedChunk, find_unclaimed
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target
from findleaks.target.ranges import nonzero_pieces
from findleaks.value_classes import NamedTuple

PREVIOUS_IN_USE, IN_USE = 1, 2
"""Flags in the second word of a chunk."""
HEADER = 16
FENCEPOST = 8 | PREVIOUS_IN_USE | IN_USE  # second word of the chunks that end a segment
LEAST = 32  # bytes of the smallest chunk
STATE = 872  # bytes of malloc_state
STATE_CHUNK = STATE + 8  # bytes of its chunk
_HEADS = STATE_CHUNK | IN_USE, STATE_CHUNK | IN_USE | PREVIOUS_IN_USE
_TOP_SIZE, _TOP, _BINS, _SEGMENT = 2, 4, 7, 105  # words of malloc_state
_SMALL_BINS = 32
_DIRECT_FOOT = 32  # bytes after a directly mapped chunk
_DIRECT = 1  # first word of such a chunk: the offset 0, and a flag
_PAGES = 1 << 14  # pages that are examined at once
MOST_SEGMENTS = 1 << 20
_THREAD = 6  # type of threads: the byte at offset 9 of an object
MAIN = 192  # offset in global_State of the address of the main thread
_MOST_STATE = 4096  # bytes of lua_State


class Segment(NamedTuple):
    """A mapping [start, end) that is divided into chunks. `record` is the block that has its start
    and size, or 0 if the state has them."""

    start: int
    end: int
    record: int


class State(NamedTuple):
    """The allocator of one state of Lua.

    - `address`: of malloc_state, which is a block.
    - `thread`: of the main thread, which begins the block after it. The global_State, at `globals`,
      follows in the same block.
    - `top`: the chunk that was not divided yet, and its size.
    - `problem`: why further segments are unknown; "" if all are known."""

    address: int
    thread: int
    globals: int
    top: int
    top_size: int
    segments: Sequence[Segment]
    problem: str


def find_states(target: Target, engine: Engine, taken: Sequence[Range]) -> list[State]:
    """Return the allocators in anonymous memory, ascending."""
    memory, page = Memory(target), target.arch.page
    found = []
    for start, end in find_unclaimed(target, taken):
        for piece in nonzero_pieces(target, start, end):
            for head in engine.search(piece, _HEADS[0], _HEADS[1] + 1):
                state = _state_at(memory, head + 8) if (head - 8) % page == 0 else None
                if state is not None:
                    found.append(state)
    return found


def _state_at(memory: Memory, address: int) -> Optional[State]:
    """Return the state at an address, or None. The head of each empty bin is linked to itself, and
    the top chunk is in the newest segment."""
    words = memory.words(address, STATE // 8)
    if words is None:
        return None
    bins = [address + 8 * (_BINS + 2 * number) for number in range(_SMALL_BINS)]
    links = list(zip(bins, words[_BINS + 2 :: 2], words[_BINS + 3 :: 2]))
    empty = sum(place == following == before for place, following, before in links)
    if empty < 2 or any((place == following) != (place == before) for place, following, before in links):
        return None
    segments, problem = _read_segments(memory, address)
    top, size = words[_TOP], words[_TOP_SIZE]
    whole = (one for one in segments if one.start <= top and top + size <= one.end)
    thread = address + STATE_CHUNK
    shared = _find_globals(memory, thread)
    if next(whole, None) is None or not shared or not any(one.start <= address < one.end for one in segments):
        return None
    return State(address, thread, shared, top, size, segments, problem)


def _find_globals(memory: Memory, thread: int) -> int:
    """Return the address of the global_State that follows a main thread; 0 if there is none. The
    two refer to each other at offsets that only versions from 2020-09 on have."""
    words = memory.words(thread, 3)
    if words is None or words[1].to_bytes(8, "little")[1] != _THREAD or not thread < words[2] < thread + _MOST_STATE:
        return 0
    return words[2] if memory.word(words[2] + MAIN) == thread else 0


def _read_segments(memory: Memory, address: int) -> tuple[list[Segment], str]:
    """Return the segments of a state, newest first, and why further ones are unknown, or ""."""
    found: list[Segment] = []
    at, record, seen = address + 8 * _SEGMENT, 0, set[int]()
    while at not in seen and len(seen) < MOST_SEGMENTS:
        seen.add(at)
        words = memory.words(at, 3)
        if words is None or not words[1] or words[0] % 8 or words[1] > memory.arch.mask - words[0]:
            return found, f"LuaJIT's list of segments is damaged at {at:#x}: further segments are unknown"
        found.append(Segment(words[0], words[0] + words[1], record))
        if not words[2]:
            return found, ""
        at = record = words[2]
    return found, f"LuaJIT's list of segments leads to {at:#x} twice: further segments are unknown"


def find_direct(target: Target, engine: Engine, taken: Sequence[Range]) -> Iterator[MappedChunk]:
    """Yield the chunks that have a mapping of their own, ascending. No list contains them. A chunk
    begins at the start of its mapping. A fencepost follows the chunk: its second word is FENCEPOST,
    and the word after it is 0."""
    memory, page = Memory(target), target.arch.page
    for start, end in find_unclaimed(target, taken):
        skip = start
        for first in range(start, end, _PAGES * page):
            pages = range(first, min(end, first + _PAGES * page), page)
            records, _ = read_records(target, engine, pages, HEADER)
            words = target.arch.words(records)
            for at, before, head in zip(pages, words[::2], words[1::2]):
                size = head - IN_USE
                if at < skip or before != _DIRECT or head & 7 != IN_USE or size + _DIRECT_FOOT > end - at:
                    continue
                foot = memory.words(at + size, 3) if (size + _DIRECT_FOOT) % page == 0 else None
                if foot is not None and foot[1:] == (FENCEPOST, 0):
                    skip = at + size + _DIRECT_FOOT
                    yield MappedChunk(at, at, skip, size - HEADER)
