/* All functions that the library exports. native.h includes this file, so that the compiler
 * checks every definition against it. tests/fuzz/native.c calls what this file declares; a unit
 * test compares it with SIGNATURES in ../engine/native/declarations.py. The functions are
 * documented where they are defined. */
#ifndef FINDLEAKS_API_H
#define FINDLEAKS_API_H

#include "native.h"

/* Opaque structures. */
struct blocks;
struct graph;
struct go_types;
struct go_pointers;
struct java_heap;
struct grouping;
struct counting;
struct disguises;
struct dominators;
struct examination;
struct fields;
struct shared_roots;
struct shifts;
struct spread;
struct tree_walk;
struct link_walk;
struct records;
struct types;

/* Rows of words, and structures that Python fills. */
struct block_total;
struct chain;
struct class;
struct exclusion;
struct form;
struct row_columns;
struct row_rules;
struct run;
struct run_search;
struct slot_group;
struct source;
struct table_column;

/* memory.c */
API void fl_free(void *memory);
API uint32_t fl_sources(void);
API uint32_t fl_target(void);

/* blocks.c */
API void fl_blocks_free(struct blocks *b);
API struct blocks *fl_blocks_new(unsigned granule_shift, unsigned threads);
API void fl_reserve(struct blocks *b, uint64_t bytes);
API int fl_append(struct blocks *b, const uint64_t *starts, const uint64_t *sizes, const uint8_t *states, uint64_t count);
API void fl_seal(struct blocks *b);
API uint32_t fl_count(const struct blocks *b);
API uint64_t fl_floor(const struct blocks *b);
API uint32_t fl_find(const struct blocks *b, uint64_t address);
API uint32_t fl_at_or_after(const struct blocks *b, uint64_t address);
API uint64_t fl_address(const struct blocks *b, uint32_t index);
API uint64_t fl_size(const struct blocks *b, uint32_t index);
API uint8_t fl_state(const struct blocks *b, uint32_t index);
API uint64_t fl_set_state(struct blocks *b, uint64_t *addresses, uint64_t count, uint8_t state);
API int fl_resize(struct blocks *b, uint32_t index, uint64_t size);
API void fl_totals(struct blocks *b, uint32_t first, uint32_t last, struct block_total *totals);
API void fl_totals_in(const struct blocks *b, const range *ranges, uint64_t count, struct block_total *totals);

/* block_columns.c */
API void fl_block_columns(const struct blocks *b, uint32_t first, uint32_t last, uint64_t *addresses, uint64_t *sizes, uint8_t *states);
API uint32_t fl_block_indices(const struct blocks *b, uint32_t first, uint32_t last, uint32_t states, const uint8_t *marks, uint32_t wanted,
                              uint32_t *indices);
API void fl_block_columns_of(const struct blocks *b, const uint32_t *indices, uint64_t count, uint64_t *addresses, uint64_t *sizes,
                             uint8_t *states);

/* block_runs.c */
API int fl_append_runs(struct blocks *b, const struct run *runs, uint64_t count, const uint8_t *bits, uint64_t bit_count);
API int fl_append_blocks(struct blocks *b, const struct blocks *other, uint32_t first, uint32_t last);
API int fl_append_nested(struct blocks *b, const struct blocks *outer, uint32_t first, uint32_t last, const range *slabs, uint64_t count,
                         const struct run *runs, uint64_t run_count, words *left_out);

/* size_counts.c */
API int fl_by_size(const struct blocks *b, const range *ranges, uint64_t count, words *found);
API int fl_of_sizes(const struct blocks *b, uint64_t least, uint64_t greatest, uint64_t most, words *found);

/* range_overlap.c */
API void fl_bytes_in(struct blocks *b, const range *ranges, uint64_t count, uint64_t *sums);
API int fl_gaps(const struct blocks *b, uint64_t low, uint64_t high, uint64_t least, words *found);

/* sample.c */
API int fl_sample(const struct blocks *b, uint64_t most, uint32_t first, uint32_t last, unsigned level, const uint64_t *rows, uint64_t
                  count, words *found);

/* pages.c */
API void fl_pages(const struct blocks *b, const range *ranges, uint64_t count, unsigned shift, const range *const *lists,
                  const uint64_t *counts, uint8_t *states, uint8_t *shares, uint32_t *used, uint32_t *sizes, uint64_t *sums);
