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
        g->interiors = allocate_zeros(bit_bytes(g));
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

/* Return the first `limit` blocks with an edge to `index` (0: all), ascending, each once. */
API int fl_referrers(const graph *g, uint32_t index, uint64_t limit, words *found) {
    int failed = DONE;
    for (uint32_t source = 0; source < g->count && is_used(g, index) && !failed && (!limit || found->count < limit); source++) {
        uint32_t count, first = edges_of(g, source, &count), at = first;
        while (at < first + count && g->edges[at] >> INDEX_SHIFT != index)
            at++;
        if (at < first + count)
            failed = words_push(found, source);
    }
    return failed;
}

/* A visited block, and the step at which the search reached it (NONE: a root refers to it). */
typedef struct {
    uint32_t index, before;
} step;

typedef struct {
    const graph *g;
    uint32_t wanted, last; /* `last`: the step that reached the wanted block, or NONE */
    const uint8_t *avoided; /* a byte for each label */
    uint64_t label_count;
    bool starts_only;      /* whether interior references are ignored */
    uint64_t *seen;        /* one bit for each block */
    LIST(step) steps;
} path_search;

static bool is_avoided(const path_search *s, uint32_t index) {
    uint32_t label = s->label_count ? label_of(s->g, index) : NONE;
    return label < s->label_count && s->avoided[label];
}

/* Visit a block for the first time. A block other than the wanted one is kept only if it has
 * edges, and is not avoided. */
static int visit_once(path_search *s, uint32_t index, uint32_t before) {
    uint32_t count;
    if (bit(s->seen, index) || !is_used(s->g, index))
        return DONE;
    set_bit(s->seen, index);
    (void)edges_of(s->g, index, &count);
    if (index == s->wanted)
        s->last = (uint32_t)s->steps.count;
    return index == s->wanted || (count && !is_avoided(s, index)) ? PUSH(s->steps, (step){index, before}) : DONE;
}

static int visit_rooted(path_search *s) {
    const graph *g = s->g;
    int failed = DONE;
    for (uint64_t word = 0; word < (uint64_t)g->count / 64 + 1 && !failed; word++)
        for (uint64_t bits = g->root_starts[word] | (s->starts_only ? 0 : g->root_interiors[word]); bits && !failed; bits &= bits - 1)
            failed = visit_once(s, (uint32_t)(word * 64) + (uint32_t)__builtin_ctzll(bits), NONE);
    return failed;
}

/* Search breadth first, in the order of indices, from `most` blocks, or, if there are none, from
 * the rooted blocks. */
static int search_path(path_search *s, const uint32_t *starts, uint32_t most) {
    const graph *g = s->g;
    s->steps.count = 0;
    s->seen = calloc((size_t)g->count / 64 + 1, sizeof *s->seen);
    int failed = !s->seen ? NO_MEMORY : most ? DONE : visit_rooted(s);
    for (uint32_t at = 0; at < most && !failed; at++)
        failed = visit_once(s, starts[at], NONE);
    for (uint32_t at = 0; at < s->steps.count && s->last == NONE && !failed; at++) {
        uint32_t count, first = edges_of(g, s->steps.items[at].index, &count);
        for (uint32_t edge = first; edge < first + count && s->last == NONE && !failed; edge++)
            if (!(s->starts_only && g->edges[edge] & INTERIOR))
                failed = visit_once(s, g->edges[edge] >> INDEX_SHIFT, at);
    }
    DROP(s->seen);
    return failed;
}

/* Return a shortest path to `index` from one of `most` blocks, or, if there are none, from a
 * rooted block. The last block comes first. Interior references are followed only if no other path
 * exists. `avoided` has a byte for each of `labels` labels: before the end of the path, there is no
 * block whose label's byte is set. */
API int fl_path(const graph *g, uint32_t index, const uint32_t *starts, uint32_t most, const uint8_t *avoided, uint64_t labels, words *found) {
    path_search s = {.g = g, .wanted = index, .last = NONE, .avoided = avoided, .label_count = labels, .starts_only = true};
    int failed = search_path(&s, starts, most);
    if (s.last == NONE && !failed) {
        s.starts_only = false;
        failed = search_path(&s, starts, most);
    }
    for (uint32_t at = s.last; at != NONE && !failed; at = s.steps.items[at].before)
        failed = words_push(found, s.steps.items[at].index);
    free(s.steps.items);
    return failed;
}

/* Write the number and bytes of blocks in use of each kind to totals[5]. */
API void fl_kind_totals(const graph *g, block_total *totals) {
    add_up(g->b, 0, g->count, g->kinds, INDIRECT + 1, g->b->states, IN_USE, totals);
}

/* Return whether at least `number` blocks are of a kind. */
API bool fl_has_kind(const graph *g, uint8_t kind, uint32_t number) {
    const uint8_t *at = g->kinds, *end = g->kinds + g->count;
    for (; number && at < end; number--, at++)
        if (!(at = memchr(at, kind, (size_t)(end - at))))
            return false;
    return !number;
}
