/* Dominators: the tree put depth first by itself, so that what a node retains stands right behind it. */
#include "dominators.h"

#include <stdlib.h>

#define AHEAD 24u /* nodes whose blocks are asked for ahead */

/* How many nodes each retains, itself included. */
int dominators_count(dominators *d, int64_t *budget) {
    uint32_t *counts = d->semis;
    if (!d->at) {
        for (uint32_t number = 0; number < d->count; number++)
            counts[number] = 1;
    }
    for (; d->at + 1 < d->count; d->at++) {
        if (--*budget < 0)
            return 1;
        uint32_t number = d->count - 1 - (uint32_t)d->at;
        counts[d->parents[number]] += counts[number];
    }
    return DONE;
}

/* Where each goes: behind its holder, and what that holds of lower numbers. */
int dominators_place(dominators *d, int64_t *budget) {
    size_t room = (size_t)d->count + 1;
    if (!d->labels && !(d->labels = roomy(room * sizeof *d->labels)))
        return NO_MEMORY;
    if (!d->ancestors && !(d->ancestors = roomy(room * sizeof *d->ancestors)))
        return NO_MEMORY;
    uint32_t *places = d->labels, *next = d->ancestors;
    for (; d->at < d->count; d->at++) {
        if (--*budget < 0)
            return 1;
        uint32_t *behind = &next[d->parents[d->at]];
        places[d->at] = d->at ? *behind : 0;
        *behind = d->at ? *behind + d->semis[d->at] : 1;
        next[d->at] = places[d->at] + 1;
    }
    return DONE;
}

/* Nodes go there, with what is marked of them, and blocks and roots learn their places. */
int dominators_move(dominators *d, int64_t *budget) {
    if (!d->places && !(d->places = malloc(((size_t)d->roots + 1) * sizeof *d->places)))
        return NO_MEMORY;
    if (!d->moved && !(d->moved = calloc((size_t)d->count / 64 + 1, sizeof *d->moved)))
        return NO_MEMORY;
    for (; d->at < d->count; d->at++) {
        uint32_t node = d->nodes[d->at], place = d->labels[d->at];
        if (--*budget < 0)
            return 1;
        if (d->at + AHEAD < d->count && !(d->nodes[d->at + AHEAD] & ROOT_NODE))
            __builtin_prefetch(&d->numbers[d->nodes[d->at + AHEAD]], 1);
        d->ancestors[place] = node;
        if (bit(d->outward, (uint32_t)d->at))
            set_bit(d->moved, place);
        if (!(node & ROOT_NODE))
            d->numbers[node] = place;
        else if (node != SHARED_NODE)
            d->places[node & ~ROOT_NODE] = place;
    }
    uint32_t *moved = d->ancestors;
    d->ancestors = d->nodes;
    d->nodes = moved;
    free(d->outward);
    d->outward = d->moved;
    d->moved = NULL;
    return DONE;
}

/* So do their holders, */
int dominators_tree(dominators *d, int64_t *budget) {
    const uint32_t *places = d->labels;
    for (; d->at < d->count; d->at++) {
        if (--*budget < 0)
            return 1;
        d->ancestors[places[d->at]] = places[d->parents[d->at]];
    }
    uint32_t *moved = d->ancestors;
    d->ancestors = d->parents;
    d->parents = moved;
    return DONE;
}

/* and their counts. */
int dominators_counts(dominators *d, int64_t *budget) {
    for (; d->at < d->count; d->at++) {
        if (--*budget < 0)
            return 1;
        d->ancestors[d->labels[d->at]] = d->semis[d->at];
    }
    free(d->semis);
    d->semis = d->ancestors;
    free(d->labels);
    d->labels = d->ancestors = NULL;
    return DONE;
}

/* The bytes of each, */
int dominators_sizes(dominators *d, int64_t *budget) {
    const blocks *b = d->g->b;
    if (!d->bytes && !(d->bytes = roomy((size_t)d->count * sizeof *d->bytes)))
        return NO_MEMORY;
    for (; d->at < d->count; d->at++) {
        uint32_t node = d->nodes[d->at];
        if (--*budget < 0)
            return 1;
        if (d->at + AHEAD < d->count && !(d->nodes[d->at + AHEAD] & ROOT_NODE))
            __builtin_prefetch(&b->sizes[d->nodes[d->at + AHEAD]]);
        d->bytes[d->at] = node & ROOT_NODE ? 0 : size_of(b, node);
    }
    return DONE;
}

/* and that each retains. */
int dominators_sum(dominators *d, int64_t *budget) {
    for (; d->at + 1 < d->count; d->at++) {
        if (--*budget < 0)
            return 1;
        uint64_t place = d->count - 1 - d->at;
        d->bytes[d->parents[place]] += d->bytes[place];
    }
    free(d->targets);
    free(d->starts);
    free(d->frames);
    d->targets = d->starts = NULL;
    d->frames = NULL;
    return DONE;
}
