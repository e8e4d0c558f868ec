"""The memory of all of LuaJIT's states as an Allocator."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Optional

from findleaks.allocators.base import Allocator, Arena, Heap, Problem
from findleaks.allocators.images import find_version
from findleaks.allocators.luajit.engine import DIFFERS, MORE, walk_chunks
from findleaks.allocators.luajit.layout import HEADER, LEAST, STATE, Segment, State, find_direct
from findleaks.allocators.luajit.references import decode_light_userdata, read_light_segments, remove_type_tags, try_light_segments
from findleaks.allocators.mappings import MMAPPED, group_adjacent, make_mapped_heap
from findleaks.allocators.memory import Memory
from findleaks.engine import terms
from findleaks.engine.contract import Blocks, Engine
from findleaks.errors import Interrupted
from findleaks.target.base import Module, Piece, Range, Target

_VERSION = re.compile(rb"LuaJIT (2\.1\.[0-9a-z.-]+)")
_STEP = 1 << 20  # most blocks of one call of the engine


class LuaJitAllocator(Allocator):
    """The memory of all of LuaJIT's states. See Allocator. `module` is the file that contains
    LuaJIT."""

    name = "LuaJIT"
    granule = 8
    managed = True
    encodes_references = True
    remainder_words = 3
    retention_note = "LuaJIT returns a segment when no chunk in it is in use"

    def __init__(self, target: Target, engine: Engine, module: Module, states: Sequence[State], taken: Sequence[Range]) -> None:
        self.target, self.engine, self.states = target, engine, states
        self.where = module.path.rsplit("/", 1)[-1]
        self.version = find_version(target, module, _VERSION)
        self.memory = Memory(target)
        self.problems = [Problem(state.address, state.problem, False) for state in states if state.problem]
        self._light_segments = [read_light_segments(self.memory, state.globals) for state in states]
        self._tables_by_segment = sorted(
            (one.start, one.end, table) for state, table in zip(states, self._light_segments) for one in state.segments
        )
        self._heaps = [self._segment_heap(state, one) for state in states for one in state.segments]
        known = sorted([*taken, *(Range(heap.start, heap.end) for heap in self._heaps)])
        self.direct = list(find_direct(target, engine, known))
        self._heaps += [make_mapped_heap(run, HEADER) for run in group_adjacent(self.direct)]

    def _segment_heap(self, state: State, segment: Segment) -> Heap:
        limit = state.top if segment.start <= state.top < segment.end else segment.end

        def walk(blocks: Blocks) -> None:
            at = self._walk(blocks, segment.start, limit)
            if at is not None:
                heap.foreign.append(Range(at, limit))

        heap = Heap(segment.start, segment.end, self._label(state), walk)
        return heap

    def _label(self, state: State) -> str:
        return "segments" if len(self.states) == 1 else f"state {self.states.index(state) + 1}"

    def _walk(self, blocks: Blocks, chunk: int, limit: int) -> Optional[int]:
        """Append the blocks from a chunk on. Return the address from which they are unknown, or
        None."""
        free, missing = 0, False
        while not missing:
            if self.target.is_interrupted():
                raise Interrupted
            missing = True
            for piece in self.target.pieces(chunk, limit):
                if not piece.address <= chunk <= piece.address + len(piece.data) - HEADER:
                    break
                missing = False
                room = min(_STEP, len(piece.data) // LEAST + 1)
                read = walk_chunks(self.engine, piece, chunk, free, limit, room)
                blocks.append(read.starts, read.sizes, read.states)
                chunk, free = read.chunk, read.free
                if read.code != MORE:
                    return self._end(chunk, read.code)
                break
        if chunk >= limit:
            return None
        self.problems.append(Problem(chunk, f"memory is missing at {chunk:#x}: LuaJIT's blocks after it are not read", False))
        return chunk

    def _end(self, chunk: int, code: int) -> Optional[int]:
        if code < DIFFERS:
            return None
        why = "disagrees with the chunk before it" if code == DIFFERS else "has an impossible size"
        what = f"LuaJIT's chunk at {chunk:#x} {why}: the blocks after it are not read"
        self.problems.append(Problem(chunk, what, True, Range(chunk, chunk + HEADER)))
        return chunk

    def heaps(self) -> Sequence[Heap]:
        return self._heaps

    def mark_blocks(self, blocks: Blocks) -> None:
        own = [record for state in self.states for record in (state.address, *(one.record for one in state.segments)) if record]
        blocks.set_state(array("Q", sorted(own)), terms.State.METADATA)

    def decode_references(self, piece: Piece) -> Piece:
        return remove_type_tags(self._decode_light_userdata(piece))

    def _decode_light_userdata(self, piece: Piece) -> Piece:
        """Decode the light userdata. The table of a state applies to its segments. It is unknown to
        which state a directly mapped chunk belongs, so the tables of all states are tried."""
        tables = list(dict.fromkeys(table for table in self._light_segments if table))
        if len(tables) < 2:
            return decode_light_userdata(piece, tables[0]) if tables else piece
        end, parts, at = piece.address + len(piece.data), list[bytes](), piece.address
        first, last = (bisect_left(self._tables_by_segment, (place, 0, ())) for place in (at, end))
        for start, stop, table in [*self._tables_by_segment[max(first - 1, 0) : last], (end, end, ())]:
            start, stop = max(at, min(start, end)), max(at, min(stop, end))
            between = Piece(at, piece.data[at - piece.address : start - piece.address])
            inside = Piece(start, piece.data[start - piece.address : stop - piece.address])
            parts += [try_light_segments(self.memory, between, tables), bytes(decode_light_userdata(inside, table).data)]
            at = stop
        return Piece(piece.address, memoryview(b"".join(parts)))

    def summary(self) -> dict[str, object]:
        segments = sum(len(state.segments) for state in self.states)
        return {"states": len(self.states), "segments": segments, "direct": len(self.direct), "reconciled": not self.problems}

    def locate(self, address: int) -> str:
        for state in self.states:
            if state.address <= address < state.address + STATE:
                return "malloc_state of LuaJIT"
            if state.top <= address < state.top + state.top_size:
                return "top chunk of LuaJIT"
        return ""

    def arenas(self, blocks: Blocks) -> list[Arena]:
        """Return a row for each state, and one for the directly mapped chunks of all states."""
        rows = []
        for state in self.states:
            heaps = [Range(one.start, one.end) for one in state.segments]
            own = {"topsize": state.top_size, "segments": len(heaps)}
            rows.append(_count(blocks, self._label(state), heaps, own, state.top_size))
        direct = [Range(one.start, one.end) for one in self.direct]
        return [*rows, _count(blocks, MMAPPED, direct, {}, 0)] if direct else rows

    def read_counters(self) -> Mapping[str, int]:
        return {
            "segments": sum(one.end - one.start for state in self.states for one in state.segments),
            "topsize": sum(state.top_size for state in self.states),
            "direct": sum(one.end - one.start for one in self.direct),
        }


def _count(blocks: Blocks, name: str, ranges: Sequence[Range], own: Mapping[str, int], spare: int) -> Arena:
    used, free = (sum(blocks.totals(state, *one).bytes for one in ranges) for state in (terms.State.IN_USE, terms.State.FREE))
    return Arena(name, used, 0, free, sum(end - start for start, end in ranges), own, spare)
