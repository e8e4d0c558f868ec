"""Slabs and their buffers in the C engine (common/native/umem_slabs.c, umem_buffers.c)."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import byref, c_uint64, c_void_p

from findleaks.allocators.umem import engine as s
from findleaks.allocators.umem.engine import BufferRead, SlabRead, SlabWrong
from findleaks.engine import shared
from findleaks.engine.contract import Blocks
from findleaks.engine.native.blocks import NativeBlocks
from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.library import DISORDER, CWords
from findleaks.engine.native.memory import c_array, c_ranges, zeros
from findleaks.target.base import Piece, Range


def read_slabs(engine: NativeEngine, pieces: Sequence[Piece], caches: array[int], regions: Sequence[Range]) -> SlabRead:
    count = len(caches) // s.CACHE
    ends, states, chunks = zeros("Q", count), c_void_p(), c_uint64()
    records, users, wrong = CWords(), CWords(), CWords()
    outputs = (byref(records), c_array(ends), byref(states), byref(chunks), byref(users), byref(wrong))
    engine.library.fl_read_slabs(*engine.pass_pieces(pieces), c_array(caches), count, *c_ranges(regions), *outputs)
    found, placed, bad = map(engine.library.take, (records, users, wrong))
    marks = bytearray()
    if states:
        marks += (ctypes.c_ubyte * chunks.value).from_address(states.value or 0)
        engine.library.fl_free(states)
    sums = zeros("Q", s.SUMS * count)
    named = [
        SlabWrong(kind, cache, slab, 0 if kind in (s.LIST, s.FREE_LIST) else value, shared.list_problem(why, value, nodes))
        for kind, cache, slab, value, why, nodes in zip(*(bad[at::6] for at in range(6)))
    ]
    return SlabRead(caches, found, ends, marks, placed, named, sums)


def mark_cached(engine: NativeEngine, slabs: SlabRead, cache: int, buffers: Sequence[int]) -> list[tuple[int, int]]:
    wanted = array("Q", buffers)
    places = (c_array(slabs.caches), c_array(slabs.records), c_array(slabs.users), len(slabs.users) // s.USER, c_array(slabs.states))
    bad = engine.library.words(engine.library.fl_mark_cached, *places, cache, c_array(wanted), len(wanted))
    return list(zip(bad[::2], bad[1::2]))


def read_buffers(
    engine: NativeEngine, blocks: Blocks, pieces: Sequence[Piece], slabs: SlabRead, first: int, last: int, enough: int
) -> BufferRead:
    if not isinstance(blocks, NativeBlocks):
        raise TypeError("blocks of another engine")
    at, troubles = c_uint64(first), CWords()
    places = map(c_array, (slabs.caches, slabs.records, slabs.users))
    last = min(last, len(slabs.users) // s.USER)
    arguments = (byref(at), last, c_array(slabs.states), enough, c_array(slabs.sums), byref(troubles))
    code = engine.library.fl_read_buffers(blocks.open_handle(), *engine.pass_pieces(pieces), *places, *arguments)
    wrong = engine.library.take(troubles)
    if code == DISORDER:
        raise ValueError(f"slabs {first} to {last} do not lie above the blocks before them")
    return BufferRead(wrong, at.value)
