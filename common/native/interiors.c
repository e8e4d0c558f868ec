/* Interior references to otherwise unreachable blocks, counted by offset. They reveal block
 * headers that the program adds. ../graph/conventions.py decides which offsets count as start
 * references, which makes blocks reachable. Marking has followed both sorts of references, so
 * this step makes no reachable or possible block leaked, and no leaked block reachable. */
#include "graph.h"

#include "threads.h"

#include <stdlib.h>

#define HELD (1u << 16) /* blocks that a thread counts at a time */
#define LINE 16u        /* words between threads' counters: two cache lines */
#define LOW_BITS UINT32_MAX /* all offsets below 2 * WORD; no key has it */

void interiors_free(graph *g) {
    free_all((void *const[]){g->inners.items, g->root_words.items}, 2);
    g->inners = (inners){NULL, 0, 0};
    g->root_words = (words){NULL, 0, 0};
}

/* Record interior references; call it before scanning. */
API void fl_graph_note(graph *g) { g->noting = true; }

/* Count references to the interior of blocks as start references; call it before scanning. */
API void fl_graph_count_interiors(graph *g) { g->counts_interiors = true; }

int interiors_reserve(inners *list, uint64_t more) {
    while (list->capacity < list->count + more)
        if (!grow(&list->items, list->capacity, &list->capacity, sizeof *list->items))
            return NO_MEMORY;
    return DONE;
}

static bool live(const graph *g, uint32_t source) {
    return source == NONE || g->kinds[source] == REACHABLE || g->kinds[source] == POSSIBLE;
}

/* Return the possible block that a reference from a reachable or possible block leads to, if the
 * reference is still interior; else NONE. */
uint32_t interior_target(const graph *g, const inner *item) {
    if (item->offset == UINT32_MAX || !live(g, item->source))
        return NONE;
    uint32_t target = item->place;
    if (item->source != NONE) {
        uint32_t edge = g->edges[item->place];
        if (!(edge & INTERIOR))
            return NONE;
        target = edge >> INDEX_SHIFT;
    }
    return g->kinds[target] == POSSIBLE ? target : NONE;
}

/* Turn an interior reference to `target` into a start reference. */
void accept_interior(graph *g, const inner *item, uint32_t target) {
    if (item->source != NONE)
        g->edges[item->place] &= ~INTERIOR;
    if (item->source == NONE || g->kinds[item->source] == REACHABLE)
        set_bit(g->promoted, target);
}

/* Return the number of keys (block << 32 | offset) of references to possible blocks, from number
 * *at (updated) on, at most `budget`; *all: the number of recorded references. Call it after
 * marking. */
API uint64_t fl_interior_keys(const graph *g, uint64_t *at, uint64_t *all, uint64_t budget, uint64_t *keys) {
    uint64_t found = 0;
    *all = g->inners.count;
    for (; *at < *all && budget; ++*at, budget--) {
        const inner *item = &g->inners.items[*at];
        uint32_t target = interior_target(g, item);
        if (target != NONE)
            keys[found++] = (uint64_t)target << 32 | item->offset;
    }
    return found;
}

/* -- blocks by size and offset: a hash table */

typedef struct {
    uint64_t size, offset, blocks; /* 0 blocks: unused entry */
} row;

typedef struct counting {
    const graph *g;
    row *rows;
    uint64_t mask, used;
    uint32_t last; /* block of the last key */
} counting;

static row *row_of(const counting *c, uint64_t size, uint64_t offset) {
    uint64_t at = (size * UINT64_C(0x9E3779B97F4A7C15) ^ offset * UINT64_C(0xC2B2AE3D27D4EB4F)) >> 20 & c->mask;
    while (c->rows[at].blocks && (c->rows[at].size != size || c->rows[at].offset != offset))
        at = (at + 1) & c->mask;
    return &c->rows[at];
}

static int count_one(counting *c, uint64_t size, uint64_t offset) {
    row *found = row_of(c, size, offset);
    if (!found->blocks) {
        *found = (row){size, offset, 0};
        c->used++;
    }
    found->blocks++;
    if (c->used * 2 <= c->mask)
        return DONE;
    counting wider = {c->g, calloc(c->mask * 2 + 2, sizeof *c->rows), c->mask * 2 + 1, c->used, c->last};
    if (!wider.rows)
        return NO_MEMORY;
    for (uint64_t at = 0; at <= c->mask; at++)
        if (c->rows[at].blocks)
            *row_of(&wider, c->rows[at].size, c->rows[at].offset) = c->rows[at];
    free(c->rows);
    *c = wider;
    return DONE;
}

API void fl_interior_count_free(counting *c) {
    FREE_ALL(c->rows, c);
}

API counting *fl_interior_count_new(const graph *g) {
    counting *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->g = g;
    c->mask = 255;
    c->last = NONE;
    c->rows = calloc(c->mask + 1, sizeof *c->rows);
    if (!c->rows) {
        free(c);
        return NULL;
    }
    return c;
}

/* Count keys, which ascend without duplicates. A block counts once for each of its offsets and
 * once for offset 0, under its own size and under size 0. It also counts once for LOW_BITS if a
 * pointer differs from its start only in the low bits, which 16-byte alignment leaves free for
 * tags; the first key shows this. */
API int fl_interior_count(counting *c, const uint64_t *keys, uint64_t count) {
    for (uint64_t at = 0; at < count; at++) {
        uint32_t block = (uint32_t)(keys[at] >> 32);
        uint64_t size = size_of(c->g->b, block), offset = keys[at] & UINT32_MAX;
        if (block != c->last && (count_one(c, size, 0) || count_one(c, 0, 0)))
            return NO_MEMORY;
        if (block != c->last && offset < 2 * WORD && (count_one(c, size, LOW_BITS) || count_one(c, 0, LOW_BITS)))
            return NO_MEMORY;
        c->last = block;
        if (count_one(c, size, offset) || count_one(c, 0, offset))
            return NO_MEMORY;
    }
    return DONE;
}

