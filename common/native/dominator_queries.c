/* Queries of the dominator tree: a node's heaviest children, sizes, and lists. */
#include "dominators.h"
#include "size_counts.h"

#include <stdlib.h>

#define AHEAD 24u /* blocks ahead whose sizes are prefetched */
#define MANY_SHARE 8u /* at least 1 / MANY_SHARE of all blocks */

typedef struct {
    uint64_t size, children, blocks, bytes, example;
} spread;

typedef struct {
    spread *items; /* hash table, open addressing; no children: unused entry */
    uint64_t count, mask;
} spreads;

typedef struct chain {
    /* ../engine/dominators.py: Chain; `end` is a place */
    uint64_t length, least, most, bytes, end, more;
} chain;

INLINE bool is_block(const dominators *d, uint32_t place) { return !(d->nodes[place] & ROOT_NODE); }

/* Order by retained bytes, the most first, then by address. */
INLINE bool before(const dominators *d, uint32_t one, uint32_t other) {
    uint64_t mine = bytes_at(d, one), others = bytes_at(d, other);
    return mine != others ? mine > others : d->nodes[one] < d->nodes[other];
}

/* Restore the heap after adding an item or replacing the root. The root is the last in order. */
static void rise(const dominators *d, uint64_t *heap, uint64_t at) {
    for (uint64_t above; at && before(d, (uint32_t)heap[above = (at - 1) / 2], (uint32_t)heap[at]); at = above) {
        uint64_t item = heap[at];
        heap[at] = heap[above];
        heap[above] = item;
    }
}

static void sink(const dominators *d, uint64_t *heap, uint64_t count) {
    for (uint64_t at = 0, below; (below = 2 * at + 1) < count; at = below) {
        if (below + 1 < count && before(d, (uint32_t)heap[below], (uint32_t)heap[below + 1]))
            below++;
        if (!before(d, (uint32_t)heap[at], (uint32_t)heap[below]))
            return;
        uint64_t item = heap[at];
        heap[at] = heap[below];
        heap[below] = item;
    }
}

/* Add a place to `found` (a heap) if it is among the first `limit`. */
int keep_first(const dominators *d, uint32_t place, uint64_t limit, words *found) {
    if (found->count < limit) {
        if (words_push(found, place))
            return NO_MEMORY;
        rise(d, found->items, found->count - 1);
    } else if (limit && before(d, place, (uint32_t)found->items[0])) {
        found->items[0] = place;
        sink(d, found->items, found->count);
    }
    return DONE;
}

/* Return the places of the first `limit` children of the node at `place`, unordered. */
API int fl_dominators_children(const dominators *d, uint32_t place, uint64_t limit, words *found) {
    uint64_t least = 0; /* children that retain fewer bytes are not among the first `limit` */
    for (uint32_t at = place + 1, end = place + count_at(d, place); at < end; at += count_at(d, at)) {
        if (!is_block(d, at) || (least && bytes_at(d, at) < least))
            continue;
        if (keep_first(d, at, limit, found))
            return NO_MEMORY;
        least = found->count && found->count == limit ? bytes_at(d, (uint32_t)found->items[0]) : 0;
    }
    return DONE;
}

static spread *of_size(spreads *s, uint64_t size) {
    uint64_t at = (size * UINT64_C(0x9E3779B97F4A7C15) >> 20) & s->mask;
    while (s->items[at].children && s->items[at].size != size)
        at = (at + 1) & s->mask;
    return &s->items[at];
}

static int add(spreads *s, spread more) {
    if (!s->items || s->count > s->mask / 2) {
        spreads wider = {NULL, s->count, s->items ? s->mask * 4 + 3 : 255};
        if (!(wider.items = calloc(wider.mask + 1, sizeof *wider.items)))
            return NO_MEMORY;
        for (uint64_t at = 0; s->items && at <= s->mask; at++)
            if (s->items[at].children)
                *of_size(&wider, s->items[at].size) = s->items[at];
        free(s->items);
        *s = wider;
    }
    spread *to = of_size(s, more.size);
    if (!to->children) {
        *to = more;
        s->count++;
        return DONE;
    }
    to->children += more.children;
    to->blocks += more.blocks;
    to->bytes += more.bytes;
    to->example = more.example < to->example ? more.example : to->example;
    return DONE;
}

/* Add the block at a place, with the memory that it retains. */
static int add_block(const dominators *d, spreads *s, uint32_t place) {
    return add(s, (spread){size_of(d->g->b, d->nodes[place]), 1, count_at(d, place), bytes_at(d, place), d->nodes[place]});
}

/* Return five words for each size. The caller frees them with fl_free. */
static int finish(spreads *s, int failed, words *found) {
    for (uint64_t at = 0; s->items && at <= s->mask && !failed; at++)
        if (s->items[at].children)
            failed = PUSH_ALL(found, s->items[at].size, s->items[at].children, s->items[at].blocks, s->items[at].bytes, s->items[at].example);
    free(s->items);
    return failed;
}

int spread_of(const dominators *d, const uint32_t *places, uint32_t count, words *found) {
    spreads s = {NULL, 0, 0};
    int failed = DONE;
    for (uint32_t at = 0; at < count && !failed; at++)
        failed = add_block(d, &s, places[at]);
    return finish(&s, failed, found);
}

/* Return five words for each size of the node's children. The caller frees them with fl_free. */
API int fl_dominators_spread(const dominators *d, uint32_t place, words *found) {
    spreads s = {NULL, 0, 0};
    int failed = DONE;
    for (uint32_t at = place + 1, end = place + count_at(d, place); at < end && !failed; at += count_at(d, at))
        if (is_block(d, at))
            failed = add_block(d, &s, at);
    return finish(&s, failed, found);
}

