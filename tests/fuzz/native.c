/* The C engine's loops over memory that may hold anything, for libFuzzer with AddressSanitizer and UndefinedBehaviorSanitizer:
 * `python tests/fuzz/native.py` builds and runs it for each size and byte order of words. The first byte chooses a loop, the second how memory
 * is cut into pieces; the rest is memory from BASE on, so that words of it are likely to point into it. Each piece has exactly its own bytes. What callers promise (common/allocators/X/engine.py)
 * is kept: sizes of chunks are not 0, outputs have space. */
#include "../../common/native/disguises.h"
#include "../../common/native/dwarf.h"
#include "../../common/native/rows.h"

#include <stdlib.h>

#define BASE UINT64_C(0x10000)
#define GAP 0x100
#define MOST 4096

typedef struct blocks blocks;
typedef struct graph graph;
typedef struct grouping grouping;
typedef struct counting counting;
typedef struct tree_walk tree_walk;
typedef struct link_walk link_walk;

#include "managed_objects.h"

static uint64_t word_of(const uint8_t *data, size_t size, size_t number) {
    return size >= (number + 1) * WORD ? load(data + number * WORD) : BASE + number * 64;
}

/* Rows of the classified graph: texts and strings are recognised in what blocks hold. */
static void rows(const graph *g, const blocks *b, const piece *p, uint64_t count, uint32_t made) {
    static uint8_t characters[CHARACTERS];
    uint64_t ends[10], limit = MOST, written, sum = 0, type = BASE + 40;
    uint8_t *out = malloc(4096);
    uint32_t *indices = calloc(made + 1, 4), at = 0, text = 9;
    range mapped[2], table = {BASE + 32, BASE + 256};
    characters[0xe9] = 2;
    for (uint64_t number = 0; number < 10; number++)
        ends[number] = 3 * number + 3;
    for (uint64_t number = 0; number < count; number++)
        mapped[number] = (range){p[number].address, p[number].address + p[number].length};
    row_rules r = {.states = 15, .kinds = 31, .high = UINT64_MAX, .no_owner = 8, .tables = &table, .table_count = 1, .words = &type,
                   .word_texts = &text, .word_count = 1, .mapped = mapped, .mapped_count = (uint32_t)count, .string = 9, .typed = true,
                   .characters = characters, .text = (const uint8_t *)"012345678901234567890123456789", .ends = ends};
    while (at < made && fl_rows(g, &r, p, count, NULL, &at, made, 64, &limit, out, 4096, &written) >= 0 && limit)
        at++; /* as if Python had made the row */
    at = 0;
    fl_row_indices(g, &r, p, count, &at, made, made, indices, &written, &sum);
    row_columns c = {indices, calloc(made + 1, 8), calloc(made + 1, 8), calloc(made + 1, 8), calloc(made + 1, 1), calloc(made + 1, 4), out, 4096};
    at = 0;
    limit = MOST;
    while (at < made && fl_row_columns(g, &r, p, count, NULL, &at, made, 64, &limit, &c, &written) >= 0 && limit)
        at++;
    fl_block_columns(b, 0, made, c.addresses, c.sizes, c.hints);
    fl_block_indices(b, 0, made, 15, c.hints, UINT32_MAX, indices);
    fl_leak_heads(g, 0, made, indices);
    fl_block_columns_of(b, indices, made, c.addresses, c.sizes, c.hints);
    free_all((void *const[]){out, indices, c.addresses, c.sizes, c.names, c.hints, c.hint_ends}, 7);
}

/* Interior references of a marked graph: counted, and accepted by rules of sizes and offsets. */
static void interiors(graph *g, uint32_t made) {
    uint64_t at = 0, all = 0, keys[64], rules[4] = {0, 2 * WORD, 64, WORD}, sizes[2] = {32, 64}, held[3] = {0}, sums[4] = {0};
    uint32_t from = 0, *last = calloc(2 * (made + 1), 4);
    counting *c = fl_interior_count_new(g);
    words found = {NULL, 0, 0};
    uint64_t number = fl_interior_keys(g, &at, &all, 64, keys);
    fl_interior_count(c, keys, number);
    fl_interior_rows(c, 1, &found);
    fl_interior_count_free(c);
    fl_interior_held(g, sizes, 2, held, &from, made + 1);
    at = 0;
    fl_interior_accept(g, rules, 2, &at, UINT32_MAX);
    while (fl_promote(g, 100) > 0) {
    }
    fl_interior_effect(g, keys, number, rules, 2, sums, last);
    free_all((void *const[]){last, found.items}, 2);
}

