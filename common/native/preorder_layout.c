/* Dominator tree: layout in preorder, so that the nodes which a node retains directly follow it. */
#include "dominators.h"

#include <stdlib.h>

#define AHEAD 40u /* nodes ahead whose blocks are prefetched */
#define LARGE_SHARE 32u /* counts take 1 byte unless more than 1 in LARGE_SHARE needs more */

/* Add up the number of nodes that each node retains, itself included. */
int dominators_count(dominators *d, int64_t *budget) {
    uint32_t *counts = d->semis;
    for (; d->at + 1 < d->count; d->at++) {
        if (--*budget < 0)
            return 1;
        uint32_t number = d->count - 1 - (uint32_t)d->at;
        counts[d->parents[number]] += counts[number];
    }
    return DONE;
}

/* Compute the place of each numbered node: after its idom, and after the idom's children with lower
 * numbers. `ancestors` then has the next free place below each node. */
int dominators_place_all(dominators *d, int64_t *budget) {
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
    return DONE;
}

static int move_nodes(dominators *d, int64_t *budget) {
    for (; d->at < d->count; d->at++) {
        uint32_t node = d->nodes[d->at], place = d->labels[d->at];
        if (--*budget < 0)
            return 1;
        if (d->at + AHEAD < d->count) {
            uint32_t ahead = d->nodes[d->at + AHEAD];
            __builtin_prefetch(&d->placed[d->labels[d->at + AHEAD]], 1);
            if (!(ahead & ROOT_NODE))
                __builtin_prefetch(&d->numbers[ahead], 1);
        }
        d->placed[place] = node;
        if (bit(d->outward, (uint32_t)d->at))
            set_bit(d->moved, place);
        if (!(node & ROOT_NODE))
            d->numbers[node] = place;
    }
    return DONE;
}

/* Move the nodes and their `outward` bits to their places. Record the places of roots and of
 * numbered blocks. dominators_grow and dominators_attach put the other blocks below these. */
int dominators_move(dominators *d, int64_t *budget) {
    if (!d->placed && !(d->placed = malloc(d->all * sizeof *d->placed)))
        return NO_MEMORY;
    if (!d->moved && !(d->moved = calloc((size_t)d->all / 64 + 1, sizeof *d->moved)))
        return NO_MEMORY;
    int more = d->leaf_trees ? dominators_place_numbers(d, budget) : move_nodes(d, budget);
    if (more)
        return more;
    d->placed[0] = SHARED_NODE;
    for (uint32_t root = 0; root < d->roots; root++) {
        d->places[root] = d->labels[d->places[root]];
        d->placed[d->places[root]] = ROOT_NODE | root;
    }
    free(d->outward);
    DROP(d->nodes);
    DROP(d->labels);
    d->outward = d->moved;
    d->moved = NULL;
    d->count = d->all;
    if (d->leaf_trees) /* dominators_attach makes more pages resident */
        trim_memory(d->g->count);
    return DONE;
}

/* Allocate the array of counts, indexed by place. If leaf trees are left out and few counts need
 * more, a count takes 1 byte. */
static int begin_counts(dominators *d) {
    size_t all = d->all = d->semis[0];
    uint32_t large = 0;
    for (uint32_t number = 0; number < d->count; number++)
        large += d->semis[number] >= MANY_NODES;
    if (d->leaf_trees && large <= all / LARGE_SHARE)
        d->few = malloc(all * sizeof *d->few);
    else
        d->counts = malloc(all * sizeof *d->counts);
    return d->few || d->counts ? DONE : NO_MEMORY;
}

int set_count(dominators *d, uint32_t place, uint32_t count) {
    if (d->counts) {
        d->counts[place] = count;
        return DONE;
    }
    d->few[place] = count < MANY_NODES ? (uint8_t)count : MANY_NODES;
    return count < MANY_NODES ? DONE : words_push(&d->many, (uint64_t)place << 32 | count);
}

static int compare_words(const void *one, const void *other) {
    uint64_t mine = *(const uint64_t *)one, others = *(const uint64_t *)other;
    return (mine > others) - (mine < others);
}

void sort_many(dominators *d) {
    d->sorted = d->many.count;
    if (d->sorted)
        qsort(d->many.items, d->many.count, sizeof *d->many.items, compare_words);
}

uint32_t many_at(const dominators *d, uint32_t place) {
    uint64_t at = 0;
    BISECT(at, d->sorted, middle, d->many.items[middle] >> 32 < place)
    return (uint32_t)d->many.items[at];
}

