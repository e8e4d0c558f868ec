"""Go's objects in the C engine (common/native/go_types.c, go_pointers.c)."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref

from findleaks.engine.native.blocks import NativeBlocks
from findleaks.engine.native.declarations import CGoPointers, CGoTypes
from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.memory import c_array, c_buffer, c_numbers, c_pieces
from findleaks.runtimes.go.engine import PointerTable, TypeSearch
from findleaks.target.base import Piece


def find_types(engine: NativeEngine, pieces: Sequence[Piece], search: TypeSearch, budget: int) -> None:
    """See engine.py; the blocks must be this engine's."""
    blocks, table = search.blocks, search.table
    if not isinstance(blocks, NativeBlocks):
        raise TypeError("blocks of another engine")
    known = CGoTypes(
        c_array(table.addresses),
        c_array(table.pointees),
        c_array(table.elements),
        len(table.addresses),
        c_array(table.sizes),
        c_array(table.pointers),
        c_array(table.first),
        c_array(table.offsets),
        c_array(table.kinds),
        c_array(table.targets),
        len(table.sizes),
        c_array(table.arenas),
        c_array(table.classes),
        len(table.arenas),
        c_array(table.below),
        int(table.has_headers),
    )
    arguments = *c_numbers(search.types), c_buffer(search.queue, "Q", 0), c_array(search.state)
    engine.library.fl_go_types(blocks.handle, *c_pieces(pieces), byref(known), *arguments, budget)


def copy_pointers(engine: NativeEngine, pieces: Sequence[Piece], table: PointerTable, start: int, data: bytearray) -> int:
    """See engine.py."""
    known = CGoPointers(
        c_array(table.starts),
        c_array(table.ends),
        c_array(table.sizes),
        c_array(table.large),
        c_array(table.classes),
        len(table.starts),
        c_array(table.addresses),
        c_array(table.strides),
        c_array(table.words),
        c_array(table.masks),
        c_array(table.bits),
        len(table.addresses),
        c_array(table.arenas),
        c_array(table.entries),
        len(table.arenas),
        table.form,
    )
    return int(engine.library.fl_go_pointers(*c_pieces(pieces), byref(known), start, start + len(data), c_array(data)))
