"""Loading the C kernel's shared library: its functions' signatures, its structures, and what its result codes mean."""

from __future__ import annotations

import ctypes
import os
from array import array
from ctypes import POINTER, Structure, c_bool, c_char_p, c_int, c_int64, c_ubyte, c_uint, c_uint32, c_uint64, c_void_p

from findleaks.graph import shared

LIBRARY = "_kernel.so"

NO_MEMORY, TOO_MANY, DISORDER = -1, -2, -3  # kernel.h
NONE = 0xFFFFFFFF


class CPiece(Structure):
    """kernel.h: piece."""

    _fields_ = (("address", c_uint64), ("data", c_void_p), ("length", c_uint64))


class CRange(Structure):
    """kernel.h: range."""

    _fields_ = (("start", c_uint64), ("end", c_uint64))


class CWords(Structure):
    """kernel.h: words; `items` is to be freed with fl_free."""

    _fields_ = (("items", c_void_p), ("count", c_uint64), ("capacity", c_uint64))


class CGroup(Structure):
    """groups.c: group."""

    _fields_ = (
        *((name, c_uint64) for name in ("type_word", "size", "blocks", "bytes", "indirect_blocks", "indirect_bytes")),
        ("examples", c_uint64 * 3),
        *((name, c_uint32) for name in ("kind", "cycle", "least", "most")),
    )


class CChain(Structure):
    """retained.c: chain."""

    _fields_ = (("length", c_uint32), ("end", c_uint32), *((name, c_uint64) for name in ("least", "most", "bytes")), ("more", c_bool))


_U64S, _U32 = POINTER(c_uint64), POINTER(c_uint32)
_PIECE = POINTER(CPiece)

