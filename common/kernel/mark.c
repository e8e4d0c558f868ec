/* Marking: breadth first from the roots; items visited together, so that cache misses overlap. */
#include "graph.h"

#include <stdlib.h>

/* Prefetched so far ahead of the visited block: edges (FAR), groups of their targets (SOON). */
#define FAR 32u
#define SOON 16u

static int grow_queue(queue *q) {
    uint32_t size = q->items ? q->mask + 1 : 0, wanted = size ? size * 2 : 1024;
    uint32_t *items = wanted ? malloc((size_t)wanted * sizeof *items) : NULL;
    if (!items)
        return NO_MEMORY;
    for (uint32_t at = q->head; size && at != q->tail; at++) /* positions do not change */
        items[at & (wanted - 1)] = q->items[at & q->mask];
    free(q->items);
    q->items = items;
    q->mask = wanted - 1;
    return DONE;
}

/* Branch-free, as `wanted` is unpredictable. */
INLINE int push(queue *q, uint32_t item, bool wanted) {
    if ((q->tail - q->head > q->mask || !q->items) && grow_queue(q))
        return NO_MEMORY;
    q->items[q->tail & q->mask] = item;
    q->tail += wanted;
    return DONE;
}

/* Change a block's kind from `before` to `kind`: 1 if it had that; queued if it has edges. */
INLINE int reach(graph *g, uint32_t index, uint8_t kind, uint8_t before) {
    uint8_t *node = node_of(g, index);
    if (*node >> KIND_SHIFT != before)
        return 0;
    /* before writing: these wide reads would stall on the store */
    uint32_t count, first = edges_of(g, index, &count);
    *node ^= (uint8_t)((kind ^ before) << KIND_SHIFT);
    if (before != UNKNOWN)
        g->kinds[index] = kind;
    return push(&g->queue, first, count != 0) ? NO_MEMORY : 1;
}

/* Queue the blocks in `first` (and `second`, if any) whose kind is still `before`. */
INLINE int seed(graph *g, const uint64_t *first, const uint64_t *second, uint8_t kind, uint8_t before) {
    for (int queued = 0; g->seed <= g->count / 64 && queued < 64; g->seed++) {
        uint64_t bits = first[g->seed] | (second ? second[g->seed] : 0);
        for (; bits; bits &= bits - 1) {
            int fresh = reach(g, g->seed * 64 + (uint32_t)__builtin_ctzll(bits), kind, before);
            if (fresh < 0)
                return fresh;
            queued += fresh;
        }
    }
    return DONE;
}

/* Reached by start references; by others; possible blocks found reachable. */
enum { STARTS = 1, OTHERS = 2, MARKED = 3, PROMOTE = 4, PROMOTED = 5 };

/* Visit about `budget` blocks; 1 if there are more. */
INLINE int visit(graph *g, int64_t budget, unsigned phase) {
    queue *q = &g->queue;
    bool starts_only = phase != OTHERS;
    uint8_t kind = starts_only ? REACHABLE : POSSIBLE, before = phase == PROMOTE ? POSSIBLE : UNKNOWN;
    uint32_t far = q->head, soon = q->head;
    while (budget > 0) {
        while (q->tail - q->head < FAR && g->seed <= g->count / 64) {
            int failed = phase == STARTS    ? seed(g, g->root_starts, NULL, kind, before)
                         : phase == OTHERS  ? seed(g, g->root_interiors, g->interiors, kind, before)
                                            : seed(g, g->promoted, NULL, kind, before);
            if (failed)
                return failed;
        }
        if (q->tail == q->head)
            return DONE;
        for (; far != q->tail && far - q->head < FAR; far++)
            __builtin_prefetch(&g->edges[q->items[far & q->mask]]);
        for (; soon != q->tail && soon - q->head < SOON; soon++) {
            const uint32_t *edge = &g->edges[q->items[soon & q->mask]];
            __builtin_prefetch(&g->groups[(*edge >> INDEX_SHIFT) / GROUP]);
            for (unsigned more = 0; !(*edge & LAST) && more < 8; more++)
                __builtin_prefetch(&g->groups[(*++edge >> INDEX_SHIFT) / GROUP]);
        }
        const uint32_t *edge = &g->edges[q->items[q->head++ & q->mask]];
        for (bool last = false; !last; edge++, budget--) {
            uint32_t target = *edge >> INDEX_SHIFT;
            last = *edge & LAST;
            if (!starts_only || !(*edge & INTERIOR)) {
                if (reach(g, target, kind, before) < 0)
                    return NO_MEMORY;
            } else if (phase == STARTS && *node_of(g, target) >> KIND_SHIFT == UNKNOWN) {
                set_bit(g->interiors, target);
            }
        }
    }
    return 1;
}

static void publish(graph *g) {
    for (uint32_t group = 0, index = 0; index < g->count; group++)
        for (unsigned at = 0; at < GROUP && index < g->count; at++, index++) {
            uint8_t kind = g->groups[group].nodes[at] >> KIND_SHIFT;
            g->kinds[index] = kind == OFF_LIMITS ? UNKNOWN : kind;
        }
}

