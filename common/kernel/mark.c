/* Following references from the roots, breadth first: independent lists advance together, so that cache misses overlap. */
#include "graph.h"

#include <stdlib.h>

#define FAR 32u  /* nodes ahead of which the place of the edges is fetched */
#define SOON 16u /* and the edges themselves */

static int push(queue *q, uint32_t index) {
    if (q->tail - q->head > q->mask || !q->items) {
        uint32_t size = q->items ? q->mask + 1 : 0, wanted = size ? size * 2 : 1024;
        uint32_t *items = wanted ? malloc((size_t)wanted * sizeof *items) : NULL;
        if (!items)
            return NO_MEMORY;
        for (uint32_t at = 0; at < size; at++)
            items[at] = q->items[(q->head + at) & q->mask];
        free(q->items);
        *q = (queue){items, wanted - 1, 0, size};
    }
    q->items[q->tail++ & q->mask] = index;
    return DONE;
}

/* Queue the next of the blocks in `first` (and `second`, if any) that have no kind yet, some at a time; how many. */
static int seed(graph *g, const uint64_t *first, const uint64_t *second, uint8_t kind) {
    int queued = 0;
    for (; g->seed <= g->count / 64 && queued < 64; g->seed++) {
        uint64_t bits = first[g->seed] | (second ? second[g->seed] : 0);
        for (; bits; bits &= bits - 1) {
            uint32_t index = g->seed * 64 + (uint32_t)__builtin_ctzll(bits);
            if (g->kinds[index] != UNKNOWN)
                continue;
            g->kinds[index] = kind;
            if (push(&g->queue, index))
                return NO_MEMORY;
            queued++;
        }
    }
    return queued;
}

/* Visit about `budget` blocks; 1 if there are more. */
INLINE int visit(graph *g, int64_t budget, bool starts_only) {
    queue *q = &g->queue;
    uint8_t kind = starts_only ? REACHABLE : POSSIBLE;
    while (budget > 0) {
        if (q->tail - q->head < FAR) {
            int queued = starts_only ? seed(g, g->root_starts, NULL, kind) : seed(g, g->root_interiors, g->interiors, kind);
            if (queued < 0)
                return queued;
            if (q->tail == q->head)
                return g->seed <= g->count / 64;
        }
        uint32_t waiting = q->tail - q->head, count, ahead;
        if (waiting > FAR)
            prefetch_edges_of(g, q->items[(q->head + FAR) & q->mask]);
        if (waiting > SOON) {
            ahead = edges_of(g, q->items[(q->head + SOON) & q->mask], &count);
            __builtin_prefetch(g->edges + ahead);
        }
        ahead = edges_of(g, q->items[q->head++ & q->mask], &count);
        budget -= 1 + (count >> 3);
        for (const uint32_t *edge = g->edges + ahead, *end = edge + count; edge < end; edge++) {
            uint32_t target = *edge >> 1;
            if (g->kinds[target] != UNKNOWN)
                continue;
            if (starts_only && *edge & 1) {
                set_bit(g->interiors, target);
                continue;
            }
            g->kinds[target] = kind;
            if (push(q, target))
                return NO_MEMORY;
        }
    }
    return 1;
}

/* 1: there is more to do; 0: everything that can be reached is marked. */
API int fl_mark(graph *g, int64_t budget) {
    if (g->phase == 0) {
        g->interiors = calloc((size_t)g->count / 64 + 1, sizeof *g->interiors);
        if (!g->interiors || graph_settle(g))
            return NO_MEMORY;
        g->phase = 1;
    }
    for (; g->phase <= 2; g->phase++, g->seed = 0) {
        int more = visit(g, budget, g->phase == 1);
        if (more)
            return more;
    }
    free(g->queue.items);
    free(g->interiors);
    g->queue = (queue){NULL, 0, 0, 0};
    g->interiors = NULL;
    return 0;
}

API bool fl_rooted(const graph *g, uint32_t index) { return bit(g->root_starts, index) || bit(g->root_interiors, index); }

/* The edges of a block. */
API const uint32_t *fl_references(const graph *g, uint32_t index, uint32_t *count) {
    uint32_t first = edges_of(g, index, count);
    return g->edges + first;
}

/* Blocks that refer to `index`, ascending, each once: the first `room` of them into `found`; how many there are. */
API uint32_t fl_referrers(const graph *g, uint32_t index, uint32_t *found, uint32_t room) {
    uint32_t number = 0;
    for (uint32_t source = 0; source < g->count; source++) {
        uint32_t count, first = edges_of(g, source, &count);
        for (uint32_t at = 0; at < count; at++) {
            if (g->edges[first + at] >> 1 == index) {
                if (number < room)
                    found[number] = source;
                number++;
                break;
            }
        }
    }
    return number;
}

/* The shortest chain to `index` from a block that roots refer to, breadth first in index order: *length indices, last first, for
 * fl_free; *length 0 if there is none. NULL without memory. */
API uint32_t *fl_path(const graph *g, uint32_t index, uint32_t *length) {
    uint32_t *parents = malloc(((size_t)g->count + 1) * sizeof *parents), *chain = NULL;
    queue q = {NULL, 0, 0, 0};
    *length = 0;
    if (!parents)
        return NULL;
    memset(parents, 0xff, (size_t)g->count * sizeof *parents); /* NONE: not reached */
    bool failed = false;
    for (uint32_t at = 0; at < g->count && !failed; at++) {
        if (fl_rooted(g, at)) {
            parents[at] = at;
            failed = push(&q, at) != DONE;
        }
    }
    while (!failed && q.head != q.tail && parents[index] == NONE) {
        uint32_t source = q.items[q.head++ & q.mask], count, first = edges_of(g, source, &count);
        for (uint32_t at = 0; at < count && !failed; at++) {
            uint32_t target = g->edges[first + at] >> 1;
            if (parents[target] == NONE) {
                parents[target] = source;
                failed = push(&q, target) != DONE;
            }
        }
    }
    free(q.items);
    if (!failed) {
        uint32_t steps = 0;
        if (parents[index] != NONE) {
            steps = 1;
            for (uint32_t at = index; parents[at] != at; at = parents[at])
                steps++;
        }
        chain = malloc(((size_t)steps + 1) * sizeof *chain);
        if (chain) {
            for (uint32_t at = index, step = 0; step < steps; at = parents[at], step++)
                chain[step] = at;
            *length = steps;
        }
    }
    free(parents);
    return chain;
}

API void fl_kind_totals(const graph *g, uint8_t kind, uint64_t *count, uint64_t *bytes) {
    *count = *bytes = 0;
    for (uint32_t index = 0; index < g->count; index++)
        if (g->kinds[index] == kind && g->b->states[index] == IN_USE) {
            *count += 1;
            *bytes += size_of(g->b, index);
        }
}
