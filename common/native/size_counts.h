/* Counts blocks by size. Sizes below SMALL_SIZES that are whole words, as nearly all are, have
 * separate counters; other sizes are in a hash table. */
#ifndef FINDLEAKS_SIZE_COUNTS_H
#define FINDLEAKS_SIZE_COUNTS_H

#include "blocks.h"

#define SMALL_SIZES (1u << 15)

typedef struct {
    uint32_t *small; /* by size / WORD * 4 + state */
    uint64_t *keys, *counts; /* key: size * 4 + state + 1; 0: unused entry */
    uint64_t mask, used;
} size_counts;

/* Returns DONE or NO_MEMORY. Call size_counts_end in either case. */
int size_counts_begin(size_counts *c);
int size_counts_other(size_counts *c, uint64_t size, unsigned state);
/* Append pairs (size * 4 + state, number), unordered, unless `failed` is set, which is returned.
 * Free the counters. */
int size_counts_end(size_counts *c, int failed, words *found);

/* Count a block. Returns DONE or NO_MEMORY. */
INLINE int count_size(size_counts *c, uint64_t size, unsigned state) {
    if (size >= SMALL_SIZES || size % WORD)
        return size_counts_other(c, size, state);
    c->small[size / WORD * 4 + state]++;
    return DONE;
}

#endif