/* Structures that interior references of a marked graph lead into: hash tables, chunks, counted values. */
static void structures(graph *g, const piece *p, uint64_t count) {
    range code = {BASE + 32, BASE + 256};
    words places = {NULL, 0, 0};
    fl_structures_places(g, 1000, &places);
    for (int mode = 0; mode < 3; mode++) {
        words found = {NULL, 0, 0};
        struct examination *e = fl_structures_new(g, &code, 1, 1 << 16, mode == 1, mode == 2);
        while (e && fl_structures_examine(e, p, count, 100) == 1) {
        }
        if (e) {
            fl_structures_found(e, &found);
            fl_structures_free(e);
        }
        free_all((void *const[]){found.items}, 1);
    }
    free_all((void *const[]){places.items}, 1);
}

/* Words of each page of the heap, as `map` counts them. */
static void page_words(const blocks *b, const piece *p, uint64_t count) {
    range types = {BASE + 32, BASE + 256}, whole = {BASE, BASE + (1 << 16)};
    uint64_t *found = calloc(3 * 16, 8), *weights = calloc(3 * 16, 8);
    words runs = {NULL, 0, 0};
    for (uint64_t at = 0; at < count; at++)
        fl_page_words(b, &p[at], &types, 1, &whole, 12, found, weights);
    fl_gaps(b, BASE, BASE + (1 << 16), 16, &runs);
    free_all((void *const[]){found, weights, runs.items}, 3);
}

/* A classified graph's cycles, bytes by kind, and its objects' counts of references. */
static void cycles(graph *g, const piece *p, uint64_t count, uint32_t made) {
    range types = {BASE + 32, BASE + 256}, parts[2] = {{BASE, BASE + 100}, {BASE + 128, BASE + 4096}};
    uint64_t sums[2 * 8] = {0}, totals[8] = {0}, judged[3 * 2] = {0};
    uint32_t *counts = calloc(made + 1, 4), *found = calloc(made + 1, 4);
    uint8_t *flags = calloc(made + 1, 1), *verdicts = calloc(made + 1, 1), offsets[2] = {2 * WORD, 16};
    words ranges = {NULL, 0, 0}, cut = {NULL, 0, 0}, by_size = {NULL, 0, 0};
    for (uint32_t index = 0; index < made; index++)
        found[index] = index % 3 < 2 ? index % 3 : NONE;
    fl_cycle_ranges(g, 64, &ranges);
    for (uint64_t at = 0; at < count; at++)
        fl_cycles_feed(g, &p[at], &types, 1);
    fl_cycles_finish(g);
    for (uint32_t index = 0; index < made && index < 50; index++)
        fl_representative(g, index);
    fl_kind_bytes(g, parts, 2, sums);
    fl_kind_sizes(g, 2, &by_size);
    fl_lost_references(g, made % 3 == 0, counts);
    for (uint64_t at = 0; at < count; at++)
        fl_compare_counts(g, &p[at], found, offsets, made % 2 * 16, flags, counts, &cut);
    fl_judge_counts(g, found, flags, counts, verdicts, judged, totals);
    free_all((void *const[]){counts, found, flags, verdicts, ranges.items, cut.items, by_size.items}, 7);
}

/* Disguised pointers to lost blocks, which are references then. */
static void disguised_pointers(graph *g, const piece *p, uint64_t count) {
    range whole = {BASE, p[count - 1].address + p[count - 1].length + 1};
    form forms[5] = {{TAGGED, 0, 0}, {UNALIGNED, 0, 0}, {SHIFTED_LEFT, 0, 4}, {SHIFTED_RIGHT, 0, 3}, {COMPRESSED, BASE, 3}};
    words sizes = {NULL, 0, 0}, hits = {NULL, 0, 0}, heads = {NULL, 0, 0}, live = {NULL, 0, 0}, found = {NULL, 0, 0};
    uint64_t accepted[5];
    disguises *d = fl_disguises_new(g, &whole, 1, forms, WORD == 8 ? 5 : 4, 1000);
    for (uint64_t form = 0; form < 5; form++)
        accepted[form] = form << 16;
    for (uint64_t at = 0; d && at < 2 * count; at++)
        fl_disguises_scan(d, &p[at / 2], at % 2 + 1, at & 1);
    if (d) {
        fl_leak_head_sizes(g, &sizes);
        fl_disguises_tries(d, &found);
        fl_disguises_keys(d, sizes.items, sizes.count, &hits, &heads, &live);
        found.count = 0;
        fl_disguises_references(d, accepted, 5, &found);
        fl_disguises_free(d);
        for (uint64_t row = 0; 3 * row < found.count; row++)
            found.items[row] = found.items[3 * row + 1]; /* source and target */
        found.count /= 3;
        fl_graph_connect(g, found.items, found.count);
        while (fl_mark(g, 100) > 0) {
        }
        while (fl_classify(g, 100) > 0) {
        }
    }
    free_all((void *const[]){sizes.items, hits.items, heads.items, live.items, found.items}, 5);
}

