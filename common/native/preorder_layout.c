/* Dominator tree: layout in preorder, so that the nodes which a node retains directly follow it. */
#include "dominators.h"

#include <stdlib.h>

#define AHEAD 40u /* nodes ahead whose blocks are prefetched */

/* Compute the number of nodes that each node retains, itself included. */
int dominators_count(dominators *d, int64_t *budget) {
    uint32_t *counts = d->semis;
    if (!d->at) {
        for (uint32_t number = 0; number < d->count; number++)
            counts[number] = is_collapsed(d, d->nodes[number]) ? d->weights[d->numbers[d->nodes[number]]] : 1;
    }
    for (; d->at + 1 < d->count; d->at++) {
        if (--*budget < 0)
            return 1;
        uint32_t number = d->count - 1 - (uint32_t)d->at;
        counts[d->parents[number]] += counts[number];
    }
    return DONE;
}

/* Compute the place of each node: after its idom, and after the idom's children with lower
 * numbers. */
int dominators_place(dominators *d, int64_t *budget) {
    if (!made(&d->labels, d->count) || !made(&d->ancestors, d->count))
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
    DROP(d->ancestors);
    return DONE;
}

/* Move nodes with their idoms and `outward` bits; record the places of blocks and roots. */
int dominators_move(dominators *d, int64_t *budget) {
    size_t all = d->semis[0];
    if (!d->placed) {
        d->placed = alloc_large(all * sizeof *d->placed);
        d->moved = calloc(all / 64 + 1, sizeof *d->moved);
        d->places = malloc(((size_t)d->roots + 1) * sizeof *d->places);
        if (!d->placed || !d->moved || !d->places)
            return NO_MEMORY;
    }
    for (; d->at < d->count; d->at++) {
        uint32_t node = d->nodes[d->at], place = d->labels[d->at];
        if (--*budget < 0)
            return 1;
        d->placed[place] = (uint64_t)d->labels[d->parents[d->at]] << 32 | node;
        if (bit(d->outward, (uint32_t)d->at))
            set_bit(d->moved, place);
        if (is_collapsed(d, node))
            d->numbers[node] = place;
        else if (node & ROOT_NODE && node != SHARED_NODE)
            d->places[node & ~ROOT_NODE] = place;
    }
    free(d->outward);
    DROP(d->nodes);
    DROP(d->parents);
    DROP(d->semis);
    DROP(d->labels);
    d->outward = d->moved;
    d->moved = NULL;
    d->count = (uint32_t)all;
    return DONE;
}

/* Reuse an array by rank, or allocate one. */
static uint32_t *spare(dominators *d, uint32_t **used) {
    uint32_t *found = *used ? *used : alloc_large((size_t)d->count * sizeof *found);
    *used = NULL;
    return found;
}

/* Fill the arrays by place. `counts` and `bytes`, which reuses `placed`, first contain only the
 * node itself. */
int dominators_settle(dominators *d, int64_t *budget) {
    const blocks *b = d->g->b;
    if (!d->nodes) {
        d->nodes = spare(d, &d->order);
        d->parents = spare(d, &d->above);
        d->semis = spare(d, &d->weights);
        reduction_free(d);
        if (!d->nodes || !d->parents || !d->semis)
            return NO_MEMORY;
    }
    uint32_t *nodes = d->nodes, *idoms = d->parents, *counts = d->semis, *numbers = d->numbers;
    uint64_t *placed = d->placed;
    uint32_t pause = (uint32_t)pause_of(d->at, d->count, budget);
    for (uint32_t place = (uint32_t)d->at; place < pause; place++) {
        uint32_t node = (uint32_t)placed[place], ahead = place + AHEAD < d->count ? (uint32_t)placed[place + AHEAD] : SHARED_NODE;
        if (!(ahead & ROOT_NODE)) {
            __builtin_prefetch(&numbers[ahead], 1);
            __builtin_prefetch(&b->sizes[ahead]);
        }
        nodes[place] = node;
        idoms[place] = (uint32_t)(placed[place] >> 32);
        counts[place] = 1;
        placed[place] = 0;
        if (!(node & ROOT_NODE)) {
            numbers[node] = place;
            placed[place] = size_of(b, node);
        }
    }
    d->at = pause;
    if (pause < d->count)
        return 1;
    d->bytes = placed;
    d->placed = NULL;
    return DONE;
}

/* Sum up what each node retains: the nodes below it follow it. */
int dominators_sum(dominators *d, int64_t *budget) {
    const uint32_t *idoms = d->parents;
    uint32_t *counts = d->semis, place = d->count - (uint32_t)d->at;
    uint64_t *bytes = d->bytes;
    d->at = pause_of(d->at, d->count - 1, budget);
    while (place-- > d->count - (uint32_t)d->at) {
        counts[idoms[place]] += counts[place];
        bytes[idoms[place]] += bytes[place];
    }
    if (d->at < d->count - 1)
        return 1;
    DROP(d->targets);
    DROP(d->starts);
    DROP(d->frames.items);
    return DONE;
}