API int fl_free_runs(const struct blocks *b, const range *where, uint64_t least, words *out);
API uint64_t fl_common(const range *left, uint64_t lefts, const range *right, uint64_t rights);
API void fl_page_words(const struct blocks *b, const piece *p, const range *types, uint32_t type_count, const range *where, unsigned
                       shift, uint64_t *found, uint64_t *weights);

/* trees.c */
API struct tree_walk *fl_tree_new(uint64_t root, uint64_t header, const uint64_t *layout, uint64_t most);
API void fl_tree_free(struct tree_walk *t);
API int fl_tree_walk(struct tree_walk *t, const piece *pieces, uint64_t count, int64_t budget);
API void fl_tree_done(struct tree_walk *t, words *nodes, uint64_t *trouble);
API void fl_holding(const struct blocks *b, const uint64_t *addresses, uint64_t count, uint32_t *indices, uint64_t *sizes);
API uint32_t fl_lookup(const struct blocks *b, uint64_t address, uint64_t *found);
API bool fl_claim(uint32_t *labels, uint64_t length, const uint32_t *indices, uint64_t count, uint32_t label);
API bool fl_labels_below(const uint8_t *labels, uint64_t width, uint64_t count, uint64_t most);

/* graph.c */
API void fl_graph_free(struct graph *g);
API struct graph *fl_graph_new(struct blocks *b, uint8_t *kinds);

/* scan.c */
API void fl_graph_exclude_words(struct graph *g, const uint8_t *patterns, const struct exclusion *exclusions);
API int fl_scan_blocks(struct graph *g, const piece *p);
API int fl_scan_roots(struct graph *g, const piece *p);
API int fl_root_words(struct graph *g, const uint8_t *data, uint64_t count);
API int fl_dominators_scan(struct dominators *d, const piece *p, const uint64_t *bounds, const uint32_t *owners, uint64_t bound_count);
API int fl_dominators_words(struct dominators *d, const uint8_t *data, uint64_t count, uint32_t root);

/* heuristics.c */
API int fl_graph_heuristics(struct graph *g, unsigned wanted, const range *vtables, uint32_t vtable_count, const uint64_t *types, uint64_t
                            count);

/* interiors.c */
API void fl_graph_note(struct graph *g);
API void fl_graph_count_interiors(struct graph *g);
API uint64_t fl_interior_keys(const struct graph *g, uint64_t *at, uint64_t *all, uint64_t budget, uint64_t *keys);
API void fl_interior_count_free(struct counting *c);
API struct counting *fl_interior_count_new(const struct graph *g);
API int fl_interior_count(struct counting *c, const uint64_t *keys, uint64_t count);
API int fl_interior_rows(const struct counting *c, uint64_t least, words *found);
API int fl_interior_held(const struct graph *g, const uint64_t *sizes, uint32_t size_count, uint64_t *counts, uint32_t *at, uint32_t
                         budget);
API int fl_interior_accept(struct graph *g, const uint64_t *rules, uint64_t count, uint64_t *at, uint64_t budget);
API void fl_interior_effect(const struct graph *g, const uint64_t *keys, uint64_t key_count, const uint64_t *rules, uint64_t count,
                            uint64_t *sums, uint32_t *last);

/* interior_structures.c */
API struct examination *fl_structures_new(struct graph *g, const range *code, uint32_t code_count, uint64_t credit, bool php, bool links);
API void fl_structures_free(struct examination *e);
API int fl_structures_examine(struct examination *e, const piece *pieces, uint64_t count, uint64_t budget);
API int fl_structures_found(const struct examination *e, words *found);
API int fl_structures_places(const struct graph *g, uint64_t most, words *found);

/* disguises_forms.c */
API struct disguises *fl_disguises_new(struct graph *g, const range *ranges, uint32_t range_count, const struct form *forms, uint32_t
                                       form_count, uint64_t most);

/* disguises.c */
API void fl_disguises_free(struct disguises *d);
API int fl_disguises_scan(struct disguises *d, const piece *p, uint64_t step, bool roots);
API int fl_disguises_tries(const struct disguises *d, words *found);

/* disguises_found.c */
API int fl_leak_head_sizes(const struct graph *g, words *sizes);
API int fl_disguises_keys(struct disguises *d, const uint64_t *sizes, uint64_t size_count, words *hits, words *heads, words *live);
API int fl_disguises_references(struct disguises *d, const uint64_t *accepted, uint64_t count, words *found);

/* graph_connect.c */
API int fl_graph_connect(struct graph *g, const uint64_t *references, uint64_t count);

/* possible.c */
API int fl_heads(const struct graph *g, words *found);

