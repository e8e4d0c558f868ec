/* Counts blocks by size, and by state. */
#include "size_counts.h"

#include <stdlib.h>

#define SMALL_COUNTERS (SMALL_SIZES / WORD * 4)

static uint64_t *counter(size_counts *c, uint64_t key) {
    uint64_t place = key * 0x9E3779B97F4A7C15u >> 20 & c->mask;
    while (c->keys[place] && c->keys[place] != key)
        place = (place + 1) & c->mask;
    c->used += !c->keys[place];
    c->keys[place] = key;
    return &c->counts[place];
}

static int wider(size_counts *c) {
    size_counts made = {c->small, NULL, NULL, c->keys ? c->mask * 4 + 3 : 1023, 0};
    made.keys = calloc(made.mask + 1, sizeof *made.keys);
    made.counts = calloc(made.mask + 1, sizeof *made.counts);
    if (!made.keys || !made.counts) {
        FREE_ALL(made.keys, made.counts);
        return NO_MEMORY;
    }
    for (uint64_t at = 0; c->keys && at <= c->mask; at++)
        if (c->keys[at])
            *counter(&made, c->keys[at]) = c->counts[at];
    FREE_ALL(c->keys, c->counts);
    *c = made;
    return DONE;
}

int size_counts_begin(size_counts *c) {
    *c = (size_counts){calloc(SMALL_COUNTERS, sizeof *c->small), NULL, NULL, 0, 0};
    return c->small ? DONE : NO_MEMORY;
}

int size_counts_other(size_counts *c, uint64_t size, unsigned state) {
    if ((!c->keys || c->used > c->mask / 2) && wider(c))
        return NO_MEMORY;
    ++*counter(c, size * 4 + state + 1);
    return DONE;
}

int size_counts_end(size_counts *c, int failed, words *found) {
    for (uint64_t at = 0; c->small && at < SMALL_COUNTERS && !failed; at++)
        if (c->small[at])
            failed = PUSH_ALL(found, at / 4 * WORD * 4 + at % 4, c->small[at]);
    for (uint64_t at = 0; c->keys && at <= c->mask && !failed; at++)
        if (c->keys[at])
            failed = PUSH_ALL(found, c->keys[at] - 1, c->counts[at]);
    FREE_ALL(c->small, c->keys, c->counts);
    return failed;
}

/* Return pairs (size * 4 + state, number) of the blocks that start in one of these ranges,
 * unordered. */
API int fl_by_size(const blocks *b, const range *ranges, uint64_t count, words *found) {
    size_counts c;
    int failed = size_counts_begin(&c);
    for (const range *r = ranges; r < ranges + count; r++)
        for (uint32_t index = block_at_or_after(b, r->start), end = block_at_or_after(b, r->end); !failed && index < end; index++)
            failed = count_size(&c, size_of(b, index), b->states[index]);
    return size_counts_end(&c, failed, found);
}

/* Return the first `most` indices, ascending, of the blocks in use of at least `least` bytes and
 * at most `greatest`. */
API int fl_of_sizes(const blocks *b, uint64_t least, uint64_t greatest, uint64_t most, words *found) {
    int failed = DONE;
    for (uint32_t index = 0; index < b->count && found->count < most && !failed; index++)
        if (b->states[index] == IN_USE && size_of(b, index) >= least && size_of(b, index) <= greatest)
            failed = words_push(found, index);
    return failed;
}