/* References that are added to a graph before it is classified, which keeps its interior references. */
static void connected(graph *g, uint32_t made) {
    uint64_t references[64], count = 0;
    for (uint32_t source = 0; source < made && count < 60; source += 3)
        references[count++] = (uint64_t)source << 32 | source * UINT64_C(7) % made;
    for (uint32_t target = 0; target < made && target < 8; target += 4)
        references[count++] = (uint64_t)NONE << 32 | target;
    fl_graph_connect(g, references, count);
    while (fl_mark(g, 100) > 0) {
    }
}

/* The graph of these blocks: marked, classified, grouped. */
static void heap(blocks *b, const piece *p, uint64_t count, const uint8_t *patterns) {
    uint32_t made = fl_count(b);
    uint8_t *kinds = calloc(made + 1, 1);
    graph *g = fl_graph_new(b, kinds);
    range types = {BASE + 32, BASE + 256};
    words found = {NULL, 0, 0};
    exclusion exclusions[256] = {{0, 0, 0, 0}};
    for (uint64_t number = 1; number < 256; number++)
        exclusions[number] = (exclusion){number, number & 3, number & 4 ? number : UINT64_MAX, number % 5};
    fl_graph_note(g);
    fl_graph_exclude_words(g, patterns, exclusions);
    for (uint64_t at = 0; at < count; at++)
        fl_scan_blocks(g, &p[at]);
    fl_scan_roots(g, &p[0]);
    while (fl_mark_starts(g, 100) > 0) {
    }
    fl_unreferenced(g, 16, 1 << 20, 50, &found);
    while (fl_mark(g, 100) > 0) {
    }
    structures(g, p, count);
    interiors(g, made);
    connected(g, made);
    structures(g, p, count);
    interiors(g, made);
    while (fl_classify(g, 100) > 0) {
    }
    cycles(g, p, count, made);
    disguised_pointers(g, p, count);
    grouping *s = fl_groups_new(g, &types, 1, false, NULL);
    for (uint64_t at = 0; at < count; at++)
        fl_groups_feed(s, &p[at]);
    fl_groups_finish(s, &found);
    rows(g, b, p, count, made);
    page_words(b, p, count);
    static const uint8_t avoided[] = {0, 1, 1};
    for (uint32_t index = 0; index < made && index < 50; index++) {
        fl_path(g, index, &index, index & 1, avoided, index % (sizeof avoided + 1), &found);
        fl_references(g, index, &found);
        fl_referrers(g, index, index % 3, &found);
    }
    fl_groups_free(s);
    fl_graph_free(g);
    free_all((void *const[]){kinds, found.items}, 2);
}

static void chunks(const piece *p, uint64_t count) {
    blocks *b = fl_blocks_new(WORD == 8 ? 4 : 3, 1);
    uint64_t chunk = BASE, end = p[count - 1].address + p[count - 1].length, size;
    bool done = false;
    for (uint64_t at = 0; at < count && !done; at++)
        for (int code = 7; code == 7 && !done;) /* DIFFERS: it goes on */
            code = fl_walk_chunks(b, &p[at], &chunk, end & ~UINT64_C(15), &size, &done);
    fl_seal(b);
    uint32_t made = fl_count(b), *found = calloc(made + 1, 4), *merged = calloc(made + 1, 4);
    memset(found, 0xff, (made + 1) * sizeof *found); /* no objects */
    uint8_t *patterns = calloc(made + 1, 1);
    go_objects(b, p, count, made);
    go_pointer_maps(p, count, made);
    java_objects(p, count, end);
    v8_objects(p, count);
    uint64_t types[2] = {BASE + 64, BASE + 128}, sums[12] = {0};
    uint8_t offsets[2] = {0, 16}, marks[2] = {0, 33}, leaves[2] = {1, 0x40}, lives[2] = {2, 3};
    range program = {BASE + 32, BASE + 256};
    words cut = {NULL, 0, 0}, sound = {NULL, 0, 0};
    for (uint64_t at = 0; at < count; at++)
        fl_objects(b, &p[at], types, offsets, marks, leaves, lives, 2, at % 2 * 16, &program, found, merged, patterns, sums, &cut);
    uint8_t numbers[64], owners[2] = {1, 6};
    uint32_t *claims = calloc(made + 1, 4), buffers[4] = {2, 3 | 1 << 8, 4 | 2 << 8, 3 | 3 << 8};
    words rest = {NULL, 0, 0};
    for (uint8_t number = 0; number < 64; number++)
        numbers[number] = number;
    for (uint64_t at = 0; at < count; at++)
        fl_claim_storage(b, &p[at], found, offsets, owners, buffers, at % 2 * 16, claims);
    for (uint64_t at = 0; at < count; at++) {
        fl_unused_storage(b, &p[at], found, offsets, at % 2 * 16, claims, numbers, numbers, patterns, &rest);
        fl_immortal_objects(b, &p[at], found, offsets, &rest);
    }
    uint64_t previous = 0, seen = 0;
    chunk = BASE;
    fl_sound_chunks(p, &chunk, end, 1, &previous, &seen, &sound);
    heap(b, p, count, patterns);
    free_all((void *const[]){found, merged, patterns, cut.items, sound.items, claims, rest.items}, 7);
    fl_blocks_free(b);
}