/* mark.c */
API int fl_mark_starts(struct graph *g, int64_t budget);
API bool fl_holds(const struct graph *g, const uint64_t *values, uint64_t count);
API int fl_mark(struct graph *g, int64_t budget);
API int fl_promote(struct graph *g, int64_t budget);
API int fl_unreferenced(const struct graph *g, uint64_t smallest, uint64_t largest, uint64_t most, words *found);
API bool fl_rooted(const struct graph *g, uint32_t index);
API int fl_references(const struct graph *g, uint32_t index, words *found);
API int fl_referrers(const struct graph *g, uint32_t index, uint64_t limit, words *found);
API int fl_path(const struct graph *g, uint32_t index, const uint32_t *starts, uint32_t most, const uint8_t *avoided, uint64_t labels, words *found);
API void fl_kind_totals(const struct graph *g, struct block_total *totals);
API bool fl_has_kind(const struct graph *g, uint8_t kind, uint32_t number);

/* cycles.c */
API void fl_graph_set_labels(struct graph *g, const uint8_t *labels, uint64_t width, const uint32_t *ranks);
API bool fl_has_cycles(const struct graph *g);
API int fl_cycle_ranges(const struct graph *g, uint64_t gap, words *found);
API void fl_cycles_feed(struct graph *g, const piece *p, const range *types, uint32_t type_count);
API void fl_cycles_finish(struct graph *g);
API uint32_t fl_representative(const struct graph *g, uint32_t index);
API void fl_label_totals(const struct graph *g, uint32_t kinds, uint32_t count, uint64_t *totals);

/* kind_bytes.c */
API void fl_kind_bytes(const struct graph *g, const range *ranges, uint64_t count, uint64_t *sums);
typedef struct {
    uint64_t blocks, bytes, inside; /* `inside`: bytes of the blocks inside the given ranges */
} kind_figures;
API void fl_kind_figures(const struct graph *g, const uint32_t *indices, uint64_t number, const range *ranges, uint64_t count,
                         kind_figures *figures);
API int fl_kind_sizes(const struct graph *g, uint8_t kind, words *found);

/* classify.c */
API int fl_classify(struct graph *g, int64_t budget);
API uint32_t fl_leak_head(const struct graph *g, uint32_t index);
API void fl_leak_heads(const struct graph *g, uint32_t first, uint32_t last, uint32_t *leak_heads);
API uint32_t fl_cycle(const struct graph *g, uint32_t index);
API void fl_hanging(const struct graph *g, uint32_t index, uint32_t *count, uint64_t *bytes);

/* groups.c */
API void fl_groups_free(struct grouping *s);
API struct grouping *fl_groups_new(const struct graph *g, const range *types, uint32_t type_count, bool typed, const uint32_t *marks);
API int fl_groups_feed(struct grouping *s, const piece *p);
API int fl_groups_finish(struct grouping *s, words *found);

/* rows.c */
API int fl_rows(const struct graph *g, const struct row_rules *r, const piece *pieces, uint64_t piece_count, const uint32_t *order,
                uint32_t *at, uint32_t end, uint32_t steps, uint64_t *limit, uint8_t *out, uint64_t capacity, uint64_t *written);
API int fl_row_indices(const struct graph *g, const struct row_rules *r, const piece *pieces, uint64_t piece_count, uint32_t *at,
                       uint32_t end, uint32_t steps, uint32_t *indices, uint64_t *written, uint64_t *bytes);
API int fl_row_columns(const struct graph *g, const struct row_rules *r, const piece *pieces, uint64_t piece_count, const uint32_t *order,
                       uint32_t *at, uint32_t end, uint32_t steps, uint64_t *limit, const struct row_columns *c, uint64_t *written);
API void fl_largest_first(const struct blocks *b, const uint32_t *from, uint32_t *to, uint64_t count, uint64_t run);

/* dominators.c */
API void fl_dominators_free(struct dominators *d);
API struct dominators *fl_dominators_new(struct graph *g, uint32_t roots, bool only_lost, const uint32_t *later, uint32_t priorities);
API void fl_dominators_refer(struct dominators *d, uint32_t root, const uint32_t *indices, uint64_t count);
API void fl_dominators_lost(struct dominators *d, uint32_t definite, uint32_t possible);
API void fl_dominators_merge(struct dominators *d, const uint32_t *roots);
API void fl_dominators_expect_leaf_trees(struct dominators *d);
API void fl_dominators_set_owners(struct dominators *d, const uint32_t *containers, const uint32_t *container_owners);
API uint32_t fl_dominators_progress(const struct dominators *d);
API int fl_dominators_compute(struct dominators *d, int64_t budget);

