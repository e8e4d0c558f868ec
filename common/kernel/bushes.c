/* Bushes: blocks to which one other block alone refers, with all that hangs from them in the same way. Each holds what it refers to, so that
 * they need no visit depth first, which waits for one cache miss after the other; and most of most heaps is bushes. All blocks are met
 * breadth first, where misses overlap. The others, *knots*, are those that a second block refers to, those that refer to such a one, and
 * all that lead to a knot; of a bush that hangs from knots or roots only the first block is given a number, with the weight of all.
 */
#include "dominators.h"

#include <stdlib.h>

#define AHEAD 64u /* ranks of which it is kept where their references begin */
#define FAR 48u   /* ranks ahead whose bytes, */
#define MID 32u   /* references, */
#define SOON 16u  /* and whose targets' ranks are asked for, */
#define LOOKED_AT 8u /* of so many */
#define MOST_KNOTS 4u /* more than one in so many numbers: bushes are too few to be worth it */

void bushes_free(dominators *d) {
    free(d->order);
    free(d->above);
    free(d->weights);
    free(d->knots);
    free(d->knotted);
    free(d->earlier);
    d->order = d->above = d->weights = NULL;
    d->knots = d->knotted = d->earlier = NULL;
}

INLINE void clear_bit(uint64_t *bits, uint32_t index) { bits[index >> 6] &= ~(UINT64_C(1) << (index & 63)); }

/* All is to be visited depth first. */
static int without(dominators *d) {
    for (uint32_t rank = 0; rank < d->ranks; rank++)
        clear_bit(d->seen, d->order[rank]);
    bushes_free(d);
    return DONE;
}

INLINE void put(dominators *d, uint32_t index, uint32_t above) {
    set_bit(d->seen, index);
    d->order[d->ranks] = index;
    d->above[d->ranks++] = above;
}

INLINE void tie(uint64_t *bits, uint32_t at, uint32_t *count) {
    *count += !bit(bits, at);
    set_bit(bits, at);
}

/* Does one of the references before this one of its block lead to the same? Only the last are looked at. */
static bool repeated(const uint32_t *edge, const uint32_t *first) {
    for (const uint32_t *before = edge; before > first && edge - before < (ptrdiff_t)LOOKED_AT;)
        if (*--before >> INDEX_SHIFT == *edge >> INDEX_SHIFT)
            return true;
    return false;
}

/* A reference of rank `from`. One to what that was reached from changes nothing, as this holds it, unless it is a knot. */
INLINE void reach(dominators *d, const uint32_t *edge, const uint32_t *first, uint32_t from) {
    uint32_t index = *edge >> INDEX_SHIFT;
    if (d->parts && strange(d, index, d->order[from]))
        return;
    if (!bit(d->seen, index)) {
        put(d, index, from);
    } else if (!bit(d->earlier, index) && !(d->above[from] != NONE && index == d->order[d->above[from]]) && !repeated(edge, first)) {
        tie(d->knots, from, &d->knot_count);
        tie(d->knotted, index, &d->knot_count);
    }
}

/* Begin the next tier with what its roots refer to. */
static void seed(dominators *d) {
    memcpy(d->earlier, d->seen, ((size_t)d->g->count / 64 + 1) * sizeof *d->earlier);
    for (; d->group <= d->lasts[d->tier]; d->group++)
        for (; d->target < d->starts[d->group + 1]; d->target++)
            if (!bit(d->seen, d->targets[d->target]))
                put(d, d->targets[d->target], NONE);
    d->tier++;
}

static int surveyed(dominators *d) {
    d->tier = d->group = d->target = 0; /* visiting begins anew */
    return d->knot_count > d->count / MOST_KNOTS ? without(d) : DONE;
}

static bool begun(dominators *d) {
    size_t room = (size_t)d->count + d->roots + 2, words = (size_t)d->g->count / 64 + 1;
    d->order = roomy(room * sizeof *d->order);
    d->above = roomy(room * sizeof *d->above);
    d->knots = calloc(room / 64 + 1, sizeof *d->knots);
    d->knotted = calloc(words, sizeof *d->knotted);
    d->earlier = malloc(words * sizeof *d->earlier);
    return d->order && d->above && d->knots && d->knotted && d->earlier;
}

