"""The C engine's functions for GSlice (gslice_slabs.c, gslice_shifts.c); see engine.py."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from ctypes import byref
from itertools import chain
from typing import TYPE_CHECKING

from findleaks.allocators.gslice.engine import SlabRead
from findleaks.engine.native.declarations import CWords
from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.library import Handle
from findleaks.engine.native.memory import c_array, c_piece
from findleaks.engine.shared import list_problem
from findleaks.engine.terms import RUN
from findleaks.target.base import Piece

if TYPE_CHECKING:
    from findleaks.allocators.type_nodes import InstanceType


def read_slabs(engine: NativeEngine, pieces: Sequence[Piece], heads: Sequence[int]) -> SlabRead:
    wanted, made = array("Q", heads), [CWords() for _ in SlabRead._fields]
    engine.library.fl_slice_slabs(*engine.pass_pieces(pieces), c_array(wanted), len(wanted), *map(byref, made))
    return SlabRead(*map(engine.library.take, made))


def read_magazines(
    engine: NativeEngine, pieces: Sequence[Piece], own: Sequence[int], rings: Sequence[int], most: int
) -> tuple[array[int], list[tuple[int, str]]]:
    firsts, others, made, wrong = array("Q", own), array("Q", rings), CWords(), CWords()
    heads = c_array(firsts), len(firsts), c_array(others), len(others)
    engine.library.fl_slice_magazines(*engine.pass_pieces(pieces), *heads, most, byref(made), byref(wrong))
    chunks, bad = engine.library.take(made), engine.library.take(wrong)
    return chunks, [(head, list_problem(why, node, count)) for head, why, node, count in zip(*(bad[part::4] for part in range(4)))]


class Starts:
    """See engine.ChunkStarts."""

    def __init__(self, engine: NativeEngine, slabs: SlabRead) -> None:
        self._library = engine.library
        self._kept = c_array(slabs.runs), c_array(slabs.choices)
        made = self._library.fl_shifts_new(*self._kept, len(slabs.runs) // RUN)
        self._handle = Handle(made, self._library.fl_shifts_free, "for the slabs of GSlice")

    def count_chunks(self, chunks: array[int]) -> None:
        self._library.fl_shifts_chunks(self._handle, c_array(chunks), len(chunks))

    def count_pointers(self, piece: Piece) -> None:
        self._library.fl_shifts_pointers(self._handle, c_piece(piece))

    def count_instances(self, piece: Piece, types: Iterable[InstanceType]) -> None:
        rows = sorted((one.class_address, one.private, one.private + one.size) for one in types)
        words = array("Q", chain.from_iterable(rows))
        self._library.fl_shifts_instances(self._handle, c_piece(piece), c_array(words), len(rows))

    def count_edges(self, piece: Piece) -> None:
        self._library.fl_shifts_edges(self._handle, c_piece(piece))

    def elect(self) -> int:
        return int(self._library.fl_shifts_elect(self._handle))