SIGNATURES = {
    "fl_free": (None, [c_void_p]),
    "fl_blocks_new": (c_void_p, [c_uint]),
    "fl_blocks_free": (None, [c_void_p]),
    "fl_append": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_uint64, _U64S]),
    "fl_append_runs": (c_int, [c_void_p, c_void_p, c_uint64, c_char_p, c_uint64]),
    "fl_append_blocks": (c_int, [c_void_p, c_void_p, c_uint32, c_uint32]),
    "fl_by_size": (c_int, [c_void_p, c_uint64, c_uint64, c_bool, POINTER(CWords)]),
    "fl_walk_chunks": (c_int, [c_void_p, _PIECE, _U64S, c_uint64, _U64S, POINTER(c_bool)]),
    "fl_seal": (None, [c_void_p]),
    "fl_count": (c_uint32, [c_void_p]),
    "fl_floor": (c_uint64, [c_void_p]),
    "fl_find": (c_uint32, [c_void_p, c_uint64]),
    "fl_at_or_after": (c_uint32, [c_void_p, c_uint64]),
    "fl_address": (c_uint64, [c_void_p, c_uint32]),
    "fl_size": (c_uint64, [c_void_p, c_uint32]),
    "fl_state": (c_ubyte, [c_void_p, c_uint32]),
    "fl_set_state": (c_uint64, [c_void_p, c_void_p, c_uint64, c_ubyte]),
    "fl_resize": (c_int, [c_void_p, c_uint32, c_uint64]),
    "fl_totals": (None, [c_void_p, c_ubyte, c_uint64, c_uint64, c_bool, _U64S, _U64S]),
    "fl_bytes_in": (None, [c_void_p, c_void_p, c_uint64, _U64S]),
    "fl_gaps": (c_int, [c_void_p, c_uint64, c_uint64, c_uint64, POINTER(CWords)]),
    "fl_pages": (None, [c_void_p, POINTER(CRange), c_uint, *([c_void_p] * 7)]),
    "fl_free_runs": (c_int, [c_void_p, POINTER(CRange), c_uint64, POINTER(CWords)]),
    "fl_common": (c_uint64, [c_void_p, c_uint64, c_void_p, c_uint64]),
    "fl_page_words": (None, [c_void_p, _PIECE, c_void_p, c_uint32, POINTER(CRange), c_uint, c_void_p, c_void_p]),
    "fl_graph_new": (c_void_p, [c_void_p, c_void_p]),
    "fl_graph_free": (None, [c_void_p]),
    "fl_graph_hints": (c_int, [c_void_p, c_uint, c_void_p, c_uint32]),
    "fl_graph_objects": (c_int, [c_void_p, c_void_p, c_uint64]),
    "fl_scan_blocks": (c_int, [c_void_p, _PIECE]),
    "fl_scan_roots": (c_int, [c_void_p, _PIECE]),
    "fl_root_words": (c_int, [c_void_p, c_void_p, c_uint64]),
    "fl_mark": (c_int, [c_void_p, c_int64]),
    "fl_classify": (c_int, [c_void_p, c_int64]),
    "fl_rooted": (c_bool, [c_void_p, c_uint32]),
    "fl_references": (c_uint32, [c_void_p, c_uint32, c_void_p, c_uint32]),
    "fl_referrers": (c_uint32, [c_void_p, c_uint32, c_void_p, c_uint32]),
    "fl_path": (c_void_p, [c_void_p, c_uint32, _U32]),
    "fl_kind_totals": (None, [c_void_p, c_ubyte, _U64S, _U64S]),
    "fl_leader": (c_uint32, [c_void_p, c_uint32]),
    "fl_cycle": (c_uint32, [c_void_p, c_uint32]),
    "fl_hanging": (None, [c_void_p, c_uint32, _U32, _U64S]),
    "fl_groups_new": (c_void_p, [c_void_p, c_void_p, c_uint32]),
    "fl_groups_free": (None, [c_void_p]),
    "fl_groups_feed": (c_int, [c_void_p, _PIECE]),
    "fl_groups_finish": (c_void_p, [c_void_p, _U64S]),
    "fl_dominators_new": (c_void_p, [c_void_p, c_uint32, c_bool, c_void_p, c_uint32]),
    "fl_dominators_free": (None, [c_void_p]),
    "fl_dominators_scan": (c_int, [c_void_p, _PIECE, c_void_p, c_void_p, c_uint64]),
    "fl_dominators_words": (c_int, [c_void_p, c_void_p, c_uint64, c_uint32]),
    "fl_dominators_refer": (None, [c_void_p, c_uint32, c_void_p, c_uint64]),
    "fl_dominators_stand_for": (None, [c_void_p, c_void_p]),
    "fl_dominators_keep": (None, [c_void_p, c_void_p, c_void_p]),
    "fl_dominators_lost": (None, [c_void_p, c_uint32, c_uint32]),
    "fl_dominators_compute": (c_int, [c_void_p, c_int64]),
    "fl_dominators_part": (c_uint32, [c_void_p]),
    "fl_dominators_arrays": (None, [c_void_p, c_void_p, _U32]),
    "fl_dominators_children": (c_int, [c_void_p, c_uint32, c_uint64, POINTER(CWords)]),
    "fl_dominators_spread": (c_int, [c_void_p, c_uint32, c_bool, POINTER(CWords)]),
    "fl_dominators_chain": (None, [c_void_p, c_uint32, c_bool, c_uint32, POINTER(CChain)]),
    "fl_fields_new": (c_void_p, [c_void_p, c_uint32, c_uint32, c_uint32]),
    "fl_fields_free": (None, [c_void_p]),
    "fl_fields_refer": (c_int, [c_void_p, c_uint32, c_void_p, c_uint64]),
    "fl_fields_words": (c_int, [c_void_p, c_uint32, c_void_p, c_uint64]),
    "fl_fields_compute": (c_int, [c_void_p, c_int64]),
    "fl_fields_done": (c_uint64, [c_void_p]),
    "fl_fields_children": (c_int, [c_void_p, c_uint32, c_uint64, POINTER(CWords)]),
    "fl_fields_spread": (c_int, [c_void_p, c_uint32, c_bool, POINTER(CWords)]),
    "fl_fields_arrays": (None, [c_void_p, c_void_p, _U32]),
    "fl_tree_new": (c_void_p, [c_uint64, c_uint64, c_void_p, c_uint64]),
    "fl_tree_free": (None, [c_void_p]),
    "fl_tree_walk": (c_int, [c_void_p, c_void_p, c_uint64, c_int64]),
    "fl_tree_done": (None, [c_void_p, POINTER(CWords), _U64S]),
    "fl_links_new": (c_void_p, [c_void_p, c_uint64, c_void_p, c_uint64, c_uint64, c_uint64]),
    "fl_links_free": (None, [c_void_p]),
    "fl_links_walk": (c_int, [c_void_p, c_void_p, c_uint64, c_int64]),
    "fl_links_done": (c_uint64, [c_void_p, POINTER(CWords)]),
    "fl_holding": (None, [c_void_p, c_void_p, c_uint64, c_void_p, c_void_p]),
    "fl_claim": (c_bool, [c_void_p, c_uint64, c_void_p, c_uint64, c_uint32]),
    "fl_labels_below": (c_bool, [c_void_p, c_uint64, c_uint64]),
    "fl_lookup": (c_uint32, [c_void_p, c_uint64, _U64S]),
    "fl_follow": (c_int, [c_void_p, c_uint64, _U64S, c_int64, c_bool, c_uint64, POINTER(CWords)]),
    "fl_follow_all": (
        c_int,
        [c_void_p, c_uint64, c_void_p, c_uint64, c_int64, c_uint64, c_void_p, POINTER(CWords), c_void_p, POINTER(CWords)],
    ),
    "fl_gather": (c_int, [c_void_p, c_uint64, c_void_p, c_uint64, c_uint64, c_void_p, POINTER(CWords)]),
    "fl_self_pointers": (c_int, [_PIECE, c_int64, POINTER(CWords)]),
    "fl_tally": (c_uint64, [c_void_p, c_void_p, c_uint64, c_bool, c_void_p, c_void_p]),
    "fl_search": (c_int, [_PIECE, c_uint64, c_uint64, POINTER(CWords)]),
    "fl_read_groups": (
        c_int,
        [
            *(c_void_p, c_uint64, c_void_p, c_uint64, c_void_p, c_uint64, c_void_p, c_uint32, c_uint64, c_uint64),
            *(POINTER(CWords), POINTER(CWords), POINTER(CWords), c_void_p),
        ],
    ),
    "fl_read_slots": (
        c_int,
        [c_void_p, c_uint64, c_void_p, c_uint64, c_uint64, c_uint64, c_void_p, c_void_p, c_void_p, _U64S, POINTER(CWords), c_void_p],
    ),
    "fl_walk_tags": (c_int, [_PIECE, _U64S, _U64S, c_uint64, c_uint64, c_void_p, c_void_p, c_void_p, _U64S]),
    "fl_objects": (
        c_int,
        [
            c_void_p,
            _PIECE,
            c_void_p,
            *(c_char_p, c_char_p, c_char_p),
            c_uint64,
            POINTER(CRange),
            *(c_void_p, c_void_p, c_void_p),
            POINTER(CWords),
        ],
    ),
    "fl_read_slabs": (
        c_int,
        [
            *(c_void_p, c_uint64, c_void_p, c_uint64, c_void_p, c_uint32, POINTER(CWords), c_void_p, POINTER(c_void_p), _U64S),
            *(POINTER(CWords), POINTER(CWords)),
        ],
    ),
    "fl_mark_cached": (c_int, [*(c_void_p, c_void_p, c_void_p, c_uint64, c_void_p, c_uint64, c_void_p, c_uint64, POINTER(CWords))]),
    "fl_read_buffers": (
        c_int,
        [
            *(c_void_p, c_void_p, c_uint64, c_void_p, c_void_p, c_void_p, _U64S, c_uint64, c_void_p, c_uint64),
            *(POINTER(CWords), c_void_p),
        ],
    ),
    "fl_records_new": (c_void_p, [c_void_p, c_uint64, c_uint64]),
    "fl_records_free": (None, [c_void_p]),
    "fl_records": (c_int, [c_void_p, _PIECE, c_void_p, c_uint64, c_void_p]),
    "fl_records_keys": (c_uint64, [c_void_p, c_uint64, c_void_p, c_void_p, _U64S]),
    "fl_search_any": (c_int, [_PIECE, c_void_p, c_uint64, POINTER(CWords)]),
}


