/* Marking breadth first from the roots (visit.c), and queries of the marked graph. */
#include "visit.h"

#include "threads.h"

#include <stdlib.h>

/* Write the kinds of blocks in some groups for the caller. Compilers vectorise the inner loop. */
static void publish(void *context, unsigned thread, uint64_t group, uint64_t end) {
    const graph *g = context;
    (void)thread;
    for (uint64_t first = group * GROUP; group < end; group++, first += GROUP) {
        uint8_t kinds[GROUP];
        for (unsigned at = 0; at < GROUP; at++) {
            uint8_t kind = g->groups[group].nodes[at] >> KIND_SHIFT;
            kinds[at] = kind == OFF_LIMITS ? UNKNOWN : kind;
        }
        memcpy(g->kinds + first, kinds, g->count - first < GROUP ? g->count - first : GROUP);
    }
}

/* Mark the blocks that start references reach from the roots so far. More roots may follow, with
 * another call. Returns 1 if work is left. */
API int fl_mark_starts(graph *g, int64_t budget) {
    if (g->phase == 0) {
        g->interiors = calloc((size_t)g->count / 64 + 1, sizeof *g->interiors);
        if (!g->interiors || graph_settle(g))
            return NO_MEMORY;
        g->phase = STARTS;
    }
    return g->phase == STARTS ? visit(g, budget, STARTS) : DONE;
}

/* Return whether fl_mark_starts marked all blocks in use that these words refer to. */
API bool fl_holds(const graph *g, const uint64_t *values, uint64_t count) {
    for (uint64_t at = 0; at < count; at++) {
        uint32_t index = block_find(g->b, values[at]);
        if (index != NONE && is_used(g, index) && *node_of(g, index) >> KIND_SHIFT != REACHABLE)
            return false;
    }
    return true;
}

/* Mark all reachable and possible blocks. Returns 1 if work is left. */
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
    run_in_parts(g->b->threads, ((uint64_t)g->count + GROUP - 1) / GROUP, SOME_GROUPS, publish, g);
    free(g->queue.items);
    g->queue = (queue){NULL, 0, 0, 0};
    DROP(g->reached);
    heuristics_free(g->heuristics);
    g->heuristics = NULL;
    return 0;
}

/* After fl_interior_accept or fl_structures_examine: mark possible blocks that start references
 * now reach. Returns 1 if work is left. */
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
        g->phase = MARKED; /* further references may be accepted, followed by another call */
        free(g->queue.items);
        g->queue = (queue){NULL, 0, 0, 0};
        DROP(g->promoted);
    }
    return 0;
}

API bool fl_rooted(const graph *g, uint32_t index) {
    return (bit(g->root_starts, index) || bit(g->root_interiors, index)) && is_used(g, index);
}

/* Return the place of `index` in ascending `found`, or its count. */
static uint64_t place_of(const words *found, uint32_t index) {
    uint64_t low = 0, high = found->count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (found->items[middle] < index)
            low = middle + 1;
        else
            high = middle;
    }
    return low < found->count && found->items[low] == index ? low : found->count;
}

/* Return blocks in use of `smallest` to `largest` bytes that no word refers to, ascending.
 * Returns none if fl_mark_starts left more than `most` blocks of these sizes unmarked. */
API int fl_unreferenced(const graph *g, uint64_t smallest, uint64_t largest, uint64_t most, words *found) {
    for (uint32_t index = 0; index < g->count; index++) {
        if (!is_used(g, index) || *node_of(g, index) >> KIND_SHIFT == REACHABLE || fl_rooted(g, index))
            continue;
        uint64_t size = size_of(g->b, index);
        if (size < smallest || size > largest)
            continue;
        if (found->count == most) {
            found->count = 0;
            return DONE;
        }
        if (words_push(found, index))
            return NO_MEMORY;
    }
    if (!found->count)
        return DONE;
    words referred = {NULL, 0, 0};
    for (uint64_t at = 0; at < found->count; at++)
        if (words_push(&referred, 0))
            return free(referred.items), NO_MEMORY;
    for (uint32_t source = 0; source < g->count; source++) {
        uint32_t count, first = edges_of(g, source, &count);
        for (uint32_t at = first; at < first + count; at++) {
            uint64_t place = place_of(found, g->edges[at] >> INDEX_SHIFT);
            if (place < found->count)
                referred.items[place] = 1;
        }
    }
    uint64_t left = 0;
    for (uint64_t at = 0; at < found->count; at++)
        if (!referred.items[at])
            found->items[left++] = found->items[at];
    found->count = left;
    free(referred.items);
    return DONE;
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

/* Return the blocks with an edge to `index`, ascending, each once. */
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

/* Return a shortest path from a rooted block to `index`, the last block first. The search is
 * breadth first, in the order of indices. */
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

/* Write the number and bytes of blocks in use of each kind to totals[5]. */
API void fl_kind_totals(const graph *g, block_total *totals) {
    add_up(g->b, 0, g->count, g->kinds, INDIRECT + 1, g->b->states, IN_USE, totals);
}

/* Return whether at least `number` blocks are of a kind. */
API bool fl_has_kind(const graph *g, uint8_t kind, uint32_t number) {
    uint32_t found = 0;
    for (uint32_t index = 0; index < g->count && found < number; index++)
        found += g->kinds[index] == kind;
    return found >= number;
}