/* Meet all blocks, breadth first. */
int dominators_survey(dominators *d, int64_t *budget) {
    const graph *g = d->g;
    uint32_t firsts[AHEAD], far = (uint32_t)d->at, mid = far, soon = far, count; /* 0: no references */
    if (!d->order && !begun(d))
        return NO_MEMORY;
    while (*budget >= 0) {
        uint32_t from = (uint32_t)d->at;
        if (from == d->ranks) {
            if (d->tier == d->tiers)
                return surveyed(d);
            seed(d);
            continue;
        }
        for (; far < d->ranks && far - from < FAR; far++)
            __builtin_prefetch(&g->groups[d->order[far] / GROUP]);
        for (; mid < d->ranks && mid - from < MID; mid++) {
            uint32_t first = edges_of(g, d->order[mid], &count);
            first = count ? first : 0;
            firsts[mid % AHEAD] = first;
            __builtin_prefetch(&g->edges[first]);
        }
        for (; soon < d->ranks && soon - from < SOON; soon++) {
            const uint32_t *edge = &g->edges[firsts[soon % AHEAD]];
            for (unsigned each = 0; firsts[soon % AHEAD] && each < LOOKED_AT; each++) {
                __builtin_prefetch(&d->seen[*edge >> INDEX_SHIFT >> 6], 1);
                if (*edge++ & LAST)
                    break;
            }
        }
        uint32_t first = firsts[from % AHEAD], edge = d->edge ? d->edge : first;
        for (bool last = !first; !last; edge++) {
            if (--*budget < 0) {
                d->edge = edge;
                return 1;
            }
            last = g->edges[edge] & LAST;
            reach(d, &g->edges[edge], &g->edges[first], from);
        }
        d->edge = 0;
        d->at++;
        --*budget;
        if (d->knot_count > d->count / MOST_KNOTS)
            return surveyed(d);
    }
    return 1;
}

/* What leads to a knot is one; of the others, how many hang from each, itself included. */
int dominators_knots(dominators *d, int64_t *budget) {
    if (!d->order)
        return DONE;
    if (!d->weights) {
        if (!(d->weights = roomy(((size_t)d->ranks + d->roots + 2) * sizeof *d->weights)))
            return NO_MEMORY;
        for (uint32_t rank = 0; rank < d->ranks; rank++)
            d->weights[rank] = 1;
    }
    for (; d->at < d->ranks; d->at++) {
        uint32_t rank = d->ranks - 1 - (uint32_t)d->at, above = d->above[rank], index = d->order[rank];
        if (--*budget < 0)
            return 1;
        if (bit(d->knots, rank) || bit(d->knotted, index)) {
            set_bit(d->knots, rank);
            set_bit(d->knotted, index);
            if (above != NONE)
                set_bit(d->knots, above);
        } else if (above != NONE) {
            d->weights[above] += d->weights[rank];
        }
    }
    return DONE;
}

/* Is this, which is no knot, the first block of a bush? */
INLINE bool begins(const dominators *d, uint32_t rank) { return d->above[rank] == NONE || bit(d->knots, d->above[rank]); }

/* Only knots and the first blocks of bushes are to be met from here on; `count` then says how many there are of both. */
int dominators_bushes(dominators *d, int64_t *budget) {
    if (!d->order)
        return DONE;
    if (!d->at)
        d->knot_count = 0;
    for (; d->at < d->ranks; d->at++) {
        uint32_t rank = (uint32_t)d->at, index = d->order[rank];
        if (--*budget < 0)
            return 1;
        if (!bit(d->knots, rank)) {
            if (!begins(d, rank))
                continue;
            d->numbers[index] = rank;
        }
        clear_bit(d->seen, index);
        d->knot_count++;
    }
    if (d->knot_count > d->count / MOST_KNOTS)
        return without(d);
    d->count = d->knot_count;
    return DONE;
}

/* The blocks of bushes go behind the first of each. Of lower ranks `above` is the place by now, and `weights` where the next goes that it holds. */
int dominators_grow(dominators *d, int64_t *budget) {
    for (; d->order && d->at < d->ranks; d->at++) {
        uint32_t rank = (uint32_t)d->at, index = d->order[rank], place;
        if (--*budget < 0)
            return 1;
        if (bit(d->knots, rank))
            continue;
        if (begins(d, rank)) {
            place = d->numbers[index];
        } else {
            uint32_t *next = &d->weights[d->above[rank]];
            place = *next;
            *next += d->weights[rank];
            d->placed[place] = (uint64_t)d->weights[rank] << 32 | index;
        }
        d->above[rank] = place;
        d->weights[rank] = place + 1;
    }
    return DONE;
}
