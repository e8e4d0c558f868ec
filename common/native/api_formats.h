/* The functions that read structures of allocators and runtimes. api.h includes this file. */
#ifndef FINDLEAKS_API_FORMATS_H
#define FINDLEAKS_API_FORMATS_H

#include "api.h"

/* glibc_chunks.c */
API int fl_walk_chunks(struct blocks *b, const piece *p, uint64_t *chunk, uint64_t end, uint64_t *size, bool *done);
API int fl_sound_chunks(const piece *p, uint64_t *chunk, uint64_t stop, uint64_t normal, uint64_t *previous, uint64_t *count, words
                        *found);

/* musl_groups.c */
API int fl_read_groups(const piece *pieces, uint64_t count, const uint64_t *areas, uint64_t area_count, const uint64_t *classes, uint64_t
                       class_count, const range *regions, uint32_t region_count, uint64_t lone, uint64_t span, words *records, words
                       *batches, words *wrong, uint64_t *sums);
API int fl_read_slots(const piece *pieces, uint64_t count, const struct slot_group *records, uint64_t first, uint64_t last, uint64_t
                      capacity, uint64_t *starts, uint64_t *sizes, uint8_t *states, uint64_t *made, uint64_t *sums, words *troubles);

/* musl_oldmalloc.c */
API int fl_walk_tags(const piece *p, uint64_t *chunk, uint64_t *before, uint64_t limit, uint64_t capacity, uint64_t *starts, uint64_t
                     *sizes, uint8_t *states, uint64_t *made);

/* gslice_slabs.c */
API int fl_slice_slabs(const piece *pieces, uint64_t count, const uint64_t *heads, uint64_t classes, words *runs, words *ranges, words
                       *options, words *chunks, words *broken);
API int fl_slice_magazines(const piece *pieces, uint64_t count, const uint64_t *own, uint64_t owns, const uint64_t *rings, uint64_t
                           classes, uint64_t most, words *chunks, words *damaged);

/* gslice_shifts.c */
API void fl_shifts_free(struct shifts *s);
API struct shifts *fl_shifts_new(struct run *runs, uint64_t *options, uint64_t number);
API void fl_shifts_chunks(struct shifts *s, const uint64_t *addresses, uint64_t number);
API void fl_shifts_pointers(struct shifts *s, const piece *p);
API void fl_shifts_instances(struct shifts *s, const piece *p, const struct class *all, uint64_t count);
API void fl_shifts_edges(struct shifts *s, const piece *p);
API uint64_t fl_shifts_elect(struct shifts *s);

/* luajit_chunks.c */
API int fl_walk_luajit(const piece *p, uint64_t *chunk, uint64_t *free, uint64_t limit, uint64_t capacity, uint64_t *starts, uint64_t
                       *sizes, uint8_t *states, uint64_t *made);

/* asan_chunks.c */
API void fl_asan_chunks(const piece *p, uint64_t chunk, uint64_t *blocks, uint64_t *sizes, uint8_t *states, uint32_t *stacks, uint32_t
                        *frees);

/* partition_slots.c */
API void fl_partition_slots(const piece *pieces, uint64_t count, const uint64_t *spans, uint64_t number, uint64_t pool, bool shadowed, bool
                            counted, const uint64_t *cached, uint64_t cached_count, uint8_t *bits, uint64_t *outcomes);

/* scudo_blocks.c */
API void fl_scudo_blocks(const piece *p, uint64_t stride, uint32_t number, uint32_t cookie, int algorithm, uint64_t *chunks, uint64_t
                         *sizes, uint8_t *states);

/* cpython_objects.c */
API int fl_objects(const struct blocks *b, const piece *p, const uint64_t *types, const uint8_t *offsets, const uint8_t *marks, const
                   uint8_t *leaves, const uint8_t *lives, uint64_t count, uint64_t shift, const range *program, uint32_t *found, uint32_t *merged, uint8_t
                   *patterns, uint64_t *sums, words *cut);
API int fl_immortal_objects(const struct blocks *b, const piece *p, const uint32_t *found, const uint8_t *offsets, words *out);

/* glib_structures.c */
API int fl_glib_structures(const struct blocks *b, const piece *p, const range *code, uint32_t ranges, uint32_t quarks, words *found);

/* php_values.c */
API int fl_php_values(const struct blocks *b, const piece *p, uint32_t *found, uint8_t *patterns, uint64_t *sums, words *cut, words
                      *unused, words *runs);