/* Mark what start references reach from the roots so far; others may follow, and another call.
 * 1: more to do. */
API int fl_mark_starts(graph *g, int64_t budget) {
    if (g->phase == 0) {
        g->interiors = calloc((size_t)g->count / 64 + 1, sizeof *g->interiors);
        if (!g->interiors || graph_settle(g))
            return NO_MEMORY;
        g->phase = STARTS;
    }
    return g->phase == STARTS ? visit(g, budget, STARTS) : DONE;
}

/* Whether fl_mark_starts marked all blocks in use that the words refer to. */
API bool fl_holds(const graph *g, const uint64_t *values, uint64_t count) {
    for (uint64_t at = 0; at < count; at++) {
        uint32_t index = block_find(g->b, values[at]);
        if (index != NONE && is_used(g, index) && *node_of(g, index) >> KIND_SHIFT != REACHABLE)
            return false;
    }
    return true;
}

/* 1: more to do; 0: all reachable and possible blocks are marked. */
API int fl_mark(graph *g, int64_t budget) {
    int more = fl_mark_starts(g, budget);
    if (!more && g->phase == STARTS) {
        g->phase = OTHERS;
        g->seed = 0;
    }
    if (!more && g->phase == OTHERS)
        more = visit(g, budget, OTHERS);
    if (more)
        return more;
    g->phase = MARKED;
    g->noting = false;
    publish(g);
    free(g->queue.items);
    g->queue = (queue){NULL, 0, 0, 0};
    DROP(g->interiors);
    heuristics_free(g->heuristics);
    g->heuristics = NULL;
    return 0;
}

/* After fl_interior_accept: possible blocks that start references now reach. 1: more to do. */
API int fl_promote(graph *g, int64_t budget) {
    if (g->phase == MARKED) {
        if (!g->promoted)
            return 0;
        g->phase = PROMOTE;
        g->seed = 0;
    }
    if (g->phase == PROMOTE) {
        int more = visit(g, budget, PROMOTE);
        if (more)
            return more;
        g->phase = PROMOTED;
        free(g->queue.items);
        g->queue = (queue){NULL, 0, 0, 0};
        DROP(g->promoted);
    }
    interiors_free(&g->inners);
    return 0;
}

API bool fl_rooted(const graph *g, uint32_t index) {
    return (bit(g->root_starts, index) || bit(g->root_interiors, index)) && is_used(g, index);
}

API int fl_references(const graph *g, uint32_t index, words *found) {
    uint32_t count, first = edges_of(g, index, &count);
    int failed = DONE;
    for (uint32_t at = first; at < first + count && !failed; at++) {
        uint32_t target = g->edges[at] >> INDEX_SHIFT;
        if (is_used(g, target))
            failed = words_push(found, target << 1 | (g->edges[at] & INTERIOR));
    }
    return failed;
}

/* Blocks with an edge to `index`, ascending, each once. */
API int fl_referrers(const graph *g, uint32_t index, words *found) {
    int failed = DONE;
    for (uint32_t source = 0; source < g->count && is_used(g, index) && !failed; source++) {
        uint32_t count, first = edges_of(g, source, &count), at = first;
        while (at < first + count && g->edges[at] >> INDEX_SHIFT != index)
            at++;
        if (at < first + count)
            failed = words_push(found, source);
    }
    return failed;
}

/* A shortest path to `index` from a rooted block, breadth first in index order; last first. */
API int fl_path(const graph *g, uint32_t index, words *found) {
    uint32_t *parents = malloc(((size_t)g->count + 1) * sizeof *parents);
    queue q = {NULL, 0, 0, 0};
    if (!parents)
        return NO_MEMORY;
    memset(parents, 0xff, (size_t)g->count * sizeof *parents); /* NONE: not reached */
    int failed = DONE;
    for (uint32_t at = 0; at < g->count && !failed; at++) {
        if (fl_rooted(g, at)) {
            parents[at] = at;
            failed = push(&q, at, true);
        }
    }
    while (!failed && q.head != q.tail && parents[index] == NONE) {
        uint32_t source = q.items[q.head++ & q.mask], count, first = edges_of(g, source, &count);
        for (uint32_t at = 0; at < count && !failed; at++) {
            uint32_t target = g->edges[first + at] >> INDEX_SHIFT;
            if (parents[target] == NONE && is_used(g, target)) {
                parents[target] = source;
                failed = push(&q, target, true);
            }
        }
    }
    bool more = parents[index] != NONE;
    for (uint32_t at = index; more && !failed; at = parents[at]) {
        failed = words_push(found, at);
        more = parents[at] != at;
    }
    FREE_ALL(q.items, parents);
    return failed;
}

/* Of the blocks in use of each kind: totals[5]. */
API void fl_kind_totals(const graph *g, block_total *totals) {
    add_up(g->b, 0, g->count, g->kinds, INDIRECT + 1, g->b->states, IN_USE, totals);
}
