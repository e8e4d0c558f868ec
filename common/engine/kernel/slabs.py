"""Slabs and their buffers in the C kernel (../kernel/slabs.c, umem_buffers.c)."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import byref, c_uint64, c_void_p

from findleaks.engine import shared
from findleaks.engine import slabs as s
from findleaks.engine.kernel.library import DISORDER, CRange, CWords, check, taken
from findleaks.engine.kernel.memory import Pieces, memory
from findleaks.engine.slabs import BufferRead, SlabRead, SlabWrong
from findleaks.target.base import Range


def read_slabs(library: ctypes.CDLL, pieces: Pieces, caches: array[int], regions: Sequence[Range]) -> SlabRead:
    """See contract.Engine."""
    count = len(caches) // s.CACHE
    places = (CRange * len(regions))(*(CRange(*region) for region in regions))
    ends, states, chunks = array("Q", bytes(8 * count)), c_void_p(), c_uint64()
    records, users, wrong = CWords(), CWords(), CWords()
    outputs = (byref(records), memory(ends), byref(states), byref(chunks), byref(users), byref(wrong))
    code = library.fl_read_slabs(*pieces, memory(caches), count, places, len(regions), *outputs)
    found, placed, bad = (taken(library, words) for words in (records, users, wrong))
    marks = bytearray()
    if states:
        marks += (ctypes.c_ubyte * chunks.value).from_address(states.value or 0)
        library.fl_free(states)
    check(code, "slabs")
    sums = array("Q", bytes(8 * s.SUMS * count))
    named = [
        SlabWrong(kind, cache, slab, 0 if kind in (s.LIST, s.FREE_LIST) else value, shared.list_problem(why, value, nodes))
        for kind, cache, slab, value, why, nodes in zip(*(bad[at::6] for at in range(6)))
    ]
    return SlabRead(caches, found, ends, marks, placed, named, sums)


def mark_cached(library: ctypes.CDLL, slabs: SlabRead, cache: int, buffers: Sequence[int]) -> list[tuple[int, int]]:
    """See contract.Engine."""
    wanted, wrong = array("Q", buffers), CWords()
    places = (memory(slabs.caches), memory(slabs.records), memory(slabs.users), len(slabs.users) // s.USER, memory(slabs.states))
    code = library.fl_mark_cached(*places, cache, memory(wanted), len(wanted), byref(wrong))
    bad = taken(library, wrong)
    check(code, "buffers")
    return list(zip(bad[::2], bad[1::2]))


def read_buffers(library: ctypes.CDLL, blocks: int, pieces: Pieces, slabs: SlabRead, first: int, last: int, enough: int) -> BufferRead:
    """See contract.Engine; `blocks` is the kernel's directory."""
    at, troubles = c_uint64(first), CWords()
    places = map(memory, (slabs.caches, slabs.records, slabs.users))
    last = min(last, len(slabs.users) // s.USER)
    arguments = (byref(at), last, memory(slabs.states), enough, byref(troubles), memory(slabs.sums))
    code = library.fl_read_buffers(blocks, *pieces, *places, *arguments)
    wrong = taken(library, troubles)
    if check(code, "blocks") == DISORDER:
        raise ValueError(f"slabs {first} to {last} do not lie above the blocks before them")
    return BufferRead(wrong, at.value)
