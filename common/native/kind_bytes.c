/* Blocks in use by kind: their bytes inside given ranges, the figures of some of them, and the
 * sizes of the blocks of a kind. */
#include <stdlib.h>

#include "graph.h"
#include "size_counts.h"

enum { FEW = 16 }; /* a smaller part of all blocks than 1/FEW is looked up one by one */

/* Return the first range that ends after `address`. Ranges are disjoint and ascend, so a block's
 * overlap begins with the first range that ends after the block's start. */
static uint64_t first_behind(const range *ranges, uint64_t count, uint64_t address) {
    uint64_t low = 0, high = count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (ranges[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static uint64_t overlap(const range *r, uint64_t start, uint64_t end) {
    uint64_t low = start > r->start ? start : r->start, high = end < r->end ? end : r->end;
    return low < high ? high - low : 0;
}

static bool counts(const graph *g, uint32_t index) { return g->b->states[index] == IN_USE && g->kinds[index] <= INDIRECT; }

/* Add the bytes of all blocks in use that are in these ranges to sums[INDIRECT + 1]. */
API void fl_kind_bytes(const graph *g, const range *ranges, uint64_t count, uint64_t *sums) {
    for (uint64_t at = 0; at < count; at++) {
        uint64_t start = 0;
        uint32_t index = block_reaching(g->b, ranges[at].start, &start);
        if (index >= g->count)
            continue;
        do {
            if (start >= ranges[at].end)
                break;
            if (counts(g, index))
                sums[g->kinds[index]] += overlap(&ranges[at], start, start + size_of(g->b, index));
        } while (next_block(g->b, &index, &start));
    }
}

/* Add a block in use to the figures of its kind, except its bytes inside ranges. */
static void add_block(const graph *g, uint32_t index, kind_figures *figures) {
    figures[g->kinds[index]].blocks++;
    figures[g->kinds[index]].bytes += size_of(g->b, index);
}

/* For the blocks whose bits are set, add the bytes inside these ranges. The blocks are visited in
 * the order of their addresses. This takes a tenth of the time of looking up the address of each
 * block. */
static void add_inside(const graph *g, const uint64_t *marked, const range *ranges, uint64_t count, kind_figures *figures) {
    uint32_t index = 0;
    uint64_t start = block_address(g->b, index), place = 0;
    do {
        if (!bit(marked, index) || !counts(g, index))
            continue;
        uint64_t end = start + size_of(g->b, index);
        while (place < count && ranges[place].end <= start)
            place++;
        for (uint64_t at = place; at < count && ranges[at].start < end; at++)
            figures[g->kinds[index]].inside += overlap(&ranges[at], start, end);
    } while (next_block(g->b, &index, &start));
}

/* Return a bitmap with one bit for each block. The bits of the blocks with these indices are set.
 * Return NULL if there are few indices or not enough memory. */
static uint64_t *mark(const graph *g, const uint32_t *indices, uint64_t number) {
    uint64_t *marked = number && number >= g->count / FEW ? calloc(g->count / 64 + 1, sizeof *marked) : NULL;
    for (uint64_t at = 0; marked && at < number; at++)
        if (indices[at] < g->count)
            set_bit(marked, indices[at]);
    return marked;
}

static void add_one_by_one(const graph *g, const uint32_t *indices, uint64_t number, const range *ranges, uint64_t count,
                           kind_figures *figures) {
    for (uint64_t at = 0; at < number; at++) {
        uint32_t index = indices[at];
        if (index >= g->count || !counts(g, index))
            continue;
        add_block(g, index, figures);
        if (!count)
            continue;
        uint64_t start = block_address(g->b, index), end = start + size_of(g->b, index);
        for (uint64_t place = first_behind(ranges, count, start); place < count && ranges[place].start < end; place++)
            figures[g->kinds[index]].inside += overlap(&ranges[place], start, end);
    }
}

/* Add the blocks in use with these indices, in any order, to figures[INDIRECT + 1]. No index
 * occurs twice. */
API void fl_kind_figures(const graph *g, const uint32_t *indices, uint64_t number, const range *ranges, uint64_t count,
                         kind_figures *figures) {
    uint64_t *marked = mark(g, indices, number);
    if (!marked) {
        add_one_by_one(g, indices, number, ranges, count, figures);
        return;
    }
    for (uint32_t index = 0; index < g->count; index++)
        if (bit(marked, index) && counts(g, index))
            add_block(g, index, figures);
    if (count && g->count)
        add_inside(g, marked, ranges, count, figures);
    free(marked);
}

/* Return pairs (size * 4, number) of the blocks in use of this kind, unordered. */
API int fl_kind_sizes(const graph *g, uint8_t kind, words *found) {
    size_counts c;
    int failed = size_counts_begin(&c);
    for (uint32_t index = 0; !failed && index < g->count; index++)
        if (g->kinds[index] == kind && counts(g, index))
            failed = count_size(&c, size_of(g->b, index), IN_USE);
    return size_counts_end(&c, failed, found);
}
