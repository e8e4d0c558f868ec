"""Walk the objects of a Java heap in Python: the reference for common/native/java_objects.c and
java_references.c."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator

from findleaks.engine.contract import Graph
from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.reference.graph import PureGraph
from findleaks.runtimes.jvm.engine import (
    ARRAY,
    CHUNK,
    CLASS_WORD,
    END,
    FIXED,
    FOUND,
    LIMIT,
    MIRROR,
    MOVED,
    MOVED_BITS,
    NO_CLASS,
    OBJECTS,
    POSITION,
    ROW,
    STEP,
    ObjectWalk,
    ReferenceSearch,
    Step,
)
from findleaks.runtimes.jvm.references import BELOW
from findleaks.target.base import Piece

_FREE_MASK, _FREE_BITS, _FREE_SHIFT = 0x87, 0x81, 8
_MOST_LENGTH, _MOST_SHIFT = 0x7FFFFFFF, 3


def walk_objects(engine: PureEngine, piece: Piece, walk: ObjectWalk) -> int:
    """See engine.py."""
    return _Walk(engine, piece, walk).run()


class _Walk:
    def __init__(self, engine: PureEngine, piece: Piece, walk: ObjectWalk) -> None:
        self.arch, self.piece, self.walk = engine.arch, piece, walk
        self.top = piece.address + len(piece.data)

    def run(self) -> int:
        state, made, gone, table = self.walk.state, 0, 0, self.walk.table
        at, end = state[POSITION], min(state[END], self.top)
        state[FOUND] = state[MOVED] = 0
        if at < self.piece.address:
            return Step.DAMAGED
        result = Step.DONE
        while at < end:
            result = Step.FULL if len(self.walk.starts) in (made, gone) else Step.DONE
            size, number = 0, 0
            if result == Step.DONE and state[CHUNK]:
                result, skipped = self.skip(at)
                if skipped:
                    at += skipped
                    continue
            if result == Step.DONE:
                result, number, size = self.read(at)
            if result != Step.DONE:
                break
            if self.is_moved(at):
                self.walk.moved[2 * gone : 2 * gone + 2] = array("Q", [at, self.number(at, 8) & ~MOVED_BITS])
                gone += 1
                at += max(size, state[CHUNK]) + -size % max(state[STEP], 1)
                continue
            self.walk.starts[made], self.walk.sizes[made], self.walk.numbers[made] = at, size, number
            table.totals[2 * number] += 1
            table.totals[2 * number + 1] += size
            made += 1
            at += max(size, state[CHUNK]) + -size % max(state[STEP], 1)
        state[POSITION], state[FOUND], state[MOVED] = at, made, gone
        return result

    def is_moved(self, at: int) -> bool:
        """Return whether the object was moved, and moved objects are recorded."""
        return bool(self.walk.moved) and self.top - at >= 8 and self.number(at, 8) & MOVED_BITS == MOVED_BITS

    def skip(self, at: int) -> tuple[Step, int]:
        """Return the reason to stop, and the bytes of a free chunk of CMS; 0 if there is none."""
        if self.top - at < 16:
            return Step.CUT, 0
        first, second = self.number(at, 8), self.number(at + 8, 8)
        compressed = self.walk.references.size == 4
        if not (first & _FREE_MASK == _FREE_BITS if compressed else second & 1):
            return Step.DONE, 0
        words = first >> _FREE_SHIFT if compressed else first
        size = words * self.arch.word if words < 1 << 56 else 0
        return (Step.DONE, size) if 0 < size <= self.walk.state[LIMIT] - at else (Step.DAMAGED, 0)

    def read(self, at: int) -> tuple[Step, int, int]:
        """Return the reason to stop (DONE: there is none), the number of the class, and the size of
        the object."""
        header, table = self.walk.header, self.walk.table
        needed = header.klass_at + header.klass_bytes
        if self.top - at < needed:
            return Step.CUT, 0, 0
        if not header.klass_at and self.is_moved(at):
            return Step.MOVED_HEADER, 0, 0
        word = self.number(at + header.klass_at, header.klass_bytes) >> header.klass_shift
        number = table.find(word) if word else len(table)
        if number >= len(table):
            self.walk.state[CLASS_WORD] = word
            return Step.NEW_CLASS, 0, 0
        kind, first, shift = table.rows[ROW * number : ROW * number + 3]
        last = {FIXED: shift + 4 if shift else 0, ARRAY: header.length_at + 4, OBJECTS: header.length_at + 4, MIRROR: first + 4}[kind]
        if self.top - at < max(needed, last):
            return Step.CUT, 0, 0
        size = self.size(at, kind, first, shift)
        size += -size % header.alignment
        if not size or size > self.walk.state[LIMIT] - at:
            return Step.DAMAGED, 0, 0
        return Step.DONE, number, size

    def size(self, at: int, kind: int, first: int, shift: int) -> int:
        if kind == FIXED:
            return self.chunk_size(first, self.number(at + shift, 4)) if shift else first
        if kind == MIRROR:
            return self.number(at + first, 4) * self.arch.word
        length = self.number(at + self.walk.header.length_at, 4)
        return 0 if length > _MOST_LENGTH or shift > _MOST_SHIFT else first + (length << shift)

    def chunk_size(self, first: int, words: int) -> int:
        """Return the size of an object with this number of words of a stack, and with a bit for
        each place where a reference can be."""
        word = self.arch.word
        bits = words * (word // self.walk.references.size)
        return 0 if words > _MOST_LENGTH else first + (words + -(-bits // (8 * word))) * word

    def number(self, address: int, size: int) -> int:
        at = address - self.piece.address
        return int.from_bytes(self.piece.data[at : at + size], self.arch.byteorder)


def select_objects(engine: PureEngine, numbers: array[int], marks: bytearray, most: int) -> array[int]:
    """See engine.py."""
    return array("I", (index for index, number in enumerate(numbers) if marks[number]))


def scan_references(engine: PureEngine, graph: Graph, piece: Piece, search: ReferenceSearch) -> None:
    """See engine.py; the graph must be this engine's."""
    if not isinstance(graph, PureGraph):
        raise TypeError("a graph of another engine")
    _References(engine, graph, piece, search).run()