static void lists(const piece *p, uint64_t count, const uint8_t *data, size_t size) {
    words found = {NULL, 0, 0}, others = {NULL, 0, 0};
    uint64_t head = word_of(data, size, 0), heads[4];
    int64_t offset = (int64_t)(word_of(data, size, 1) % 64) - 32;
    for (size_t at = 0; at < 4; at++)
        heads[at] = word_of(data, size, at);
    fl_follow(p, count, &head, offset, size & 1, 1000, &found);
    uint64_t ends[4];
    range within[4] = {{BASE, BASE + 4096}, {BASE + 64, BASE + 128}, {0, UINT64_MAX}, {BASE, BASE}};
    fl_follow_all(p, count, heads, 4, offset, 1000, size & 2 ? within : NULL, &found, ends, &others);
    uint64_t sorted[2] = {heads[0] < heads[1] ? heads[0] : heads[1], heads[0] < heads[1] ? heads[1] : heads[0]};
    uint8_t *out = calloc(4, 48);
    fl_gather(p, count, heads, 4, 48, out, &found);
    for (uint64_t at = 0; at < count; at++) {
        fl_self_pointers(&p[at], offset * 8, size & 16, &found);
        fl_search(&p[at], heads[1], heads[2], &found);
        fl_search_any(&p[at], sorted, 2, &found);
    }
    uint64_t layout[6] = {1, 2, 0, 3, 4, 1}, offsets[2] = {0, 8};
    tree_walk *tree = fl_tree_new(heads[0], heads[1], layout, 500);
    while (fl_tree_walk(tree, p, count, 100) == 1) {
    }
    fl_tree_free(tree);
    link_walk *links = fl_links_new(heads, 4, offsets, 2, 500, 20, 1);
    while (links && fl_links_walk(links, p, count, 100) == 1) {
    }
    if (links)
        fl_links_free(links);
    free_all((void *const[]){found.items, others.items, out}, 3);
}

static void tags(const piece *p, const uint8_t *data, size_t size) {
    uint64_t chunk = BASE + word_of(data, size, 2) % 256 / 32 * 32, before = word_of(data, size, 0), made = 0;
    uint64_t *starts = calloc(64, 8), *sizes = calloc(64, 8);
    uint8_t *states = calloc(64, 1);
    fl_walk_tags(p, &chunk, &before, BASE + p->length, 64, starts, sizes, states, &made);
    fl_walk_luajit(p, &chunk, &before, BASE + p->length, 64, starts, sizes, states, &made);
    free_all((void *const[]){starts, sizes, states}, 3);
}

