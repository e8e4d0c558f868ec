/* Tree reduction: collapses single-entry trees. A block with one referrer is dominated by it. So
 * a tree of such blocks, which make up most of a typical heap, needs no depth-first visit, in
 * which cache misses cannot overlap. All blocks are visited breadth first, where cache misses
 * overlap. *Join nodes* are blocks with several referrers, their referrers, and all blocks that
 * lead to a join node. Of other trees, only the top is numbered, with the tree's weight.
 *
 * Example: a refers to b and c, c to d, and only these edges exist: a, b, c, d are one tree, and
 * a is numbered with weight 4. If b also refers to d, then d, b, c and a are join nodes. */
#include "dominators.h"

#include <stdlib.h>

#define FAR 64u      /* ranks by which edges are prefetched ahead */
#define SOON 32u     /* ranks by which targets' bits are prefetched ahead */
#define LOOKED_AT 8u /* targets prefetched for each rank */
#define JOIN_SHARE 4u /* give up if more than 1/JOIN_SHARE of the blocks are join nodes */

void reduction_free(dominators *d) {
    DROP(d->order);
    DROP(d->above);
    DROP(d->weights);
    DROP(d->joins);
    DROP(d->join_blocks);
    DROP(d->earlier);
}

INLINE void clear_bit(uint64_t *bits, uint32_t index) { bits[index >> 6] &= ~(UINT64_C(1) << (index & 63)); }

static int skip_reduction(dominators *d) {
    for (uint32_t rank = 0; rank < d->ranks; rank++)
        clear_bit(d->seen, d->order[rank]);
    reduction_free(d);
    return DONE;
}

INLINE void mark_join(uint64_t *bits, uint32_t at, uint32_t *count) {
    *count += !bit(bits, at);
    set_bit(bits, at);
}

/* Return whether the block has an earlier edge to the same target, among the last LOOKED_AT
 * edges. */
static bool repeated(const uint32_t *edge, const uint32_t *first) {
    for (const uint32_t *before = edge; before > first && edge - before < (ptrdiff_t)LOOKED_AT;)
        if (*--before >> INDEX_SHIFT == *edge >> INDEX_SHIFT)
            return true;
    return false;
}

/* Handle a second edge to a block: it makes the block and the edge's source join nodes. An edge
 * back to the source's own parent does so only if the parent is a join node, because the parent
 * dominates the source. */
static void again(dominators *d, const uint32_t *edge, const uint32_t *first, uint32_t from) {
    uint32_t index = *edge >> INDEX_SHIFT, above = d->above[from];
    if (bit(d->earlier, index) || (above != NONE && index == d->order[above]) || repeated(edge, first))
        return;
    mark_join(d->joins, from, &d->join_count);
    mark_join(d->join_blocks, index, &d->join_count);
}

/* Return a block's first edge, or 0. It is in `weights` by rank until its edges are followed. */
INLINE uint32_t first_of(const graph *g, uint32_t index) {
    uint32_t count, first = edges_of(g, index, &count);
    return count ? first : 0;
}

/* Start the next priority with the blocks that its roots refer to. */
static void seed(dominators *d) {
    memcpy(d->earlier, d->seen, ((size_t)d->g->count / 64 + 1) * sizeof *d->earlier);
    for (; d->group <= d->lasts[d->priority]; d->group++)
        for (; d->target < d->starts[d->group + 1]; d->target++) {
            uint32_t index = d->targets[d->target];
            if (bit(d->seen, index))
                continue;
            set_bit(d->seen, index);
            d->order[d->ranks] = index;
            d->above[d->ranks] = NONE;
            d->weights[d->ranks++] = first_of(d->g, index);
        }
    d->priority++;
}

/* Follow the edges of all ranks so far, and of ranks added meanwhile. */
static void follow(dominators *d, int64_t *budget) {
    const graph *g = d->g;
    const uint32_t *edges = g->edges;
    uint32_t *order = d->order, *above = d->above, *firsts = d->weights, ranks = d->ranks, from = (uint32_t)d->at, far = from, soon = from;
    uint64_t *seen = d->seen;
    int64_t left = *budget;
    for (; from < ranks && left >= 0 && d->join_count <= d->count / JOIN_SHARE; from++, left--) {
        for (; far < ranks && far - from < FAR; far++)
            __builtin_prefetch(&edges[firsts[far]]);
        for (; soon < ranks && soon - from < SOON; soon++) {
            const uint32_t *edge = &edges[firsts[soon]];
            for (unsigned each = 0; firsts[soon] && each < LOOKED_AT; each++) {
                __builtin_prefetch(&seen[*edge >> INDEX_SHIFT >> 6], 1);
                __builtin_prefetch(&g->groups[(*edge >> INDEX_SHIFT) / GROUP]);
                if (*edge++ & LAST)
                    break;
            }
        }
        const uint32_t *edge = &edges[d->edge ? d->edge : firsts[from]];
        bool last = !firsts[from];
        for (; !last && left >= 0; edge++, left--) {
            uint32_t index = *edge >> INDEX_SHIFT;
            last = *edge & LAST;
            if (d->containers && edge_ignored(d, index, order[from]))
                continue;
            if (bit(seen, index)) {
                again(d, edge, &edges[firsts[from]], from);
                continue;
            }
            set_bit(seen, index);
            order[ranks] = index;
            above[ranks] = from;
            firsts[ranks++] = first_of(g, index);
        }
        d->edge = last ? 0 : (uint32_t)(edge - edges);
        if (!last)
            break;
        firsts[from] = 1; /* from here on, firsts[from] is the weight */
    }
    d->ranks = ranks;
    d->at = from;
    *budget = left;
}

