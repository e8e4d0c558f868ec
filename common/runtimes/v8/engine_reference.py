"""Walk the objects of V8's pages in Python: the reference for common/native/v8_objects.c and
v8_references.c."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.engine.contract import Graph
from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.reference.graph import PureGraph
from findleaks.runtimes.v8.engine import (
    ASKED,
    COLUMNS,
    COUNTED,
    END,
    FIELDS,
    FIXED,
    FOUND,
    GIVEN,
    LISTED,
    MAP_WORD,
    NO_MAP,
    POSITION,
    REFERENCE_ROW,
    SHARED_END,
    SHARED_START,
    SIZE_COLUMNS,
    EdgeList,
    ObjectWalk,
    ReferenceSearch,
    Step,
    size_by_count,
)
from findleaks.target.base import Piece

_WORD = 8


def walk_objects(engine: PureEngine, piece: Piece, walk: ObjectWalk) -> int:
    """See engine.py."""
    return _Walk(engine, piece, walk).run()


def scan_references(engine: PureEngine, graph: Graph, piece: Piece, search: ReferenceSearch) -> None:
    """See engine.py; the graph must be this engine's."""
    if not isinstance(graph, PureGraph):
        raise TypeError("a graph of another engine")
    _References(engine, graph, piece, search).run()


def list_edges(engine: PureEngine, piece: Piece, edges: EdgeList) -> int:
    """See engine.py."""
    blocks, top, state = edges.blocks, piece.address + len(piece.data), edges.state
    state[2] = 0
    first = blocks.find(piece.address)
    for index in range(blocks.at_or_after(piece.address) if first < 0 else first, len(blocks)):
        start, shape = blocks.address(index), edges.shapes[index]
        if start >= top:
            break
        if index < state[0] or edges.nodes[index] == NO_MAP or shape >= len(edges.tails):
            continue
        at = state[1] if index == state[0] else 0
        at += max(piece.address - start - at + _WORD - 1, 0) // _WORD * _WORD
        while at + _WORD <= min(blocks.size(index), top - start):
            edge = _edge(engine, piece, edges, shape, start, at)
            if edge is not None and 3 * state[2] == len(edges.out):
                state[0], state[1] = index, at
                return 1
            if edge is not None:
                edges.out[3 * state[2] : 3 * state[2] + 3] = array("I", edge)
                state[2] += 1
                edges.counts[index] += 1
            at += _WORD
        state[0], state[1] = index, at
    return 0