/* Move the number of nodes that each node retains to the place of the node. */
int dominators_move_counts(dominators *d, int64_t *budget) {
    if (!d->few && !d->counts && begin_counts(d))
        return NO_MEMORY;
    for (; d->at < d->count; d->at++) {
        if (--*budget < 0)
            return 1;
        if (d->at + AHEAD < d->count)
            prefetch_count(d, d->labels[d->at + AHEAD]);
        if (set_count(d, d->labels[d->at], d->semis[d->at]))
            return NO_MEMORY;
    }
    sort_many(d);
    DROP(d->semis);
    return DONE;
}

uint64_t sizes_at(const dominators *d, uint32_t first, uint32_t end) {
    uint64_t sum = 0;
    for (uint32_t at = first; at < end; at++)
        sum += d->nodes[at] & ROOT_NODE ? 0 : size_of(d->g->b, d->nodes[at]);
    return sum;
}

/* Allocate the sums of sizes. Most sizes are multiples of the granule. */
static int begin_sums(dominators *d) {
    size_t count = (size_t)d->count + 1;
    if (d->leaf_trees)
        return (d->some_sums = calloc(d->count / SUMMED + 2, sizeof *d->some_sums)) ? DONE : NO_MEMORY;
    d->unit = d->all_sizes ? (unsigned)__builtin_ctzll(d->all_sizes) : 0;
    if (d->all_bytes >> d->unit <= UINT32_MAX)
        d->narrow = malloc(count * sizeof *d->narrow);
    else
        d->wide_sums = malloc(count * sizeof *d->wide_sums);
    return d->narrow || d->wide_sums ? DONE : NO_MEMORY;
}

/* Return the sum at the place at which the previous call paused. */
static uint64_t sum_at(const dominators *d, uint32_t place) {
    if (d->some_sums)
        return d->some_sums[d->count / SUMMED + 1];
    return !place ? 0 : d->narrow ? d->narrow[place] : d->wide_sums[place];
}

INLINE void set_sum(dominators *d, uint32_t place, uint64_t sum) {
    if (d->narrow)
        d->narrow[place] = (uint32_t)sum;
    else if (d->wide_sums)
        d->wide_sums[place] = sum;
    else if (place % SUMMED == 0)
        d->some_sums[place / SUMMED] = sum;
}

/* As dominators_sum. `kept`: whether the places are already recorded. Callers pass a constant, so
 * that the compiler makes a version for each value. */
INLINE int sum_sizes(dominators *d, int64_t *budget, bool kept) {
    const blocks *b = d->g->b;
    const uint32_t *column = b->sizes;
    uint32_t *numbers = d->numbers;
    uint32_t pause = (uint32_t)pause_of(d->at, d->count, budget);
    uint64_t sum = sum_at(d, (uint32_t)d->at);
    unsigned unit = d->unit;
    for (uint32_t place = (uint32_t)d->at; place < pause; place++) {
        uint32_t node = d->placed[place], ahead = place + AHEAD < d->count ? d->placed[place + AHEAD] : SHARED_NODE;
        if (!(ahead & ROOT_NODE)) {
            if (!kept)
                __builtin_prefetch(&numbers[ahead], 1);
            if (column)
                __builtin_prefetch(&column[ahead]);
            else
                prefetch_size(b, ahead);
        }
        set_sum(d, place, sum);
        if (node & ROOT_NODE)
            continue;
        if (!kept)
            numbers[node] = place;
        sum += size_in(b, column, node) >> unit;
    }
    set_sum(d, pause, sum);
    if (d->some_sums)
        d->some_sums[d->count / SUMMED + 1] = sum;
    d->at = pause;
    if (pause < d->count)
        return 1;
    d->nodes = d->placed;
    d->placed = NULL;
    DROP(d->targets);
    DROP(d->starts);
    return DONE;
}

static int sum_and_record(dominators *d, int64_t *budget) { return sum_sizes(d, budget, false); }
static int sum_only(dominators *d, int64_t *budget) { return sum_sizes(d, budget, true); }

/* Record the place of each block, and for each place the sum of the sizes at lower places. If leaf
 * trees are left out, the places are already recorded. */
int dominators_sum(dominators *d, int64_t *budget) {
    if (!d->narrow && !d->wide_sums && !d->some_sums && begin_sums(d))
        return NO_MEMORY;
    return (d->firsts ? sum_only : sum_and_record)(d, budget);
}

/* Compute `idoms` if they are not known: the idom of a node is the last node before it whose range
 * of places contains the node. */
int dominators_find_idoms(dominators *d) {
    if (d->idoms)
        return DONE;
    if (!(d->idoms = malloc((size_t)d->count * sizeof *d->idoms)))
        return NO_MEMORY;
    uint32_t above = d->idoms[0] = 0;
    for (uint32_t place = 1; place < d->count; place++) {
        while (above + count_at(d, above) <= place)
            above = d->idoms[above];
        d->idoms[place] = above;
        above = place;
    }
    return DONE;
}