/* Slabs of GSlice in the pieces, and a heap that is divided into them. */
static void slices(const piece *p, uint64_t count, const uint8_t *data, size_t size) {
    words made[5] = {{NULL, 0, 0}}, others = {NULL, 0, 0}, left_out = {NULL, 0, 0}, sizes = {NULL, 0, 0};
    uint64_t heads[8], classes[3] = {word_of(data, size, 3), 16, 48};
    block_total totals[4];
    for (unsigned at = 0; at < 8; at++)
        heads[at] = word_of(data, size, at);
    fl_slice_slabs(p, count, heads, 8, &made[0], &made[1], &made[2], &made[3], &made[4]);
    fl_slice_magazines(p, count, heads, 4, heads + 4, 4, MOST, &others, &left_out);
    left_out.count = 0;
    uint64_t number = made[2].count;
    struct run *runs = (struct run *)(void *)made[0].items;
    struct shifts *s = number ? fl_shifts_new(runs, made[2].items, number) : NULL;
    if (s) {
        fl_shifts_chunks(s, made[3].items, made[3].count);
        for (uint64_t at = 0; at < count; at++) {
            fl_shifts_pointers(s, &p[at]);
            fl_shifts_instances(s, &p[at], (const struct class *)(const void *)classes, 1);
        }
        fl_shifts_elect(s);
        fl_shifts_free(s);
    }
    uint64_t start = BASE, bytes = 1 << 16;
    uint8_t state = IN_USE;
    blocks *divided = fl_blocks_new(WORD == 8 ? 4 : 3, 1), *b = fl_blocks_new(4, 1);
    const range *ranges = (range *)(void *)made[1].items;
    if (divided && b && number) {
        fl_append(b, &start, &bytes, &state, 1);
        fl_seal(b);
        fl_append_nested(divided, b, 0, fl_count(b), ranges, number, runs, number, &left_out);
        fl_seal(divided);
        fl_totals_in(divided, ranges, number, totals);
        fl_by_size(divided, ranges, number, &sizes);
    }
    if (b)
        fl_blocks_free(b);
    if (divided)
        fl_blocks_free(divided);
    for (unsigned at = 0; at < 5; at++)
        free(made[at].items);
    free_all((void *const[]){others.items, left_out.items, sizes.items}, 3);
}

static void groups(const piece *p, uint64_t count) {
    static const uint64_t classes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127};
    uint64_t areas[2] = {BASE, p[count - 1].address}, sums[3 * 64 * 7] = {0}, made = 0;
    range regions[2];
    for (uint64_t at = 0; at < count; at++)
        regions[at] = (range){p[at].address, p[at].address + p[at].length};
    words records = {NULL, 0, 0}, batches = {NULL, 0, 0}, wrong = {NULL, 0, 0};
    if (!fl_read_groups(p, count, areas, count, classes, 24, regions, (uint32_t)count, 4096, 1 << 16, &records, &batches, &wrong, sums)) {
        uint64_t *starts = calloc(MOST, 8), *sizes = calloc(MOST, 8);
        uint8_t *states = calloc(MOST, 1);
        fl_read_slots(p, count, (const struct slot_group *)records.items, 0, records.count / 8, MOST, starts, sizes, states, &made, sums, &wrong);
        free_all((void *const[]){starts, sizes, states}, 3);
    }
    free_all((void *const[]){records.items, batches.items, wrong.items}, 3);
}

/* Units and their abbreviations. Other sections are the units' bytes, too. */
static void dwarf(const piece *abbreviations, const piece *info, unsigned flags) {
    types *t = fl_types_new();
    bytes units = {info->data, info->length}, rest = {abbreviations->data, abbreviations->length};
    source from = {units, rest, rest, rest, rest, rest, rest, rest, rest, 0, 0, 0, 0, 0, 0, flags};
    uint64_t at, part = 0, count;
    if (t && fl_types_source(t, &from) == DONE) {
        while (fl_types_read(t, 64, &at) > 0) {
        }
        while (fl_types_origins(t, 64) > 0) {
        }
        while (fl_types_merge(t, &part) > 0) {
        }
        for (uint32_t column = 0; column < 31; column++)
            fl_types_column(t, column, &count);
    }
    fl_types_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 18)
        return 0;
    size_t half = (size - 2) * data[1] / 255;
    uint8_t *one = malloc(half + 1), *other = malloc(size - 2 - half + 1);
    one = realloc(one, half ? half : 1);
    other = realloc(other, size - 2 - half ? size - 2 - half : 1);
    memcpy(one, data + 2, half);
    memcpy(other, data + 2 + half, size - 2 - half);
    piece pieces[2] = {{BASE, one, half}, {BASE + half + (data[0] & 0x80 ? GAP : 0), other, size - 2 - half}};
    switch (data[0] % 5) {
    case 0: chunks(pieces, 2); break;
    case 1: lists(pieces, 2, data + 2, size - 2); break;
    case 2: tags(data[1] & 1 ? pieces : pieces + 1, data + 2, size - 2); break;
    case 3: dwarf(pieces, pieces + 1, data[0] >> 6); break;
    default: groups(pieces, 2), slices(pieces, 2, data + 2, size - 2);
    }
    free(one);
    free(other);
    return 0;
}
