/* Dominator tree: from the depth-first numbering to the idom of each node. */
#include "dominators.h"

#include <stdlib.h>

#define DIGIT 11 /* bits sorted in one pass */
#define DIGITS (1u << DIGIT)
#define SOON 8u           /* number of edges by which nodes are prefetched ahead */
#define LONG_WALK 65536u  /* steps up the tree from one node */
#define STEPS_A_NODE 4u   /* steps on average: beyond either, skip links are built */

/* Radix sort of the edges by target number, lowest digit first. */
int dominators_sort(dominators *d, int64_t *budget) {
    if (!d->others.count)
        return DONE;
    if (!d->spare) {
        d->spare = malloc((size_t)d->others.count * sizeof *d->spare);
        d->tallies = calloc(DIGITS, sizeof *d->tallies);
        d->shift = 32;
        if (!d->spare || !d->tallies)
            return NO_MEMORY;
    }
    for (; (uint64_t)d->count >> (d->shift - 32); d->shift += DIGIT, d->counted = false, d->at = 0) {
        for (; !d->counted && d->at < d->others.count; d->at++) {
            if (--*budget < 0)
                return 1;
            d->tallies[d->others.items[d->at] >> d->shift & (DIGITS - 1)]++;
        }
        if (!d->counted) {
            for (uint32_t digit = 0, before = 0; digit < DIGITS; digit++) {
                uint32_t tally = d->tallies[digit];
                d->tallies[digit] = before;
                before += tally;
            }
            d->counted = true;
            d->at = 0;
        }
        for (; d->at < d->others.count; d->at++) {
            if (--*budget < 0)
                return 1;
            uint64_t other = d->others.items[d->at];
            d->spare[d->tallies[other >> d->shift & (DIGITS - 1)]++] = other;
        }
        uint64_t *sorted = d->spare;
        d->spare = d->others.items;
        d->others.items = sorted;
        memset(d->tallies, 0, DIGITS * sizeof *d->tallies);
    }
    DROP(d->spare);
    return DONE;
}

/* Compute semidominators, last number first. Edges from higher numbers come from nodes linked to
 * ancestors above `number`: the lowest semidominator on the way counts (path compression). */
int dominators_semis(dominators *d, int64_t *budget) {
    uint32_t *semis = d->semis;
    if (!d->others.count && !d->at && !d->upward)
        return DONE;
    if (!d->ancestors) {
        if (!made(&d->labels, d->count) || !made(&d->ancestors, d->count))
            return NO_MEMORY;
        for (uint32_t number = 0; number < d->count; number++)
            d->ancestors[number] = d->parents[number] & ~UP;
    }
    uint32_t *labels = d->labels, *ancestors = d->ancestors;
    for (; d->at + 1 < d->count; d->at++) {
        uint32_t number = d->count - 1 - (uint32_t)d->at;
        while (d->source || (d->others.count && d->others.items[d->others.count - 1] >> 32 == number)) {
            if (--*budget < 0)
                return 1;
            uint32_t source = d->source ? d->source : (uint32_t)d->others.items[--d->others.count];
            if (d->others.count > SOON && !d->source) {
                __builtin_prefetch(&labels[(uint32_t)d->others.items[d->others.count - SOON]]);
                __builtin_prefetch(&ancestors[(uint32_t)d->others.items[d->others.count - SOON]]);
            }
            d->source = 0;
            if (!semis[number])
                continue;
            uint32_t above = ancestors[source], least = labels[source];
            if (above > number) {
                least = labels[above] < least ? labels[above] : least;
                labels[source] = least;
                if (ancestors[above] > number)
                    above = ancestors[source] = ancestors[above];
                d->source = above;
            }
            semis[number] = least < semis[number] ? least : semis[number];
        }
        if (--*budget < 0)
            return 1;
        labels[number] = semis[number];
        uint32_t parent = d->parents[number];
        if (parent & UP && semis[number] < semis[parent & ~UP])
            semis[parent & ~UP] = semis[number];
    }
    DROP(d->others.items);
    return DONE;
}

/* Compute a node's idom: the nearest ancestor of its parent whose number is at most its
 * semidominator. If walks get long, skip links (E. Myers 1983) make them logarithmic. */
int dominators_idoms(dominators *d, int64_t *budget) {
    uint32_t *idoms = d->parents, *jumps = d->ancestors, *depths = d->labels;
    for (; d->at + 1 < d->count; d->at++) {
        uint32_t number = (uint32_t)d->at + 1, idom = idoms[number] & ~UP, semi = d->semis[number], steps = 0;
        if (--*budget < 0)
            return 1;
        if (d->jumping) {
            for (; idom > semi; --*budget)
                idom = jumps[idom] > semi ? jumps[idom] : idoms[idom];
            uint32_t over = jumps[idom], over_both = jumps[over];
            depths[number] = depths[idom] + 1;
            jumps[number] = depths[idom] - depths[over] == depths[over] - depths[over_both] ? over_both : idom;
        }
        for (; idom > semi && steps < LONG_WALK; steps++)
            idom = idoms[idom];
        d->steps += steps;
        if (idom > semi || d->steps > (uint64_t)STEPS_A_NODE * d->count + LONG_WALK) {
            if (!made(&d->labels, d->count) || !made(&d->ancestors, d->count))
                return NO_MEMORY;
            d->jumping = true;
            d->ancestors[0] = d->labels[0] = 0;
            d->at = d->steps = 0; /* start again with skip links; idoms found so far remain valid */
            return dominators_idoms(d, budget);
        }
        uint32_t parent = idoms[number] & ~UP;
        if (idom != parent) {
            set_bit(d->outward, parent);
            if (idoms[number] & UP)
                set_bit(d->outward, number);
        }
        idoms[number] = idom;
    }
    return DONE;
}
