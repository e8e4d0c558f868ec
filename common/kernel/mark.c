/* Following references from the roots, breadth first: independent lists advance together, so that cache misses overlap. */
#include "graph.h"

#include <stdlib.h>

/* How many blocks ahead of the one visited its byte, its edges, and what they lead to are asked for. */
#define FAR 48u
#define MIDDLE 32u
#define SOON 16u
#define STAGED 64u /* a power of two, at least FAR */

static int push(queue *q, uint32_t index) {
    if (q->tail - q->head > q->mask || !q->items) {
        uint32_t size = q->items ? q->mask + 1 : 0, wanted = size ? size * 2 : 1024;
        uint32_t *items = wanted ? malloc((size_t)wanted * sizeof *items) : NULL;
        if (!items)
            return NO_MEMORY;
        for (uint32_t at = q->head; size && at != q->tail; at++) /* positions stay what they are */
            items[at & (wanted - 1)] = q->items[at & q->mask];
        free(q->items);
        q->items = items;
        q->mask = wanted - 1;
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
            uint8_t *node = node_of(g, index);
            if (*node >> KIND_SHIFT != UNKNOWN)
                continue;
            *node |= (uint8_t)(kind << KIND_SHIFT);
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
    uint32_t firsts[STAGED], counts[STAGED], far = q->head, middle = q->head, soon = q->head;
    while (budget > 0) {
        if (q->tail - q->head < FAR) {
            int queued = starts_only ? seed(g, g->root_starts, NULL, kind) : seed(g, g->root_interiors, g->interiors, kind);
            if (queued < 0)
                return queued;
            if (q->tail == q->head)
                return g->seed <= g->count / 64;
        }
        for (; far != q->tail && far - q->head < FAR; far++)
            __builtin_prefetch(&g->groups[q->items[far & q->mask] / GROUP]);
        for (; middle != q->tail && middle - q->head < MIDDLE; middle++) {
            firsts[middle % STAGED] = edges_of(g, q->items[middle & q->mask], &counts[middle % STAGED]);
            __builtin_prefetch(g->edges + firsts[middle % STAGED]);
        }
        for (; soon != q->tail && soon - q->head < SOON; soon++) {
            const uint32_t *edge = g->edges + firsts[soon % STAGED];
            for (uint32_t at = 0; at < counts[soon % STAGED] && at < 8; at++)
                __builtin_prefetch(&g->groups[(edge[at] >> 1) / GROUP]);
        }
        const uint32_t *edge = g->edges + firsts[q->head % STAGED], *end = edge + counts[q->head % STAGED];
        budget -= 1 + (end - edge) / 8;
        q->head++;
        for (; edge < end; edge++) {
            uint32_t target = *edge >> 1;
            uint8_t *node = node_of(g, target);
            if (*node >> KIND_SHIFT != UNKNOWN)
                continue;
            if (starts_only && *edge & 1) {
                set_bit(g->interiors, target);
                continue;
            }
            *node |= (uint8_t)(kind << KIND_SHIFT);
            if (push(q, target))
                return NO_MEMORY;
        }
    }
    return 1;
}

/* Tell the caller the kinds. */
static void publish(graph *g) {
    for (uint32_t index = 0; index < g->count; index++) {
        uint8_t kind = *node_of(g, index) >> KIND_SHIFT;
        g->kinds[index] = kind == OFF_LIMITS ? UNKNOWN : kind;
    }
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
    publish(g);
    free(g->queue.items);
    free(g->interiors);
    g->queue = (queue){NULL, 0, 0, 0};
    g->interiors = NULL;
    return 0;
}

API bool fl_rooted(const graph *g, uint32_t index) {
    return (bit(g->root_starts, index) || bit(g->root_interiors, index)) && is_used(g, index);
}

/* The edges of a block: the first `room` of them into `found`; how many there are. */
API uint32_t fl_references(const graph *g, uint32_t index, uint32_t *found, uint32_t room) {
    uint32_t number = 0, count, first = edges_of(g, index, &count);
    for (uint32_t at = 0; at < count; at++) {
        uint32_t edge = g->edges[first + at];
        if (!is_used(g, edge >> 1))
            continue;
        if (number < room)
            found[number] = edge;
        number++;
    }
    return number;
}

/* Blocks that refer to `index`, ascending, each once: the first `room` of them into `found`; how many there are. */
API uint32_t fl_referrers(const graph *g, uint32_t index, uint32_t *found, uint32_t room) {
    uint32_t number = 0;
    for (uint32_t source = 0; source < g->count && is_used(g, index); source++) {
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
            if (parents[target] == NONE && is_used(g, target)) {
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
