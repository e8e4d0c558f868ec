"""Declare the structures and the functions of the C engine (../../native/api.h), for ctypes."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_bool, c_char_p, c_int, c_int64, c_ubyte, c_uint, c_uint32, c_uint64, c_void_p

from findleaks.engine.dwarf_sources import SECTIONS
from findleaks.engine.native.memory import CPiece, CRange


class CWords(Structure):
    """The structure `words` of native.h. Free `items` with fl_free."""

    _fields_ = (("items", c_void_p), ("count", c_uint64), ("capacity", c_uint64))


class CRules(Structure):
    """The structure `row_rules` of rows.h."""

    _fields_ = (
        *((name, c_uint32) for name in ("states", "kinds")),
        *((name, c_uint64) for name in ("low", "high")),
        ("owners", POINTER(CRange)),
        ("owner_texts", POINTER(c_uint32)),
        *((name, c_uint32) for name in ("owner_count", "no_owner")),
        ("tables", POINTER(CRange)),
        *((name, c_uint32) for name in ("table_count", "untyped")),
        ("words", POINTER(c_uint64)),
        ("word_texts", POINTER(c_uint32)),
        ("mapped", POINTER(CRange)),
        *((name, c_uint32) for name in ("mapped_count", "word_count", "string", "label_count")),
        *((name, POINTER(c_uint32)) for name in ("label_texts", "marks", "mark_texts")),
        ("typed", c_bool),
        *((name, POINTER(c_ubyte)) for name in ("characters", "text")),
        ("ends", POINTER(c_uint64)),
    )


class CRowColumns(Structure):
    """The structure `row_columns` of rows.h."""

    _fields_ = (
        ("indices", POINTER(c_uint32)),
        *((name, POINTER(c_uint64)) for name in ("addresses", "sizes", "names")),
        ("hints", POINTER(c_ubyte)),
        ("hint_ends", POINTER(c_uint32)),
        ("text", POINTER(c_ubyte)),
        ("capacity", c_uint64),
    )


class CBytes(Structure):
    """The structures `bytes` and `table_column` of dwarf.h."""

    _fields_ = (("data", POINTER(c_ubyte)), ("size", c_uint64))


class CSource(Structure):
    """The structure `source` of dwarf.h."""

    _fields_ = (
        *((name, CBytes) for name in SECTIONS),
        *((name, c_uint64) for name in ("key", "references", "others", "address_base", "ranges_base", "low_pc", "flags")),
    )


class CRunSearch(Structure):
    """The structure `run_search` of pointer_runs.c."""

    _fields_ = tuple((name, c_uint64) for name in ("low", "high", "least", "gap", "start", "last", "count"))


class CGoTypes(Structure):
    """The structure `go_types` of go_types.h."""

    _fields_ = (
        ("addresses", POINTER(c_uint64)),
        *((name, POINTER(c_uint32)) for name in ("pointees", "elements")),
        ("count", c_uint64),
        ("sizes", POINTER(c_uint64)),
        ("pointers", POINTER(c_ubyte)),
        *((name, POINTER(c_uint32)) for name in ("first", "offsets")),
        ("kinds", POINTER(c_ubyte)),
        ("targets", POINTER(c_uint32)),
        ("numbers", c_uint64),
        ("arenas", POINTER(c_uint64)),
        ("classes", POINTER(c_ubyte)),
        ("arena_count", c_uint64),
        ("below", POINTER(c_uint64)),
        ("has_headers", c_uint64),
    )


class CGoPointers(Structure):
    """The structure `go_pointers` of go_types.h."""

    _fields_ = (
        *((name, POINTER(c_uint64)) for name in ("starts", "ends", "sizes")),
        ("large", POINTER(c_uint32)),
        ("classes", POINTER(c_ubyte)),
        ("span_count", c_uint64),
        *((name, POINTER(c_uint64)) for name in ("addresses", "strides", "words", "masks")),
        ("bits", POINTER(c_ubyte)),
        ("type_count", c_uint64),
        *((name, POINTER(c_uint64)) for name in ("arenas", "entries")),
        *((name, c_uint64) for name in ("arena_count", "form")),
    )


class CJavaMoves(Structure):
    """The structure `java_moves` of java_objects.h."""

    _fields_ = (("before", POINTER(c_uint64)), ("now", POINTER(c_uint64)), ("count", c_uint64))


class CJavaHeap(Structure):
    """The structure `java_heap` of java_objects.h."""

    _fields_ = (
        *((name, c_uint64) for name in ("klass_at", "klass_bytes", "klass_shift", "length_at", "alignment")),
        *(("keys", POINTER(c_uint64)), ("numbers", POINTER(c_uint32)), ("mask", c_uint64)),
        *(("classes", POINTER(c_uint32)), ("class_count", c_uint64)),
        *((name, c_uint64) for name in ("oop_bytes", "oop_base", "oop_shift", "colors", "offsets", "current")),
        *((name, CJavaMoves) for name in ("young", "old")),
        *((name, POINTER(c_uint32)) for name in ("map_first", "maps")),
    )


# Python's buffers are passed as objects (see memory.py). Structures of the C engine are passed as
# handles.
_U64S, _U32S, _U8S, _HANDLE = POINTER(c_uint64), POINTER(c_uint32), POINTER(c_ubyte), c_void_p
_PIECES, _RANGES, _WORDS = POINTER(CPiece), POINTER(CRange), POINTER(CWords)

SIGNATURES = {
    "fl_sources": (c_uint32, []),
    "fl_target": (c_uint32, []),
    "fl_free": (None, [c_void_p]),
    "fl_blocks_new": (c_void_p, [c_uint, c_uint]),
    "fl_reserve": (None, [_HANDLE, c_uint64]),
    "fl_blocks_free": (None, [_HANDLE]),
    "fl_append": (c_int, [_HANDLE, _U64S, _U64S, _U8S, c_uint64]),
    "fl_append_runs": (c_int, [_HANDLE, _U64S, c_uint64, c_char_p, c_uint64]),
    "fl_append_blocks": (c_int, [_HANDLE, _HANDLE, c_uint32, c_uint32]),
    "fl_append_nested": (c_int, [_HANDLE, _HANDLE, c_uint32, c_uint32, _U64S, c_uint64, _U64S, c_uint64, _WORDS]),
    "fl_totals_in": (None, [_HANDLE, _U64S, c_uint64, _U64S]),
    "fl_by_size": (c_int, [_HANDLE, _U64S, c_uint64, _WORDS]),
    "fl_of_sizes": (c_int, [_HANDLE, c_uint64, c_uint64, c_uint64, _WORDS]),
    "fl_sample": (c_int, [_HANDLE, c_uint64, c_uint32, c_uint32, c_uint, _U64S, c_uint64, _WORDS]),
    "fl_walk_chunks": (c_int, [_HANDLE, _PIECES, _U64S, c_uint64, _U64S, POINTER(c_bool)]),
    "fl_block_columns": (None, [_HANDLE, c_uint32, c_uint32, _U64S, _U64S, _U8S]),
    "fl_block_indices": (c_uint32, [_HANDLE, c_uint32, c_uint32, c_uint32, _U8S, c_uint32, _U32S]),
    "fl_block_columns_of": (None, [_HANDLE, _U32S, c_uint64, _U64S, _U64S, _U8S]),
    "fl_rows": (c_int, [_HANDLE, POINTER(CRules), _PIECES, c_uint64, _U32S, _U32S, c_uint32, c_uint32, _U64S, _U8S, c_uint64, _U64S]),
    "fl_row_indices": (c_int, [_HANDLE, POINTER(CRules), _PIECES, c_uint64, _U32S, c_uint32, c_uint32, _U32S, _U64S, _U64S]),
    "fl_row_columns": (
        c_int,
        [_HANDLE, POINTER(CRules), _PIECES, c_uint64, _U32S, _U32S, c_uint32, c_uint32, _U64S, POINTER(CRowColumns), _U64S],
    ),
    "fl_largest_first": (None, [_HANDLE, _U32S, _U32S, c_uint64, c_uint64]),
    "fl_sound_chunks": (c_int, [_PIECES, _U64S, c_uint64, c_uint64, _U64S, _U64S, _WORDS]),
    "fl_seal": (None, [_HANDLE]),
    "fl_count": (c_uint32, [_HANDLE]),
    "fl_floor": (c_uint64, [_HANDLE]),
    "fl_find": (c_uint32, [_HANDLE, c_uint64]),
    "fl_at_or_after": (c_uint32, [_HANDLE, c_uint64]),
    "fl_address": (c_uint64, [_HANDLE, c_uint32]),
    "fl_size": (c_uint64, [_HANDLE, c_uint32]),
    "fl_state": (c_ubyte, [_HANDLE, c_uint32]),
    "fl_set_state": (c_uint64, [_HANDLE, _U64S, c_uint64, c_ubyte]),
    "fl_resize": (c_int, [_HANDLE, c_uint32, c_uint64]),
    "fl_totals": (None, [_HANDLE, c_uint32, c_uint32, _U64S]),
    "fl_bytes_in": (None, [_HANDLE, _U64S, c_uint64, _U64S]),
    "fl_gaps": (c_int, [_HANDLE, c_uint64, c_uint64, c_uint64, _WORDS]),
    "fl_pages": (None, [_HANDLE, _U64S, c_uint64, c_uint, POINTER(_U64S), _U64S, _U8S, _U8S, _U32S, _U32S, _U64S]),
    "fl_free_runs": (c_int, [_HANDLE, _RANGES, c_uint64, _WORDS]),
    "fl_common": (c_uint64, [_U64S, c_uint64, _U64S, c_uint64]),
    "fl_page_words": (None, [_HANDLE, _PIECES, _RANGES, c_uint32, _RANGES, c_uint, _U64S, _U64S]),
    "fl_graph_new": (c_void_p, [_HANDLE, _U8S]),
    "fl_graph_free": (None, [_HANDLE]),
    "fl_graph_heuristics": (c_int, [_HANDLE, c_uint, _RANGES, c_uint32, _U64S, c_uint64]),
    "fl_graph_exclude_words": (None, [_HANDLE, _U8S, _U64S]),
    "fl_graph_note": (None, [_HANDLE]),
    "fl_graph_count_interiors": (None, [_HANDLE]),
    "fl_interior_keys": (c_uint64, [_HANDLE, _U64S, _U64S, c_uint64, _U64S]),
    "fl_interior_count_new": (c_void_p, [_HANDLE]),
    "fl_interior_count_free": (None, [_HANDLE]),
    "fl_interior_count": (c_int, [_HANDLE, _U64S, c_uint64]),
    "fl_interior_rows": (c_int, [_HANDLE, c_uint64, _WORDS]),
    "fl_interior_held": (c_int, [_HANDLE, _U64S, c_uint32, _U64S, _U32S, c_uint32]),
    "fl_interior_accept": (c_int, [_HANDLE, _U64S, c_uint64, _U64S, c_uint64]),
    "fl_interior_effect": (None, [_HANDLE, _U64S, c_uint64, _U64S, c_uint64, _U64S, _U32S]),
    "fl_leak_head_sizes": (c_int, [_HANDLE, _WORDS]),
    "fl_disguises_new": (c_void_p, [_HANDLE, _RANGES, c_uint32, _U64S, c_uint32, c_uint64]),
    "fl_disguises_free": (None, [_HANDLE]),
    "fl_disguises_scan": (c_int, [_HANDLE, _PIECES, c_uint64, c_bool]),
    "fl_disguises_tries": (c_int, [_HANDLE, _WORDS]),
    "fl_disguises_keys": (c_int, [_HANDLE, _U64S, c_uint64, _WORDS, _WORDS, _WORDS]),
    "fl_disguises_references": (c_int, [_HANDLE, _U64S, c_uint64, _WORDS]),
    "fl_graph_connect": (c_int, [_HANDLE, _U64S, c_uint64]),
    "fl_promote": (c_int, [_HANDLE, c_int64]),
    "fl_structures_new": (c_void_p, [_HANDLE, _RANGES, c_uint32, c_uint64, c_bool, c_bool]),
    "fl_structures_free": (None, [_HANDLE]),
    "fl_structures_examine": (c_int, [_HANDLE, _PIECES, c_uint64, c_uint64]),
    "fl_structures_found": (c_int, [_HANDLE, _WORDS]),
    "fl_structures_places": (c_int, [_HANDLE, c_uint64, _WORDS]),
    "fl_scan_blocks": (c_int, [_HANDLE, _PIECES]),
    "fl_scan_roots": (c_int, [_HANDLE, _PIECES]),
    "fl_root_words": (c_int, [_HANDLE, _U8S, c_uint64]),
    "fl_mark_starts": (c_int, [_HANDLE, c_int64]),
    "fl_holds": (c_bool, [_HANDLE, _U64S, c_uint64]),
    "fl_unreferenced": (c_int, [_HANDLE, c_uint64, c_uint64, c_uint64, _WORDS]),
    "fl_mark": (c_int, [_HANDLE, c_int64]),
    "fl_classify": (c_int, [_HANDLE, c_int64]),
    "fl_rooted": (c_bool, [_HANDLE, c_uint32]),
    "fl_references": (c_int, [_HANDLE, c_uint32, _WORDS]),
    "fl_referrers": (c_int, [_HANDLE, c_uint32, c_uint64, _WORDS]),
    "fl_path": (c_int, [_HANDLE, c_uint32, _U32S, c_uint32, _U8S, c_uint64, _WORDS]),
    "fl_has_kind": (c_bool, [_HANDLE, c_ubyte, c_uint32]),
    "fl_kind_totals": (None, [_HANDLE, _U64S]),
    "fl_kind_sizes": (c_int, [_HANDLE, c_ubyte, _WORDS]),
    "fl_kind_bytes": (None, [_HANDLE, _U64S, c_uint64, _U64S]),
    "fl_kind_figures": (None, [_HANDLE, _U32S, c_uint64, _U64S, c_uint64, _U64S]),
    "fl_heads": (c_int, [_HANDLE, _WORDS]),
    "fl_leak_head": (c_uint32, [_HANDLE, c_uint32]),
    "fl_leak_heads": (None, [_HANDLE, c_uint32, c_uint32, _U32S]),
    "fl_cycle": (c_uint32, [_HANDLE, c_uint32]),
    "fl_hanging": (None, [_HANDLE, c_uint32, _U32S, _U64S]),
    "fl_graph_set_labels": (None, [_HANDLE, _U8S, c_uint64, _U32S]),
    "fl_has_cycles": (c_bool, [_HANDLE]),
    "fl_cycle_ranges": (c_int, [_HANDLE, c_uint64, _WORDS]),
    "fl_cycles_feed": (None, [_HANDLE, _PIECES, _RANGES, c_uint32]),
    "fl_cycles_finish": (None, [_HANDLE]),
    "fl_representative": (c_uint32, [_HANDLE, c_uint32]),
    "fl_label_totals": (None, [_HANDLE, c_uint32, c_uint32, _U64S]),
    "fl_groups_new": (c_void_p, [_HANDLE, _RANGES, c_uint32, c_bool, _U32S]),
    "fl_groups_free": (None, [_HANDLE]),
    "fl_groups_feed": (c_int, [_HANDLE, _PIECES]),
    "fl_groups_finish": (c_int, [_HANDLE, _WORDS]),
    "fl_dominators_new": (c_void_p, [_HANDLE, c_uint32, c_bool, _U32S, c_uint32]),
    "fl_dominators_free": (None, [_HANDLE]),
    "fl_dominators_scan": (c_int, [_HANDLE, _PIECES, _U64S, _U32S, c_uint64]),
    "fl_dominators_words": (c_int, [_HANDLE, _U8S, c_uint64, c_uint32]),
    "fl_dominators_refer": (None, [_HANDLE, c_uint32, _U32S, c_uint64]),
    "fl_dominators_merge": (None, [_HANDLE, _U32S]),
    "fl_dominators_expect_leaf_trees": (None, [_HANDLE]),
    "fl_dominators_set_owners": (None, [_HANDLE, _U32S, _U32S]),
    "fl_dominators_lost": (None, [_HANDLE, c_uint32, c_uint32]),
    "fl_dominators_compute": (c_int, [_HANDLE, c_int64]),
    "fl_dominators_progress": (c_uint32, [_HANDLE]),
    "fl_dominators_arrays": (None, [_HANDLE, POINTER(c_void_p), _U32S]),
    "fl_dominators_place": (c_uint32, [_HANDLE, c_uint32]),
    "fl_dominators_count": (c_uint32, [_HANDLE, c_uint32]),
    "fl_dominators_bytes": (c_uint64, [_HANDLE, c_uint32]),
    "fl_dominators_idoms": (c_int, [_HANDLE, POINTER(c_void_p)]),
    "fl_dominators_children": (c_int, [_HANDLE, c_uint32, c_uint64, _WORDS]),
    "fl_dominators_spread": (c_int, [_HANDLE, c_uint32, _WORDS]),
    "fl_dominators_sizes": (c_int, [_HANDLE, c_uint32, _WORDS]),
    "fl_dominators_chain": (None, [_HANDLE, c_uint32, c_bool, c_uint32, _U64S]),
    "fl_dominators_by_label": (None, [_HANDLE, _U8S, c_uint64, _U32S, c_uint32, _U32S, _U64S]),
    "fl_shared_roots_new": (c_void_p, [_HANDLE, c_uint32, c_uint32, _U32S, _U32S, c_uint64]),
    "fl_shared_roots_free": (None, [_HANDLE]),
    "fl_shared_roots_compute": (c_int, [_HANDLE, c_int64]),
    "fl_shared_roots_sets": (c_int, [_HANDLE, _WORDS]),
    "fl_fields_new": (c_void_p, [_HANDLE, c_uint32, c_uint32, c_uint32]),
    "fl_fields_free": (None, [_HANDLE]),
    "fl_fields_refer": (c_int, [_HANDLE, c_uint32, _U32S, c_uint64]),
    "fl_fields_words": (c_int, [_HANDLE, c_uint32, _U64S, c_uint64]),
    "fl_fields_compute": (c_int, [_HANDLE, c_int64]),
    "fl_fields_done": (c_uint64, [_HANDLE]),
    "fl_fields_children": (c_int, [_HANDLE, c_uint32, c_uint64, _WORDS]),
    "fl_fields_spread": (c_int, [_HANDLE, c_uint32, _WORDS]),
    "fl_fields_sizes": (c_int, [_HANDLE, c_uint32, _WORDS]),
    "fl_fields_arrays": (None, [_HANDLE, POINTER(c_void_p), _U32S]),
    "fl_tree_new": (c_void_p, [c_uint64, c_uint64, _U64S, c_uint64]),
    "fl_tree_free": (None, [_HANDLE]),
    "fl_tree_walk": (c_int, [_HANDLE, _PIECES, c_uint64, c_int64]),
    "fl_tree_done": (None, [_HANDLE, _WORDS, _U64S]),
    "fl_spread_new": (c_void_p, [_HANDLE, _U32S, _U32S]),
    "fl_spread_free": (None, [_HANDLE]),
    "fl_spread_use": (None, [_HANDLE, _PIECES, c_uint64]),
    "fl_spread_layout": (c_int, [_HANDLE, _U64S, c_uint64, _U64S, c_uint64, _U64S, c_uint64]),
    "fl_spread_choices": (c_int, [_HANDLE, _U32S, c_uint64]),
    "fl_spread_memory": (None, [_HANDLE, _RANGES, c_uint32, _RANGES, c_uint32, _RANGES, c_uint32]),
    "fl_spread_flags": (None, [_HANDLE, _U8S, c_uint32]),
    "fl_spread_feature": (None, [_HANDLE, c_uint32, _U64S, c_uint64, _U64S]),
    "fl_spread_owner_word": (c_int, [_HANDLE, c_uint32, c_uint64, c_uint32]),
    "fl_spread_separate": (c_uint32, [_HANDLE, _U64S, _U32S, c_uint32]),
    "fl_spread_decision": (c_int, [_HANDLE, _U64S, c_uint64, c_uint32, _U64S, _U32S, c_uint64]),
    "fl_spread_choose": (c_int, [_HANDLE, _U64S, c_uint64, c_uint32, _U32S, c_uint64, _U32S]),
    "fl_spread_fits": (c_int, [_HANDLE, _U32S, c_uint32, _U32S, c_uint64, _U64S]),
    "fl_spread_untyped": (c_int, [_HANDLE, c_char_p, c_uint32, c_uint64, _WORDS]),
    "fl_spread_with_layout": (c_int, [_HANDLE, c_uint32, c_uint64, _WORDS]),
    "fl_spread_sample": (c_int, [_HANDLE, c_uint32, _WORDS]),
    "fl_spread_group": (c_int, [_HANDLE, _U32S, c_uint64, c_uint32, _U32S, _WORDS]),
    "fl_spread_roots": (c_int, [_HANDLE, _U64S, _U64S, _U32S, c_uint64]),
    "fl_spread_seed": (c_int, [_HANDLE, c_uint32, c_uint32, c_bool, c_uint32]),
    "fl_spread_seed_words": (c_int, [_HANDLE, _U64S, _U32S, _U64S, c_uint64, c_uint32]),
    "fl_spread_run": (c_int, [_HANDLE, c_int64]),
    "fl_spread_questions": (c_int, [_HANDLE, _WORDS]),
    "fl_spread_answer": (c_int, [_HANDLE, _U64S, _U32S, c_uint64]),
    "fl_spread_deferred": (c_int, [_HANDLE, _WORDS]),
    "fl_spread_relabel": (c_int, [_HANDLE, _U32S, c_uint64, c_uint32]),
    "fl_spread_seed_all": (c_int, [_HANDLE, _U32S, c_uint64, c_uint32]),
    "fl_spread_revisit": (c_int, [_HANDLE, _U32S, c_uint64]),
    "fl_spread_doubtful": (c_int, [_HANDLE]),
    "fl_spread_confirm": (c_int, [_HANDLE]),
    "fl_spread_pools": (c_int, [_HANDLE, _U32S, c_uint64]),
    "fl_spread_pool_pointers": (c_int, [_HANDLE, _WORDS]),
    "fl_spread_disputes": (c_int, [_HANDLE, _WORDS]),
    "fl_spread_claimed": (c_uint64, [_HANDLE]),
    "fl_spread_followed": (c_uint64, [_HANDLE]),
    "fl_spread_retract": (c_int64, [_HANDLE]),
    "fl_links_new": (c_void_p, [_U64S, c_uint64, _U64S, c_uint64, c_uint64, c_uint64, c_uint64]),
    "fl_links_free": (None, [_HANDLE]),
    "fl_links_walk": (c_int, [_HANDLE, _PIECES, c_uint64, c_int64]),
    "fl_links_done": (c_uint64, [_HANDLE, _WORDS]),
    "fl_holding": (None, [_HANDLE, _U64S, c_uint64, _U32S, _U64S]),
    "fl_pointer_runs": (c_int, [_HANDLE, _PIECES, POINTER(CRunSearch), _WORDS]),
    "fl_claim": (c_bool, [_U32S, c_uint64, _U32S, c_uint64, c_uint32]),
    "fl_labels_below": (c_bool, [_U8S, c_uint64, c_uint64, c_uint64]),
    "fl_lookup": (c_uint32, [_HANDLE, c_uint64, _U64S]),
    "fl_follow": (c_int, [_PIECES, c_uint64, _U64S, c_int64, c_bool, c_uint64, _WORDS]),
    "fl_follow_all": (c_int, [_PIECES, c_uint64, _U64S, c_uint64, c_int64, c_uint64, _U64S, _WORDS, _U64S, _WORDS]),
    "fl_gather": (c_int, [_PIECES, c_uint64, _U64S, c_uint64, c_uint64, _U8S, _WORDS]),
    "fl_self_pointers": (c_int, [_PIECES, c_int64, c_uint64, _WORDS]),
    "fl_sum_by_value": (c_uint64, [_U64S, _U64S, c_uint64, c_bool, _U64S, _U64S]),
    "fl_search": (c_int, [_PIECES, c_uint64, c_uint64, _WORDS]),
    "fl_read_groups": (c_int, [_PIECES, *[c_uint64, _U64S] * 2, c_uint64, _RANGES, c_uint32, *[c_uint64] * 2, *[_WORDS] * 3, _U64S]),
    "fl_read_slots": (c_int, [_PIECES, c_uint64, _U64S, c_uint64, c_uint64, c_uint64, _U64S, _U64S, _U8S, _U64S, _U64S, _WORDS]),
    "fl_asan_chunks": (None, [_PIECES, c_uint64, _U64S, _U64S, _U8S, _U32S, _U32S]),
    "fl_partition_slots": (None, [_PIECES, c_uint64, _U64S, c_uint64, c_uint64, c_bool, c_bool, _U64S, c_uint64, _U8S, _U64S]),
    "fl_scudo_blocks": (None, [_PIECES, c_uint64, c_uint32, c_uint32, c_int, _U64S, _U64S, _U8S]),
    "fl_walk_tags": (c_int, [_PIECES, _U64S, _U64S, c_uint64, c_uint64, _U64S, _U64S, _U8S, _U64S]),
    "fl_slice_slabs": (c_int, [_PIECES, c_uint64, _U64S, c_uint64, *[_WORDS] * 5]),
    "fl_slice_magazines": (c_int, [_PIECES, c_uint64, *[_U64S, c_uint64] * 2, c_uint64, _WORDS, _WORDS]),
    "fl_shifts_free": (None, [_HANDLE]),
    "fl_shifts_new": (c_void_p, [_U64S, _U64S, c_uint64]),
    "fl_shifts_chunks": (None, [_HANDLE, _U64S, c_uint64]),
    "fl_shifts_pointers": (None, [_HANDLE, _PIECES]),
    "fl_shifts_instances": (None, [_HANDLE, _PIECES, _U64S, c_uint64]),
    "fl_shifts_edges": (None, [_HANDLE, _PIECES]),
    "fl_shifts_elect": (c_uint64, [_HANDLE]),
    "fl_walk_luajit": (c_int, [_PIECES, _U64S, _U64S, c_uint64, c_uint64, _U64S, _U64S, _U8S, _U64S]),
    "fl_lost_references": (None, [_HANDLE, c_bool, _U32S]),
    "fl_compare_counts": (c_int, [_HANDLE, _PIECES, _U32S, c_char_p, c_uint64, _U8S, _U32S, _WORDS]),
    "fl_judge_counts": (c_int, [_HANDLE, _U32S, _U8S, _U32S, _U8S, _U64S, _U64S]),
    "fl_immortal_objects": (c_int, [_HANDLE, _PIECES, _U32S, c_char_p, _WORDS]),
    "fl_claim_storage": (None, [_HANDLE, _PIECES, _U32S, c_char_p, c_char_p, _U32S, c_uint64, _U32S]),
    "fl_unused_storage": (c_int, [_HANDLE, _PIECES, _U32S, c_char_p, c_uint64, _U32S, c_char_p, _U8S, _U8S, _WORDS]),
    "fl_object_references": (c_int, [_HANDLE, _PIECES, _U32S, c_char_p, c_uint64, c_bool, _WORDS]),
    "fl_object_remains": (c_int, [_HANDLE, _PIECES, _U32S, *[c_char_p] * 3, _U64S, _U32S, c_char_p, *[_U8S] * 2, _WORDS]),
    "fl_objects": (c_int, [_HANDLE, _PIECES, _U64S, *[c_char_p] * 4, c_uint64, c_uint64, _RANGES, _U32S, _U32S, _U8S, _U64S, _WORDS]),
    "fl_glib_structures": (c_int, [_HANDLE, _PIECES, _RANGES, c_uint32, c_uint32, _WORDS]),
    "fl_php_values": (c_int, [_HANDLE, _PIECES, _U32S, _U8S, _U64S, _WORDS, _WORDS, _WORDS]),
    "fl_php_sort": (None, [_U64S, c_uint64]),
    "fl_php_stale": (c_int, [_HANDLE, _PIECES, _U64S, c_uint64, _WORDS]),
    "fl_go_pointers": (c_uint64, [_PIECES, c_uint64, POINTER(CGoPointers), c_uint64, c_uint64, _U8S]),
    "fl_go_types": (c_int, [_HANDLE, _PIECES, c_uint64, POINTER(CGoTypes), _U8S, c_uint64, _U64S, _U64S, c_uint64]),
    "fl_java_objects": (c_int, [_PIECES, POINTER(CJavaHeap), _U64S, _U64S, _U64S, _U8S, c_uint64, c_uint64, _U64S, _U64S]),
    "fl_java_select": (c_uint64, [_U8S, c_uint64, c_uint64, _U8S, _U32S]),
    "fl_java_records": (
        c_int,
        [_HANDLE, _PIECES, POINTER(CJavaHeap), *[_U8S, c_uint64, _U64S, _U8S, _U32S, _U32S, _U64S, _U8S, c_uint64, _U64S]],
    ),
    "fl_java_values": (None, [POINTER(CJavaHeap), _U8S, c_uint64, c_uint32, _U8S]),
    "fl_java_references": (c_int, [_HANDLE, _PIECES, POINTER(CJavaHeap), _U8S, c_uint64, _U32S, _U64S, c_uint64]),
    "fl_v8_objects": (c_int, [_PIECES, _U64S, _U32S, c_uint64, _U32S, c_uint64, *[_U64S] * 6, *[_U32S] * 2, c_uint64, c_uint64]),
    "fl_v8_edges": (c_int, [_HANDLE, _PIECES, *[_U32S] * 4, _U8S, c_uint64, _U32S, _U64S, _U32S, _U32S, c_uint64]),
    "fl_v8_references": (c_int, [_HANDLE, _PIECES, _U32S, _U32S, c_uint64, _U64S, c_uint64]),
    "fl_records_new": (c_void_p, [_U64S, c_uint64, c_uint64]),
    "fl_records_free": (None, [_HANDLE]),
    "fl_records": (c_int, [_HANDLE, _PIECES, _U64S, c_uint64, _U32S]),
    "fl_records_keys": (c_int, [_HANDLE, _WORDS, _WORDS, _U64S]),
    "fl_search_any": (c_int, [_PIECES, _U64S, c_uint64, _WORDS]),
    "fl_types_new": (c_void_p, []),
    "fl_types_free": (None, [_HANDLE]),
    "fl_types_source": (c_int, [_HANDLE, POINTER(CSource)]),
    "fl_types_read": (c_int, [_HANDLE, c_uint64, _U64S]),
    "fl_types_origins": (c_int, [_HANDLE, c_uint64]),
    "fl_types_merge": (c_int, [_HANDLE, _U64S]),
    "fl_types_table": (c_int, [_HANDLE, POINTER(CBytes), c_uint64, c_uint64, c_uint64]),
    "fl_types_column": (c_void_p, [_HANDLE, c_uint32, _U64S]),
    "fl_types_incomplete": (c_bool, [_HANDLE]),
}