def library(path: str = "") -> ctypes.CDLL:
    """The kernel's library, from `path` or beside this file; OSError where it is missing or of another machine."""
    loaded = ctypes.CDLL(path or os.path.join(os.path.dirname(os.path.abspath(__file__)), LIBRARY))
    for name, (result, arguments) in SIGNATURES.items():
        try:
            function = getattr(loaded, name)
        except AttributeError as error:  # a library of another version
            raise OSError(str(error)) from error
        function.restype = result
        function.argtypes = arguments
    return loaded


def check(code: int, what: str) -> int:
    """Raise what a negative result code means; `what` there may be too many of. DISORDER is the caller's."""
    if code == NO_MEMORY:
        raise MemoryError("not enough memory for the heap's graph")
    if code == TOO_MANY:
        raise shared.TooManyBlocks(what)
    return code


def taken(loaded: ctypes.CDLL, words: CWords) -> array[int]:
    """The words that the kernel allocated, as our own."""
    made: array[int] = array("Q")
    if words.items:
        made.frombytes(ctypes.string_at(words.items, words.count * 8))
        loaded.fl_free(words.items)
    return made


def viewed(address: int | None, count: int, size: int) -> memoryview:
    """The kernel's array of `count` words of 4 or 8 bytes, read-only, for as long as the kernel keeps it."""
    if not address or not count:
        return memoryview(b"")
    found = memoryview((ctypes.c_char * (count * size)).from_address(address)).toreadonly().cast("B")
    return found.cast("I") if size == 4 else found.cast("Q")