/* dominator_queries.c */
API int fl_dominators_children(const struct dominators *d, uint32_t place, uint64_t limit, words *found);
API int fl_dominators_spread(const struct dominators *d, uint32_t place, words *found);
API void fl_dominators_by_label(
    const struct dominators *d, const uint8_t *labels, uint64_t width, const uint32_t *rows, uint32_t count, uint32_t *ends, uint64_t *totals
);
API int fl_dominators_sizes(const struct dominators *d, uint32_t place, words *found);
API void fl_dominators_chain(const struct dominators *d, uint32_t place, bool equal, uint32_t limit, struct chain *found);
API void fl_dominators_arrays(const struct dominators *d, const void **arrays, uint32_t *count);
API uint32_t fl_dominators_place(const struct dominators *d, uint32_t index);
API uint32_t fl_dominators_count(const struct dominators *d, uint32_t place);
API uint64_t fl_dominators_bytes(const struct dominators *d, uint32_t place);
API int fl_dominators_idoms(struct dominators *d, const void **idoms);

/* shared_roots.c */
API void fl_shared_roots_free(struct shared_roots *s);
API struct shared_roots *fl_shared_roots_new(
    const struct dominators *d, uint32_t first, uint32_t behind, const uint32_t *roots, const uint32_t *referred, uint64_t references
);
API int fl_shared_roots_compute(struct shared_roots *s, int64_t budget);
API int fl_shared_roots_sets(const struct shared_roots *s, words *found);

/* fields.c */
API void fl_fields_free(struct fields *f);
API struct fields *fl_fields_new(const struct dominators *d, uint32_t place, uint32_t span, uint32_t count);
API int fl_fields_refer(struct fields *f, uint32_t field, const uint32_t *indices, uint64_t count);
API int fl_fields_words(struct fields *f, uint32_t field, const uint64_t *values, uint64_t count);
API int fl_fields_compute(struct fields *f, int64_t budget);
API uint64_t fl_fields_done(const struct fields *f);
API int fl_fields_children(const struct fields *f, uint32_t field, uint64_t limit, words *found);
API int fl_fields_spread(const struct fields *f, uint32_t field, words *found);
API int fl_fields_sizes(const struct fields *f, uint32_t field, words *found);
API void fl_fields_arrays(const struct fields *f, const void **arrays, uint32_t *count);

/* type_spread.c */
API void fl_spread_free(struct spread *s);
API struct spread *fl_spread_new(const struct blocks *b, uint32_t *claims, uint32_t *origins);
API void fl_spread_use(struct spread *s, const piece *pieces, uint64_t count);
API int fl_spread_layout(struct spread *s, const uint64_t *groups, uint64_t group_count, const uint64_t *slots, uint64_t slot_count, const
                        uint64_t *checks, uint64_t check_count);
API int fl_spread_roots(struct spread *s, const uint64_t *addresses, const uint64_t *sizes, const uint32_t *layouts, uint64_t count);
API int fl_spread_seed(struct spread *s, uint32_t index, uint32_t claim, bool inferred, uint32_t origin);
API int fl_spread_relabel(struct spread *s, const uint32_t *indices, uint64_t count, uint32_t layout);
API int fl_spread_with_layout(const struct spread *s, uint32_t layout, uint64_t most, words *found);
API int fl_spread_seed_all(struct spread *s, const uint32_t *indices, uint64_t count, uint32_t claim);
API int fl_spread_seed_words(struct spread *s, const uint64_t *sought, const uint32_t *layouts, const uint64_t *least, uint64_t count,
                             uint32_t level);
API int fl_spread_run(struct spread *s, int64_t budget);
API int fl_spread_revisit(struct spread *s, const uint32_t *references, uint64_t count);
API int fl_spread_doubtful(struct spread *s);
API int fl_spread_confirm(struct spread *s);
API int fl_spread_pools(struct spread *s, const uint32_t *indices, uint64_t count);
API int fl_spread_pool_pointers(struct spread *s, words *found);
API int fl_spread_disputes(struct spread *s, words *found);
API int64_t fl_spread_retract(struct spread *s);
API uint64_t fl_spread_claimed(const struct spread *s);
API uint64_t fl_spread_followed(const struct spread *s);

/* type_rules.c */
API int fl_spread_choices(struct spread *s, const uint32_t *layouts, uint64_t count);
API int fl_spread_questions(struct spread *s, words *found);
API int fl_spread_answer(struct spread *s, const uint64_t *questions, const uint32_t *answers, uint64_t count);
API int fl_spread_deferred(struct spread *s, words *found);

