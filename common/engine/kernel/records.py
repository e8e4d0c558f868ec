"""Sorting records of managed heaps in the C kernel (common/kernel/records.c)."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Mapping, Sequence
from ctypes import byref, c_uint64

from findleaks.engine.kernel.library import DISORDER, check
from findleaks.engine.kernel.memory import c_array, c_piece
from findleaks.engine.records import COLUMNS, MOST, RUN, Key, Shape, shape_words
from findleaks.target.base import Piece


class KernelRecords:
    """See Records."""

    def __init__(self, library: ctypes.CDLL, shapes: Mapping[int, Shape], tag_mask: int, most: int = MOST) -> None:
        self._library = library
        words = shape_words(shapes, tag_mask)
        self._handle = library.fl_records_new(c_array(words), tag_mask, most)
        if not self._handle:
            raise MemoryError("no memory for sorting records")

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.fl_records_free(self._handle)

    def read(self, piece: Piece, runs: array[int]) -> array[int]:
        """See Records."""
        numbers = array("I", bytes(4 * self._count(piece, runs)))
        arguments = (c_piece(piece), c_array(runs), len(runs) // RUN, c_array(numbers))
        if check(self._library.fl_records(self._handle, *arguments), "records") == DISORDER:
            raise ValueError("records do not lie in their piece")
        return numbers

    def _count(self, piece: Piece, runs: Sequence[int]) -> int:
        """How many records there are; no more than the piece has words, or the kernel will refuse
        them."""
        count = sum(runs[2::RUN])
        if count > len(piece.data):
            raise ValueError("records do not lie in their piece")
        return count

    @property
    def left(self) -> int:
        """See Records."""
        return self._read()[2]

    def keys(self) -> list[Key]:
        """See Records."""
        words = self._read()[0]
        return list(zip(words[0::4], words[1::4], words[2::4], words[3::4]))

    def counts(self) -> list[int]:
        """See Records."""
        return self._read()[1].tolist()

    def _read(self) -> tuple[array[int], array[int], int]:
        left = c_uint64()
        count = self._library.fl_records_keys(self._handle, 0, None, None, byref(left))
        keys, counts = array("Q", bytes(8 * (1 + COLUMNS) * count)), array("Q", bytes(8 * count))
        if count:
            self._library.fl_records_keys(self._handle, 0, c_array(keys), c_array(counts), byref(left))
        return keys, counts, left.value
