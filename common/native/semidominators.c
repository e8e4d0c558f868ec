/* Dominator tree: from the depth-first numbering to the idom of each node. */
#include "dominators.h"

#include <stdlib.h>

#define DIGIT 11 /* bits sorted in one pass */
#define DIGITS (1u << DIGIT)
#define FEW 32u  /* edges that are sorted by insertion */
#define RELEASED (UINT64_C(1) << 18) /* edges whose memory is released together */
#define SOON 8u           /* number of edges by which nodes are prefetched ahead */
#define LONG_WALK 65536u  /* steps up the tree from one node */
#define STEPS_A_NODE 4u   /* steps on average: beyond either, skip links are built */

INLINE uint32_t target_of(uint64_t edge) { return (uint32_t)(edge >> 32); }

static void sort_few(uint64_t *edges, uint64_t count) {
    for (uint64_t at = 1; at < count; at++) {
        uint64_t edge = edges[at], to = at;
        for (; to && edges[to - 1] > edge; to--)
            edges[to] = edges[to - 1];
        edges[to] = edge;
    }
}

/* Find the next edges whose targets have the same bits above the digit (`width` bits from bit
 * `shift` on), and count these edges by the digit. Return false if no edge needs a move: they
 * are few and are sorted here, or they all have the same digit. */
static bool count_digits(dominators *d) {
    uint32_t *starts = d->tallies, *ends = starts + DIGITS, digits = 1u << d->width;
    const uint64_t *edges = d->others.items;
    uint64_t at = d->at, upper = target_of(edges[at]) >> d->shift >> d->width;
    memset(ends, 0, digits * sizeof *ends);
    for (; at < d->others.count && target_of(edges[at]) >> d->shift >> d->width == upper; at++)
        ends[target_of(edges[at]) >> d->shift & (digits - 1)]++;
    d->run_end = at;
    if (at - d->at <= FEW) {
        sort_few(d->others.items + d->at, at - d->at);
        return false;
    }
    uint32_t before = 0;
    bool differ = false;
    for (uint32_t digit = 0; digit < digits; digit++) {
        differ = differ || (ends[digit] && ends[digit] != at - d->at);
        starts[digit] = before;
        ends[digit] = before += ends[digit];
    }
    d->digit = 0;
    return differ;
}

/* Sort the counted edges by their digit, in place. */
static int move_edges(dominators *d, int64_t *budget) {
    uint32_t *starts = d->tallies, *ends = starts + DIGITS, mask = (1u << d->width) - 1;
    uint64_t *edges = d->others.items + d->at;
    for (; d->digit <= mask; d->digit++)
        while (starts[d->digit] < ends[d->digit]) {
            uint64_t edge = edges[starts[d->digit]];
            uint32_t digit = target_of(edge) >> d->shift & mask;
            if (--*budget < 0)
                return 1;
            for (; digit != d->digit; digit = target_of(edge) >> d->shift & mask, --*budget) {
                uint64_t *to = &edges[starts[digit]++], other = *to;
                *to = edge;
                edge = other;
            }
            edges[starts[d->digit]++] = edge;
        }
    return DONE;
}

/* Sort the edges by target in place (a radix sort, highest digit first). */
int dominators_sort(dominators *d, int64_t *budget) {
    if (!d->others.count)
        return DONE;
    if (!d->tallies) {
        unsigned bits = d->count > 1 ? 32 - (unsigned)__builtin_clz(d->count - 1) : 1;
        if (!(d->tallies = malloc(2 * DIGITS * sizeof *d->tallies)))
            return NO_MEMORY;
        d->width = bits < DIGIT ? bits : DIGIT;
        d->shift = bits - d->width;
    }
    for (;;) {
        for (; d->at < d->others.count; d->at = d->run_end, d->counted = false) {
            if (*budget < 0)
                return 1;
            if (!d->counted && !count_digits(d)) {
                *budget -= (int64_t)(d->run_end - d->at);
            } else {
                d->counted = true;
                if (move_edges(d, budget))
                    return 1;
            }
        }
        if (!d->shift)
            break;
        d->width = d->shift < DIGIT ? d->shift : DIGIT;
        d->shift -= d->width;
        d->at = 0;
    }
    DROP(d->tallies);
    return DONE;
}

/* Remove the last edge, and return its source. Release the memory of removed edges from time to
 * time, to compensate for the pages of `labels` and `ancestors` that become resident. */
INLINE uint32_t next_source(dominators *d) {
    uint32_t source = (uint32_t)d->others.items[--d->others.count];
    if (d->others.count % RELEASED == 0 && d->others.count) {
        uint64_t *rest = realloc(d->others.items, d->others.count * sizeof *rest);
        d->others.items = rest ? rest : d->others.items;
    }
    return source;
}

/* Compute semidominators, last number first. Edges from higher numbers come from nodes linked to
 * ancestors above `number`: the lowest semidominator on the way counts (path compression). */
int dominators_semis(dominators *d, int64_t *budget) {
    uint32_t *semis = d->semis;
    if (!d->others.count && !d->at && !d->upward)
        return DONE;
    if (!made(&d->labels, d->count) || !made(&d->ancestors, d->count))
        return NO_MEMORY;
    uint32_t *labels = d->labels, *ancestors = d->ancestors;
    for (; d->at + 1 < d->count; d->at++) {
        uint32_t number = d->count - 1 - (uint32_t)d->at;
        while (d->source || (d->others.count && d->others.items[d->others.count - 1] >> 32 == number)) {
            if (--*budget < 0)
                return 1;
            uint32_t source = d->source ? d->source : next_source(d);
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
        ancestors[number] = parent & ~UP;
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