static bool begun(dominators *d) {
    size_t capacity = (size_t)d->count + d->roots + 2, bits = (size_t)d->g->count / 64 + 1;
    d->order = malloc(capacity * sizeof *d->order);
    d->above = malloc(capacity * sizeof *d->above);
    d->weights = malloc(capacity * sizeof *d->weights);
    d->joins = calloc(capacity / 64 + 1, sizeof *d->joins);
    d->join_blocks = calloc(bits, sizeof *d->join_blocks);
    d->earlier = malloc(bits * sizeof *d->earlier);
    return d->order && d->above && d->weights && d->joins && d->join_blocks && d->earlier;
}

int dominators_survey(dominators *d, int64_t *budget) {
    if (d->leaf_trees)
        return DONE;
    if (!d->order && !begun(d))
        return NO_MEMORY;
    for (; *budget >= 0; follow(d, budget)) {
        bool enough = d->join_count > d->count / JOIN_SHARE;
        if (enough || (d->at == d->ranks && d->priority == d->priorities)) {
            /* the depth-first visit starts from the first group */
            d->priority = d->group = d->target = 0;
            return enough ? skip_reduction(d) : DONE;
        }
        if (d->at == d->ranks)
            seed(d);
    }
    return 1;
}

/* Propagate join nodes to their parents; sum up the weights of the other trees. */
int dominators_joins(dominators *d, int64_t *budget) {
    if (!d->order)
        return DONE;
    const uint32_t *order = d->order, *rows_above = d->above;
    uint32_t *weights = d->weights, rank = d->ranks - (uint32_t)d->at;
    uint64_t *joins = d->joins, *join_blocks = d->join_blocks;
    d->at = pause_of(d->at, d->ranks, budget);
    while (rank-- > d->ranks - (uint32_t)d->at) {
        uint32_t above = rows_above[rank];
        if (bit(joins, rank) || bit(join_blocks, order[rank])) {
            set_bit(joins, rank);
            set_bit(join_blocks, order[rank]);
            if (above != NONE)
                set_bit(joins, above);
        } else if (above != NONE) {
            weights[above] += weights[rank];
        }
    }
    return d->at < d->ranks;
}

/* Return whether this block, which is not a join node, is the top of a collapsed tree. */
INLINE bool begins(const dominators *d, uint32_t rank) { return d->above[rank] == NONE || bit(d->joins, d->above[rank]); }

/* Number only join nodes and tops of collapsed trees; `count` is the number of both. */
int dominators_collapse(dominators *d, int64_t *budget) {
    if (!d->order)
        return DONE;
    if (!d->at)
        d->join_count = 0;
    const uint32_t *order = d->order;
    uint32_t pause = (uint32_t)pause_of(d->at, d->ranks, budget), found = 0;
    for (uint32_t rank = (uint32_t)d->at; rank < pause; rank++) {
        if (!bit(d->joins, rank)) {
            if (!begins(d, rank))
                continue;
            d->numbers[order[rank]] = rank;
        }
        clear_bit(d->seen, order[rank]);
        found++;
    }
    d->join_count += found;
    d->at = pause;
    if (pause < d->ranks)
        return 1;
    if (d->join_count > d->count / JOIN_SHARE)
        return skip_reduction(d);
    d->count = d->join_count;
    return DONE;
}

/* Insert the blocks of each collapsed tree after the top of the tree. For ranks that are done,
 * `above` has the place of the rank, and `weights` the next free place below it. */
int dominators_grow(dominators *d, int64_t *budget) {
    if (!d->order)
        return DONE;
    const uint32_t *order = d->order;
    uint32_t *rows_above = d->above, *weights = d->weights, pause = (uint32_t)pause_of(d->at, d->ranks, budget);
    for (uint32_t rank = (uint32_t)d->at; rank < pause; rank++) {
        uint32_t place, above = rows_above[rank];
        if (bit(d->joins, rank))
            continue;
        if (begins(d, rank)) {
            place = d->numbers[order[rank]];
        } else {
            place = weights[above];
            weights[above] += weights[rank];
            d->placed[place] = order[rank];
            d->counts[place] = weights[rank];
        }
        rows_above[rank] = place;
        weights[rank] = place + 1;
    }
    d->at = pause;
    if (pause < d->ranks)
        return 1;
    reduction_free(d);
    return DONE;
}