/* php_stale.c */
API void fl_php_sort(uint64_t *runs, uint64_t count);
API int fl_php_stale(const struct blocks *b, const piece *p, const uint64_t *runs, uint64_t count, words *stale);

/* go_types.c */
API int fl_go_types(const struct blocks *b, const piece *pieces, uint64_t count, const struct go_types *known, uint8_t *types, uint64_t width, uint64_t
                    *queue, uint64_t *state, uint64_t budget);

/* go_pointers.c */
API uint64_t fl_go_pointers(const piece *pieces, uint64_t count, const struct go_pointers *known, uint64_t low, uint64_t high, uint8_t *out);

/* java_objects.c */
API int fl_java_objects(const piece *p, const struct java_heap *h, uint64_t *state, uint64_t *starts, uint64_t *sizes, uint8_t *numbers,
                        uint64_t width, uint64_t room, uint64_t *totals, uint64_t *moved);
API uint64_t fl_java_select(const uint8_t *numbers, uint64_t width, uint64_t count, const uint8_t *marks, uint32_t *indices);

/* java_records.c */
API int fl_java_records(const struct blocks *b, const piece *p, const struct java_heap *h, const uint8_t *numbers, uint64_t width, const uint64_t *ids,
                        const uint8_t *elements, const uint32_t *first, const uint32_t *fields, uint64_t *next, uint8_t *out,
                        uint64_t room, uint64_t *made);
API void fl_java_values(const struct java_heap *h, const uint8_t *data, uint64_t count, uint32_t type, uint8_t *out);

/* java_references.c */
API int fl_java_references(struct graph *g, const piece *p, const struct java_heap *h, const uint8_t *numbers, uint64_t width, const uint32_t *mirrors, const
                           uint64_t *extra, uint64_t extra_count);

/* v8_objects.c */
API int fl_v8_objects(const piece *p, const uint64_t *keys, const uint32_t *numbers, uint64_t mask, const uint32_t *rows, uint64_t count,
                      uint64_t *totals, uint64_t *firsts, uint64_t *state, uint64_t *targets, uint64_t *starts, uint64_t *sizes,
                      uint32_t *owners, uint32_t *maps, uint64_t room, uint64_t most);

/* v8_references.c */
API int fl_v8_references(struct graph *g, const piece *p, const uint32_t *maps, const uint32_t *rows, uint64_t row_count, const uint64_t
                         *extra, uint64_t extra_count);

/* v8_edges.c */
API int fl_v8_edges(const struct blocks *b, const piece *p, const uint32_t *shapes, const uint32_t *rows, const uint32_t *firsts,
                    const uint32_t *names, const uint8_t *tails, uint64_t shape_count, const uint32_t *nodes, uint64_t *state, uint32_t *counts,
                    uint32_t *out, uint64_t room);

/* cpython_storage.c */
API void fl_claim_storage(const struct blocks *b, const piece *p, const uint32_t *found, const uint8_t *offsets, const uint8_t *kinds, const
                          uint32_t *buffers, uint64_t shift, uint32_t *claims);
API int fl_unused_storage(const struct blocks *b, const piece *p, const uint32_t *found, const uint8_t *offsets, uint64_t shift, const uint32_t
                          *claims, const uint8_t *tails, uint8_t *heads, uint8_t *patterns, words *rest);

/* object_references.c */
API int fl_object_references(const struct graph *g, const piece *p, const uint32_t *found, const uint8_t *offsets, uint64_t shift,
                             bool with_object, words *out);

/* cpython_remains.c */
struct frame_layout;
API int fl_object_remains(const struct blocks *b, const piece *p, const uint32_t *found, const uint8_t *offsets, const uint8_t *kinds, const
                          uint8_t *lives, const struct frame_layout *frame, const uint32_t *sizes, const uint8_t *grown, uint8_t *tails, uint8_t
                          *patterns, words *rest);

/* object_counts.c */
API void fl_lost_references(const struct graph *g, bool interior, uint32_t *counts);
API int fl_compare_counts(const struct graph *g, const piece *p, const uint32_t *found, const uint8_t *offsets, uint64_t shift, uint8_t *flags, uint32_t
                          *counts, words *cut);
API int fl_judge_counts(const struct graph *g, const uint32_t *found, const uint8_t *flags, uint32_t *counts, uint8_t *verdicts, uint64_t
                        *sums, uint64_t *totals);

#endif
