"""Sort records of managed heaps in the C engine (common/native/records.c)."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from ctypes import byref, c_uint64

from findleaks.engine.native.declarations import CWords
from findleaks.engine.native.library import DISORDER, CLibrary, Handle
from findleaks.engine.native.memory import c_array, c_piece, zeros
from findleaks.engine.records import MOST, RUN, Key, Shape, shape_words
from findleaks.target.base import Piece


class NativeRecords:
    """See Records."""

    def __init__(self, library: CLibrary, shapes: Mapping[int, Shape], tag_mask: int, most: int = MOST) -> None:
        self._library = library
        words = shape_words(shapes, tag_mask)
        made = library.fl_records_new(c_array(words), tag_mask, most)
        self._handle = Handle(made, library.fl_records_free, "to sort records")

    def read(self, piece: Piece, runs: array[int]) -> array[int]:
        numbers = zeros("I", self._count(piece, runs))
        arguments = (c_piece(piece), c_array(runs), len(runs) // RUN, c_array(numbers))
        if self._library.fl_records(self._handle, *arguments) == DISORDER:
            raise ValueError("records are not in their piece")
        return numbers

    def _count(self, piece: Piece, runs: Sequence[int]) -> int:
        """Return the number of records. ValueError if it exceeds the number of words in the
        piece."""
        count = sum(runs[2::RUN])
        if count > len(piece.data):
            raise ValueError("records are not in their piece")
        return count

    @property
    def left(self) -> int:
        return self._read()[2]

    def keys(self) -> list[Key]:
        words = self._read()[0]
        return list(zip(words[0::4], words[1::4], words[2::4], words[3::4]))

    def counts(self) -> list[int]:
        return self._read()[1].tolist()

    def _read(self) -> tuple[array[int], array[int], int]:
        keys, counts, left = CWords(), CWords(), c_uint64()
        self._library.fl_records_keys(self._handle, byref(keys), byref(counts), byref(left))
        return self._library.take(keys), self._library.take(counts), left.value