class _References:
    def __init__(self, engine: PureEngine, graph: PureGraph, piece: Piece, search: ReferenceSearch) -> None:
        self.word = engine.arch.word
        self.order, self.graph, self.piece, self.search = engine.arch.byteorder, graph, piece, search
        self.blocks, self.table, self.top = graph.blocks, search.walk.table, piece.address + len(piece.data)

    def run(self) -> None:
        piece, blocks, search = self.piece, self.blocks, self.search
        # Empty pieces let the graph check that pieces ascend.
        self.graph.scan_blocks(Piece(piece.address, memoryview(b"")))
        self.graph.scan_blocks(Piece(self.top, memoryview(b"")))
        first = blocks.find(piece.address)
        for index in range(blocks.at_or_after(piece.address) if first < 0 else first, len(blocks)):
            start, number = blocks.address(index), search.numbers[index]
            if start >= self.top:
                return
            if number >= len(self.table):
                continue
            for address in self.references(index, start, number):
                target = blocks.find(address)
                if target >= 0 and blocks.address(target) == address:
                    self.add(index, target)
            if start < piece.address:
                continue
            at = bisect_left(search.extra, index << 32)
            while at < len(search.extra) and search.extra[at] >> 32 == index:
                self.add(index, search.extra[at] & NO_CLASS)
                at += 1
            if search.mirrors[number] != NO_CLASS:
                self.add(index, search.mirrors[number])

    def add(self, source: int, target: int) -> None:
        """Add a reference from an object to another one."""
        if source != target and target < len(self.blocks):
            self.graph.edges.append(target << 1)
            self.graph.counts[source] += 1

    def number(self, address: int, size: int) -> int:
        """Return the number at this address; -1 if it is not in the piece."""
        at = address - self.piece.address
        if at < 0 or at + size > len(self.piece.data):
            return -1
        return int.from_bytes(self.piece.data[at : at + size], self.order)

    def references(self, index: int, start: int, number: int) -> Iterator[int]:
        """Yield the addresses to which an object refers."""
        kind, first, shift, statics = self.table.rows[ROW * number : ROW * number + ROW]
        size = self.search.walk.references.size
        if kind == OBJECTS:
            length, most = self.number(start + self.search.walk.header.length_at, 4), max(self.blocks.size(index) - first, 0) // size
            yield from self.values(start + first, most if length < 0 else min(length, most))
            return
        maps, at = self.table.maps, self.table.map_first[number]
        for pair in range(at, self.table.map_first[number + 1]):
            yield from self.values(start + maps[2 * pair], maps[2 * pair + 1])
        if kind == FIXED and shift:
            yield from self.chunk_values(start, first, max(self.blocks.size(index) - first, 0) // self.word, shift, statics)
        if kind == MIRROR:
            most = max(self.blocks.size(index) - statics, 0) // size
            yield from self.values(start + statics, min(max(self.number(start + shift, 4), 0), most))

    def chunk_values(self, start: int, first: int, words: int, at_words: int, at_used: int) -> Iterator[int]:
        """Yield what the words of a stack, and their halves, may refer to. Words before the first
        used one are left out."""
        present, used = self.number(start + at_words, 4), self.number(start + at_used, 4)
        if present < 0 or used < 0:
            present, used = words, 0
        words = min(words, present)
        used = min(used, words)
        address, count = start + first + used * self.word, words - used
        references = self.search.walk.references
        yield from self.values(address, count * (self.word // references.size))
        if references.size != self.word or references.colors.place == BELOW:
            for word in self.numbers(address, count, self.word):
                moved = references.colors.young.find(word), references.colors.old.find(word)
                yield from (word, *(one for one in moved if one))

    def values(self, address: int, count: int) -> Iterator[int]:
        references = self.search.walk.references
        return map(references.decode, self.numbers(address, count, references.size))

    def numbers(self, address: int, count: int, size: int) -> Iterator[int]:
        """Yield those of the `count` numbers at `address` that are in the piece and are not 0."""
        skipped = max(0, -(-(self.piece.address - address) // size))
        for at in range(address + skipped * size, min(address + count * size, self.top), size):
            value = self.number(at, size)
            if value > 0:
                yield value