/* Count the blocks at places [first, end) by size. Few blocks are read by place. Many are read
 * in the order of blocks, which avoids cache misses. */
static int count_sizes(const dominators *d, size_counts *c, uint32_t first, uint32_t end) {
    const blocks *b = d->g->b;
    const uint32_t *sizes = b->sizes;
    int failed = DONE;
    if (!d->firsts && (end - first) >= d->g->count / MANY_SHARE) {
        for (uint32_t index = 0; index < d->g->count && !failed; index++)
            if (d->numbers[index] - first < end - first)
                failed = count_size(c, size_in(b, sizes, index), 0);
        return failed;
    }
    for (uint32_t at = first; at < end && !failed; at++) {
        if (at + AHEAD < end)
            prefetch_size(b, d->nodes[at + AHEAD]);
        failed = count_size(c, size_in(b, sizes, d->nodes[at]), 0);
    }
    return failed;
}

/* Return pairs (size * 4, number) of the blocks at these ascending places and all that they
 * retain. */
int sizes_below(const dominators *d, const uint32_t *places, uint32_t count, words *found) {
    size_counts c;
    int failed = size_counts_begin(&c);
    for (uint32_t at = 0, end; at < count && !failed;) {
        uint32_t first = places[at];
        do
            end = places[at] + count_at(d, places[at]);
        while (++at < count && places[at] == end);
        failed = count_sizes(d, &c, first, end);
    }
    return size_counts_end(&c, failed, found);
}

/* Return pairs (size * 4, number) of all blocks that the node retains. */
API int fl_dominators_sizes(const dominators *d, uint32_t place, words *found) {
    size_counts c;
    int failed = size_counts_begin(&c);
    uint32_t end = place + count_at(d, place);
    if (!failed && d->nodes[place] != SHARED_NODE)
        failed = count_sizes(d, &c, is_block(d, place) ? place : place + 1, end);
    else
        for (uint32_t at = place + 1; at < end && !failed; at += count_at(d, at))
            if (is_block(d, at))
                failed = count_sizes(d, &c, at, at + count_at(d, at));
    return size_counts_end(&c, failed, found);
}

/* Follow a linked list from the block at `place`: see chain() in ../engine/dominators.py. */
API void fl_dominators_chain(const dominators *d, uint32_t place, bool equal, uint32_t limit, chain *found) {
    const blocks *b = d->g->b;
    uint64_t size = size_of(b, d->nodes[place]), own = size;
    *found = (chain){1, size, size, size, place, false};
    for (;;) {
        uint32_t best = 0, alike = 0;
        for (uint32_t at = place + 1, end = place + count_at(d, place); at < end; at += count_at(d, at)) {
            if (equal && size_of(b, d->nodes[at]) != size)
                continue;
            alike++;
            best = !best || before(d, at, best) ? at : best;
        }
        /* the child retains less than nine tenths; written as a difference because sums may be
         * near 2^64 */
        if (!best || (!(equal && alike == 1) && bytes_at(d, place) - bytes_at(d, best) > bytes_at(d, place) / 10))
            return;
        if (found->length >= limit) {
            found->more = true;
            return;
        }
        place = best;
        own = size_of(b, d->nodes[place]);
        found->length++;
        found->end = place;
        found->bytes += own;
        found->least = own < found->least ? own : found->least;
        found->most = own > found->most ? own : found->most;
    }
}

/* Sum up by row what blocks retain. rows[label] is the row of a label, of which there are `count`.
 * `totals` has two words for each row, blocks and bytes; `ends` has a zero for each. A block that
 * a block of the same row retains does not count again: in preorder, the last counted block of a
 * row extends to ends[row]. */
API void fl_dominators_by_label(
    const dominators *d, const uint8_t *labels, uint64_t width, const uint32_t *rows, uint32_t count, uint32_t *ends, uint64_t *totals
) {
    for (uint32_t at = 1; at < d->count; at++) {
        uint32_t label = is_block(d, at) ? type_number(labels, width, d->nodes[at]) : NONE;
        if (label >= count || at < ends[rows[label]])
            continue;
        ends[rows[label]] = at + count_at(d, at);
        totals[2 * rows[label]] += count_at(d, at);
        totals[2 * rows[label] + 1] += bytes_at(d, at);
    }
}

/* Pass three arrays to Python: the node at each place, the place of each block (NULL: see
 * fl_dominators_place), and the place of each root. `count` is the number of places. */
API void fl_dominators_arrays(const dominators *d, const void **arrays, uint32_t *count) {
    const void *all[] = {d->nodes, d->firsts ? NULL : d->numbers, d->places};
    memcpy(arrays, all, sizeof all);
    *count = d->count;
}

/* Return the place of a block. If it is in a leaf tree, this takes a pass over all places. */
API uint32_t fl_dominators_place(const dominators *d, uint32_t index) { return place_of_block(d, index, 0); }

API uint32_t fl_dominators_count(const dominators *d, uint32_t place) { return count_at(d, place); }
API uint64_t fl_dominators_bytes(const dominators *d, uint32_t place) { return bytes_at(d, place); }

/* Pass an array to Python: for each place, the place of the idom. */
API int fl_dominators_idoms(dominators *d, const void **idoms) {
    int failed = dominators_find_idoms(d);
    *idoms = d->idoms;
    return failed;
}