/* type_match.c */
API void fl_spread_memory(struct spread *s, const range *mapped, uint32_t mapped_count, const range *code, uint32_t code_count,
                          const range *instructions, uint32_t instruction_count);
API void fl_spread_flags(struct spread *s, const uint8_t *flags, uint32_t count);
API int fl_spread_group(const struct spread *s, const uint32_t *indices, uint64_t count, uint32_t word_count, uint32_t *groups, words *rows);

/* type_features.c */
API void fl_spread_feature(const struct spread *s, uint32_t feature, const uint64_t *rows, uint64_t count, uint64_t *values);
API int fl_spread_owner_word(struct spread *s, uint32_t layout, uint64_t offset, uint32_t size);
API uint32_t fl_spread_separate(const struct spread *s, const uint64_t *rows, const uint32_t *labels, uint32_t count);

/* type_decisions.c */
API int fl_spread_decision(struct spread *s, const uint64_t *options, uint64_t count, uint32_t feature, const uint64_t *keys, const
                          uint32_t *claims, uint64_t key_count);
API int fl_spread_choose(struct spread *s, const uint64_t *options, uint64_t count, uint32_t mode, const uint32_t *indices, uint64_t
                        index_count, uint32_t *claims);
API int fl_spread_fits(struct spread *s, const uint32_t *layouts, uint32_t count, const uint32_t *indices, uint64_t index_count, uint64_t
                      *masks);
API int fl_spread_untyped(const struct spread *s, const uint8_t *kinds, uint32_t wanted, uint64_t most, words *found);
API int fl_spread_sample(const struct spread *s, uint32_t most, words *found);

/* links.c */
API void fl_links_free(struct link_walk *w);
API struct link_walk *fl_links_new(const uint64_t *heads, uint64_t count, const uint64_t *offsets, uint64_t links, uint64_t most, uint64_t
                                   deepest, uint64_t tags);
API int fl_links_walk(struct link_walk *w, const piece *pieces, uint64_t count, int64_t budget);
API uint64_t fl_links_done(struct link_walk *w, words *nodes);

/* records.c */
API void fl_records_free(struct records *r);
API struct records *fl_records_new(const uint64_t *shapes, uint64_t tag_mask, uint64_t most);
API int fl_records(struct records *r, const piece *p, const uint64_t *runs, uint64_t count, uint32_t *numbers);
API int fl_records_keys(const struct records *r, words *keys, words *counts, uint64_t *left);

/* follow.c */
API int fl_follow(const piece *pieces, uint64_t count, uint64_t *head, int64_t next_offset, bool mangled, uint64_t limit, words *nodes);
API int fl_follow_all(const piece *pieces, uint64_t count, const uint64_t *heads, uint64_t lists, int64_t next_offset, uint64_t limit,
                      const range *within, words *nodes, uint64_t *ends, words *problems);
API int fl_gather(const piece *pieces, uint64_t count, const uint64_t *addresses, uint64_t records, uint64_t size, uint8_t *out, words
                  *missing);
API int fl_self_pointers(const piece *p, int64_t distance, uint64_t before, words *found);
API int fl_search(const piece *p, uint64_t low, uint64_t span, words *found);
API int fl_search_any(const piece *p, const uint64_t *values, uint64_t number, words *found);

/* value_counts.c */
API uint64_t fl_sum_by_value(uint64_t *values, uint64_t *sums, uint64_t count, bool equal, uint64_t *spare, uint64_t *spare_sums);

/* pointer_runs.c */
API int fl_pointer_runs(const struct blocks *b, const piece *p, struct run_search *s, words *found);

/* dwarf_types.c */
API struct types *fl_types_new(void);
API void fl_types_free(struct types *t);
API int fl_types_source(struct types *t, const struct source *from);
API int fl_types_read(struct types *t, uint64_t limit, uint64_t *at);

/* dwarf_origins.c */
API int fl_types_origins(struct types *t, uint64_t limit);

/* dwarf_merge.c */
API int fl_types_merge(struct types *t, uint64_t *part);

/* dwarf_tables.c */
API int fl_types_table(struct types *t, const struct table_column *columns, uint64_t key, uint64_t first, uint64_t end);

/* dwarf_columns.c */
API void *fl_types_column(const struct types *t, uint32_t column, uint64_t *count);
API bool fl_types_incomplete(const struct types *t);

#include "api_formats.h"

#endif
