/* References among blocks in use. Each block's edges (index referred to << 1 | interior) stand in the order of its words, all
 * blocks' one after the other. Where a block's begin follows from its group of 16 blocks: where the group's begin, and how many
 * each has, a byte a block; groups with a block of more edges than a byte counts have offsets of their own. 1.25 bytes a block
 * rather than 4, and few enough to stay in cache.
 */
#ifndef FINDLEAKS_GRAPH_H
#define FINDLEAKS_GRAPH_H

#include "blocks.h"

#define GROUP 16u
#define WIDE 0x80000000u /* the group's base is an index into `wides` */
#define BATCH 1024u      /* candidates resolved at once: their cache misses overlap */

typedef struct {
    uint32_t offsets[GROUP + 1];
} wide;

typedef struct hints hints; /* see hints.c */
typedef struct lost lost;   /* see lost.h */

/* Words that may be pointers, and what they turn out to be. */
typedef struct {
    uint64_t values[BATCH];
    uint64_t starts[BATCH];
    const slot *slots[BATCH];
    uint32_t indices[BATCH];
    uint32_t sources[BATCH], ends[BATCH]; /* runs: candidates before ends[i], and not of an earlier run, are of sources[i] */
    uint32_t count, runs;
} batch;

typedef struct {
    uint32_t *items; /* a ring */
    uint32_t mask, head, tail;
} queue;

typedef struct graph {
    blocks *b;
    uint32_t count;
    uint8_t *kinds; /* the caller's */
    uint8_t *counts;
    uint32_t *bases;
    wide *wides;
    uint64_t wide_count, wide_capacity;
    uint32_t *edges;
    uint64_t edge_count, edge_capacity;
    uint64_t *root_starts, *root_interiors; /* a bit a block */
    uint64_t *interiors;                    /* blocks that interior references of reachable blocks lead to */
    uint64_t low, span;                     /* no block starts or ends outside [low, low + span) */
    bool popcnt;
    uint32_t group; /* the group being filled, and what is known of it */
    uint32_t degrees[GROUP];
    uint64_t group_base;
    uint64_t scanned;
    batch *batch;
    hints *hints;
    unsigned phase; /* of marking */
    uint32_t seed;  /* roots below are in the queue */
    queue queue;
    lost *lost;
} graph;

int graph_settle(graph *g); /* no more edges */
int hints_facts(graph *g, const piece *p);
int hints_edge(graph *g, uint64_t place, uint32_t index, uint64_t pointer);
int hints_root(graph *g, uint32_t index, uint64_t pointer);
void hints_settle(graph *g);
void hints_free(hints *h);
void lost_free(lost *l);

INLINE bool bit(const uint64_t *bits, uint32_t index) { return bits[index >> 6] >> (index & 63) & 1; }
INLINE void set_bit(uint64_t *bits, uint32_t index) { bits[index >> 6] |= UINT64_C(1) << (index & 63); }

INLINE uint32_t sum_bytes(uint64_t bytes) {
    uint64_t pairs = (bytes & UINT64_C(0x00FF00FF00FF00FF)) + (bytes >> 8 & UINT64_C(0x00FF00FF00FF00FF));
    return (uint32_t)((pairs * UINT64_C(0x0001000100010001)) >> 48);
}

/* The edges of a block: where they begin, and how many. */
INLINE uint32_t edges_of(const graph *g, uint32_t index, uint32_t *count) {
    uint32_t base = g->bases[index / GROUP], within = index % GROUP;
    if (base & WIDE) {
        const uint32_t *offsets = g->wides[base & ~WIDE].offsets + within;
        *count = offsets[1] - offsets[0];
        return offsets[0];
    }
    const uint8_t *counts = g->counts + (index - within);
    *count = counts[within];
    uint64_t low = load(counts), high = load(counts + 8);
    if (within < 8)
        return base + sum_bytes(low & ((UINT64_C(1) << 8 * within) - 1));
    return base + sum_bytes(low) + sum_bytes(high & ((UINT64_C(1) << 8 * (within - 8)) - 1));
}

INLINE void prefetch_edges_of(const graph *g, uint32_t index) {
    __builtin_prefetch(g->bases + index / GROUP);
    __builtin_prefetch(g->counts + index);
}

#endif
