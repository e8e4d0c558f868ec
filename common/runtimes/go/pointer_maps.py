"""Find the pointers in Go's objects as Go's collector does. Other words of objects are numbers,
which may look like addresses of objects.

A mask of a type has a bit for each word. The binary has no masks for types of large arrays. Up
to 1.23, it has a program (GCProg) that computes the mask. Since 1.24, the runtime computes the mask
when it is first needed. If there is no mask, findleaks computes it from the fields of the type.

Sources: engine.PointerTable; Go 1.18 to 1.26, src/internal/abi/type.go (GCData, KindGCProg,
TFlagGCMaskOnDemand), src/runtime/type.go (getGCMaskOnDemand)."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import compress
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.runtimes.go.engine import ARENA, BITMAP, HEADERS, MOST_SMALL, NONE, NOSCAN, PAIRS, PointerTable, copy_pointers
from findleaks.runtimes.go.heap import SPANS_AT, Heap
from findleaks.runtimes.go.pointer_words import MOST_READ, pointer_offsets
from findleaks.runtimes.go.span_table import ObjectSpans, join_spans
from findleaks.runtimes.go.types import Types
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import merge_ranges

_STEP = 512 << 10  # bytes that are copied at a time: the copy stays in the processor's cache
_GAP = 64 << 10  # bytes without pointers between spans that are copied together
_WORD = 8
_MAX_MASKS = 1 << 26  # bytes of all masks; types beyond this limit have an unknown mask
# Bytes of memory that one byte of a heapArena's bitmap describes. The key is PointerTable.form.
_DENSITY = {BITMAP: 64, PAIRS: 32}
_GROUP = 8  # bytes of a bitmap that are read at a time


class _Mask(NamedTuple):
    """The mask of a type. `stride`: size of a value in bytes. `words`: number of words that `bits`
    describes."""

    stride: int
    words: int
    bits: bytes


class PointerMaps:
    """The pointers in the objects of a heap. `spans`: all spans. `headers`: addresses of
    types that may be in the headers of objects. `unknown`: the number of parts of objects that had
    no map, and in which each word counted as a pointer."""

    def __init__(self, memory: Memory, engine: Engine, heap: Heap, types: Types, spans: ObjectSpans, headers: Iterable[int]) -> None:
        self._memory, self._engine, self._types = memory, engine, types
        self._form = HEADERS if heap.layout == SPANS_AT[0] else BITMAP if heap.layout == SPANS_AT[1] else PAIRS
        self.unknown, self._left = 0, iter(range(MOST_READ))
        self._heap, self._starts = heap, array("Q", compress(spans.starts, spans.scanned))
        self._ends = array("Q", compress(spans.ends, spans.scanned))
        self._kinds = bytearray(compress(spans.kinds, spans.scanned))
        self._sizes, self._large = array("Q", compress(spans.sizes, spans.scanned)), list(compress(spans.large, spans.scanned))
        self._table = self._build_table(heap, headers if self._form == HEADERS else ())

    def _build_table(self, heap: Heap, headers: Iterable[int]) -> PointerTable:
        addresses, strides, words, places, bits = array("Q"), array("Q"), array("Q"), array("Q"), bytearray()
        for address in sorted({*headers, *self._large} - {0}):
            mask = self._read_mask(address, _MAX_MASKS - len(bits))
            if mask is not None:
                addresses.append(address)
                strides.append(mask.stride)
                words.append(mask.words)
                places.append(len(bits))
                bits += mask.bits
        numbers = {address: number for number, address in enumerate(addresses)}
        return PointerTable(
            self._starts,
            self._ends,
            self._sizes,
            array("I", [numbers.get(address, NONE) for address in self._large]),
            self._kinds,
            addresses,
            strides,
            words,
            places,
            bits,
            array("Q", heap.arenas),
            array("Q", heap.entries),
            self._form,
        )

    def _read_mask(self, address: int, most: int) -> Optional[_Mask]:
        """Return the mask of the type at this address; None if it is unknown, or longer than `most`
        bytes. A type that is made at run time need not be in the program's section of types."""
        one = self._types.mask(address)
        if one is None or one.size % _WORD or not one.size or one.pointers > one.size:
            return None
        place, words = one.mask, one.pointers // _WORD
        if one.is_indirect:
            if self._types.at(address) is None:
                return None  # the flag may have another meaning here; see types.py, _ON_DEMAND
            place = self._memory.word(place) or 0
        length = -(-words // 8)
        if length > most:
            return None
        if one.is_program or not place:
            offsets = pointer_offsets(self._types, address, self._left)
            bits = sum(1 << at // _WORD for at in offsets or ())
            return _Mask(one.size, words, bits.to_bytes(length, "little")) if offsets and bits >> words == 0 else None
        data = self._memory.read(place, length)
        return _Mask(one.size, words, data) if len(data) == length else None

    def pieces(self, ranges: Iterable[Range]) -> Iterator[Piece]:
        """Yield the memory of objects in some ranges, with zeros in place of words that are no
        pointers. Memory of objects without pointers is left out. The ranges consist of whole
        words."""
        for low, high in self._steps(merge_ranges(ranges)):
            found = self._overlapping(low, high)
            for first, last in join_spans(self._starts[found], self._ends[found]):
                yield self._copy(Range(max(first, low), min(last, high)))

    def all_pieces(self) -> Iterator[Piece]:
        """Yield the memory of all objects with pointers, with zeros in place of words that are no
        pointers.

        In a heap of small objects, most spans are one page, and every second one may have no
        pointers. A piece therefore includes short gaps between spans, as zeros: one call copies
        many spans."""
        for low, high in self._steps(join_spans(self._starts, self._ends, _GAP)):
            found = self._overlapping(low, high)
            if found.start < found.stop:
                yield self._copy(Range(max(self._starts[found.start], low), min(self._ends[found.stop - 1], high)))

    def _steps(self, ranges: Iterable[Range]) -> Iterator[Range]:
        for start, end in ranges:
            for low in range(start, end, _STEP):
                if self._memory.target.is_interrupted():
                    raise Interrupted
                yield Range(low, min(low + _STEP, end))

    def _copy(self, where: Range) -> Piece:
        piece, unknown = copy_pointers(self._engine, list(self._sources(where)), self._table, where)
        self.unknown += unknown
        return piece

    def _overlapping(self, low: int, high: int) -> slice:
        """Return which spans contain a part of [low, high)."""
        return slice(bisect_right(self._ends, low), bisect_left(self._starts, high))

    def _sources(self, where: Range) -> Iterator[Piece]:
        """Yield the memory that copy_pointers needs for a range."""
        needed = [where]
        if self._form == HEADERS:
            # A span of small objects has its bitmap at its end.
            # Only the first and the last span may extend beyond the range.
            found = self._overlapping(*where)
            needed += [Range(self._starts[at], self._ends[at]) for at in {found.start, found.stop - 1} if self._kinds[at] > NOSCAN]
        else:
            density = _DENSITY[self._form]
            lowest = where.start - MOST_SMALL  # an object may begin before the range
            first = max(bisect_right(self._heap.arenas, lowest) - 1, 0)
            last = bisect_left(self._heap.arenas, where.end)
            for arena, entry in zip(self._heap.arenas[first:last], self._heap.entries[first:last]):
                low, high = max(arena, lowest), min(arena + ARENA, where.end)
                if low < high:
                    needed.append(Range(entry + (low - arena) // density, entry + (high - arena) // density + _GROUP))
        for start, end in merge_ranges(needed):
            yield from self._memory.target.pieces(start, end)