def _edge(engine: PureEngine, piece: Piece, edges: EdgeList, shape: int, start: int, at: int) -> Optional[tuple[int, int, int]]:
    """Return the edge of the word `at` bytes after the start of an object; None if it has none."""
    first, end, low, high = edges.rows[REFERENCE_ROW * shape : REFERENCE_ROW * (shape + 1)]
    if at and (at < first or at + _WORD > end or (at // _WORD < 64 and (low | high << 32) >> at // _WORD & 1)):
        return None
    offset, place = start + at - piece.address, at // _WORD
    word = int.from_bytes(piece.data[offset : offset + _WORD], engine.arch.byteorder)
    target = edges.blocks.find(word - 1) if word & 3 == 1 and word - 1 != start else -1
    if target < 0 or edges.blocks.address(target) != word - 1 or edges.nodes[target] == NO_MAP:
        return None
    names = edges.names[edges.firsts[shape] : edges.firsts[shape + 1]]
    entry, node = names[place] if place < len(names) else 0, edges.nodes[target] * 7
    if entry:
        return entry >> 28, entry & (1 << 28) - 1, node
    return (1, place - 2, node) if edges.tails[shape] and place >= 2 else (4, place, node)


class _References:
    def __init__(self, engine: PureEngine, graph: PureGraph, piece: Piece, search: ReferenceSearch) -> None:
        self.order, self.graph, self.piece, self.search = engine.arch.byteorder, graph, piece, search
        self.blocks, self.top = graph.blocks, piece.address + len(piece.data)

    def run(self) -> None:
        piece, blocks, extra = self.piece, self.blocks, self.search.extra
        # Empty pieces let the graph check that pieces ascend.
        self.graph.scan_blocks(Piece(piece.address, memoryview(b"")))
        self.graph.scan_blocks(Piece(self.top, memoryview(b"")))
        first = blocks.find(piece.address)
        for index in range(blocks.at_or_after(piece.address) if first < 0 else first, len(blocks)):
            start = blocks.address(index)
            if start >= self.top:
                return
            for word in self._words(index, start):
                target = blocks.find(word - 1) if word & 3 == 1 else -1
                if target >= 0 and blocks.address(target) == word - 1:
                    self._add(index, target)
            at = bisect_left(extra, index << 32)
            while start >= piece.address and at < len(extra) and extra[at] >> 32 == index:
                self._add(index, extra[at] & NO_MAP)
                at += 1

    def _add(self, source: int, target: int) -> None:
        if source != target and target < len(self.blocks):
            self.graph.edges.append(target << 1)
            self.graph.counts[source] += 1

    def _words(self, index: int, start: int) -> Iterator[int]:
        """Yield the words of an object that may be strong references, as far as they are in the
        piece."""
        row = self.search.rows[REFERENCE_ROW * self.search.maps[index] : REFERENCE_ROW * (self.search.maps[index] + 1)]
        if not row:
            return
        first, last, *halves = row
        mask = halves[0] | halves[1] << 32
        for offset in (0, *range(first, min(last, self.blocks.size(index)) - _WORD + 1, _WORD)):
            at = start + offset - self.piece.address
            is_skipped = offset and offset // _WORD < 64 and mask >> offset // _WORD & 1
            if 0 <= at <= len(self.piece.data) - _WORD and not is_skipped:
                yield int.from_bytes(self.piece.data[at : at + _WORD], self.order)


class _Walk:
    def __init__(self, engine: PureEngine, piece: Piece, walk: ObjectWalk) -> None:
        self.order, self.piece, self.walk = engine.arch.byteorder, piece, walk
        self.end = walk.state[END]

    def run(self) -> int:
        state, table, piece = self.walk.state, self.walk.table, self.piece
        at = state[POSITION]
        state[FOUND] = state[LISTED] = 0
        if at < piece.address or self.end > piece.address + len(piece.data):
            return Step.DAMAGED
        while at < self.end:
            size, step = self._next(at)
            if step != Step.DONE:
                return step
            number = table.find(state[MAP_WORD])
            self._add_references(at, size, number)
            if not table.rows[COLUMNS * number + SIZE_COLUMNS]:
                listed = state[LISTED]
                self.walk.starts[listed], self.walk.sizes[listed], self.walk.maps[listed] = at, size, number
                state[LISTED] += 1
            if not table.totals[2 * number]:
                table.firsts[number] = at
            table.totals[2 * number] += 1
            table.totals[2 * number + 1] += size
            at += size
            state[POSITION] = at
        return Step.DONE

    def _next(self, at: int) -> tuple[int, Step]:
        """Return the size of an object, and the reason to stop (DONE: there is none)."""
        state, table = self.walk.state, self.walk.table
        if self.end - at < _WORD:
            return 0, Step.DAMAGED
        if len(self.walk.targets) < state[FOUND] + FIELDS or state[LISTED] == len(self.walk.starts):
            return 0, Step.FULL
        state[MAP_WORD] = self._load(at, _WORD)
        number = table.find(state[MAP_WORD]) if state[MAP_WORD] else len(table)
        if number >= len(table):
            return 0, Step.NEW_MAP
        row = table.rows[COLUMNS * number : COLUMNS * (number + 1)]
        size = state[GIVEN] if row[0] == ASKED else self._size(at, row)
        if row[0] == ASKED and not size:
            return 0, Step.ASK
        state[GIVEN] = 0
        return size, Step.DAMAGED if not size or size % _WORD or size > self.end - at else Step.DONE

    def _add_references(self, at: int, size: int, number: int) -> None:
        walk, state = self.walk, self.walk.state
        for offset in walk.table.rows[COLUMNS * (number + 1) - FIELDS : COLUMNS * (number + 1)]:
            if not offset or size < offset + _WORD:
                return
            word = self._load(at + offset, _WORD)
            if word & 3 == 1 and not state[SHARED_START] <= word < state[SHARED_END]:
                walk.targets[state[FOUND]], walk.owners[state[FOUND]] = word, number
                state[FOUND] += 1

    def _size(self, at: int, row: Sequence[int]) -> int:
        """Return the size of an object; 0 if a number is beyond the end."""
        kind, base, _, first, width, _, _, _, _, second, second_unit = row[:SIZE_COLUMNS]
        if kind == FIXED:
            return base
        if kind != COUNTED:
            return self._up_to_map(at)
        if width not in (1, 2, 4) or self.end - at < max(first + width, second + 4 if second_unit else 0):
            return 0
        return size_by_count(row, self._load(at + first, width), self._load(at + second, 4) if second_unit else 0)

    def _up_to_map(self, at: int) -> int:
        place = at + _WORD
        while self.end - place >= _WORD:
            word = self._load(place, _WORD)
            if word and self.walk.table.find(word) < len(self.walk.table):
                break
            place += _WORD
        return place - at

    def _load(self, address: int, width: int) -> int:
        at = address - self.piece.address
        return int.from_bytes(self.piece.data[at : at + width], self.order)