/* Return size, offset and number of blocks for each row with at least `least` blocks, unordered. */
API int fl_interior_rows(const counting *c, uint64_t least, words *found) {
    for (uint64_t at = 0; at <= c->mask; at++) {
        const row *one = &c->rows[at];
        if (one->blocks >= least && one->blocks && PUSH_ALL(found, one->size, one->offset, one->blocks))
            return NO_MEMORY;
    }
    return DONE;
}

enum { SMALL = 1 << 16 }; /* sizes with a separate entry */

/* Arguments and results of fl_interior_held. */
typedef struct {
    const graph *g;
    const uint64_t *sizes;
    uint32_t size_count, first, large; /* large: the first of `sizes` that is not SMALL */
    uint32_t *numbers; /* 1 + index in `sizes`, by size */
    uint64_t *counts;  /* size_count + 1 for each thread; thread n's begin at n * apart */
    size_t apart;
} holding;

static void count_held(void *context, unsigned thread, uint64_t first, uint64_t end) {
    const holding *h = context;
    uint64_t *counts = h->counts + thread * h->apart, all = 0;
    for (uint32_t index = h->first + (uint32_t)first, last = h->first + (uint32_t)end; index < last; index++) {
        if (h->g->kinds[index] != REACHABLE && h->g->kinds[index] != POSSIBLE)
            continue;
        all++;
        uint64_t size = size_of(h->g->b, index);
        if (size < SMALL) {
            if (h->numbers[size])
                counts[h->numbers[size] - 1]++;
            continue;
        }
        uint32_t number = h->large;
        BISECT(number, h->size_count, middle, h->sizes[middle] < size)
        if (number < h->size_count && h->sizes[number] == size)
            counts[number]++;
    }
    counts[h->size_count] += all;
}

/* Set counts[i] to the number of reachable and possible blocks of sizes[i] (ascending); the last
 * one counts all sizes. Visits at most `budget` blocks from number *at (updated) on. */
API int fl_interior_held(const graph *g, const uint64_t *sizes, uint32_t size_count, uint64_t *counts, uint32_t *at, uint32_t budget) {
    unsigned threads = g->b->threads;
    holding h = {.g = g, .sizes = sizes, .size_count = size_count, .first = *at, .apart = (size_t)size_count + 1 + LINE};
    uint32_t some = budget < g->count - *at ? budget : g->count - *at;
    h.numbers = calloc(SMALL, sizeof *h.numbers);
    h.counts = calloc(threads * h.apart, sizeof *h.counts);
    if (!h.numbers || !h.counts) {
        FREE_ALL(h.numbers, h.counts);
        return NO_MEMORY;
    }
    for (uint32_t number = 0; number < size_count; number++)
        if (sizes[number] < SMALL)
            h.numbers[sizes[number]] = h.large = number + 1;
    run_in_parts(threads, some, HELD, count_held, &h);
    *at += some;
    for (unsigned thread = 0; thread < threads; thread++)
        for (uint32_t number = 0; number <= size_count; number++)
            counts[number] += h.counts[thread * h.apart + number];
    FREE_ALL(h.numbers, h.counts);
    return DONE;
}

/* -- rules: pairs (size, offset), ascending; size 0 means any size */

static uint64_t rule_at(const uint64_t *rules, uint64_t count, uint64_t size, uint64_t offset) {
    uint64_t at = 0;
    BISECT(at, count, middle, rules[2 * middle] < size || (rules[2 * middle] == size && rules[2 * middle + 1] < offset))
    return at < count && rules[2 * at] == size && rules[2 * at + 1] == offset ? at : count;
}

static uint64_t rule_of(const graph *g, const uint64_t *rules, uint64_t count, uint32_t block, uint64_t offset) {
    uint64_t any = rule_at(rules, count, 0, offset);
    return any < count ? any : rule_at(rules, count, size_of(g->b, block), offset);
}

/* Turn references that the rules accept into start references: at most `budget` from number *at
 * (updated) on. */
API int fl_interior_accept(graph *g, const uint64_t *rules, uint64_t count, uint64_t *at, uint64_t budget) {
    if (!g->promoted && !(g->promoted = calloc((size_t)g->count / 64 + 1, sizeof *g->promoted)))
        return NO_MEMORY;
    for (; *at < g->inners.count && budget; ++*at, budget--) {
        const inner *item = &g->inners.items[*at];
        uint32_t target = interior_target(g, item);
        if (target != NONE && rule_of(g, rules, count, target, item->offset) < count)
            accept_interior(g, item, target);
    }
    return DONE;
}

/* After fl_promote: set `sums` to the blocks and bytes that each rule made reachable, each block
 * once. */
API void fl_interior_effect(const graph *g, const uint64_t *keys, uint64_t key_count, const uint64_t *rules, uint64_t count, uint64_t *sums,
                            uint32_t *last) {
    for (uint64_t at = 0; at < key_count; at++) {
        uint32_t block = (uint32_t)(keys[at] >> 32);
        if (block == *last || g->kinds[block] != REACHABLE)
            continue;
        uint64_t rule = rule_of(g, rules, count, block, keys[at] & UINT32_MAX);
        if (rule == count)
            continue;
        *last = block;
        sums[2 * rule]++;
        sums[2 * rule + 1] += size_of(g->b, block);
    }
}
