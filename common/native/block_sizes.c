/* Block directory: sizes take 2 bytes each if all of them are multiples of the granule. */
#include "blocks.h"

#include <stdlib.h>

/* Store sizes in 2 bytes each if all of them are multiples of the granule. 2 bytes are enough: NEAR
 * slots have fewer granules than 2 bytes can count, and sizes of larger blocks are in `bigs`. */
static void narrow_sizes(blocks *b) {
    uint32_t *sizes = b->sizes, off = (1u << b->granule_shift) - 1;
    for (uint32_t index = 0; index < b->count; index++)
        if (sizes[index] & off && sizes[index] != NONE)
            return;
    uint16_t *narrow = (uint16_t *)(void *)sizes;
    for (uint32_t index = 0; index < b->count; index++) {
        uint32_t size;
        memcpy(&size, &narrow[2 * (size_t)index], sizeof size);
        narrow[index] = size == NONE || size >> b->granule_shift >= WIDE_SIZE ? WIDE_SIZE : (uint16_t)(size >> b->granule_shift);
    }
    void *less = realloc(narrow, b->count * sizeof *narrow);
    b->narrow_sizes = less ? less : narrow;
    b->sizes = NULL;
}

/* Release unused memory: the spare capacity of the arrays, the upper halves of the sizes, and the
 * pages of the states if all states are 0 (all blocks are in use, as in a compacted heap). */
API void fl_seal(blocks *b) {
    drop_spares(b);
    if (!b->count || b->narrow_sizes)
        return;
    void *sizes = realloc(b->sizes, b->count * sizeof *b->sizes);
    b->sizes = sizes ? sizes : b->sizes;
    narrow_sizes(b);
    void *states = realloc(b->states, b->count);
    b->states = states ? states : b->states;
    uint32_t used = 0;
    while (used < b->count && b->states[used] == IN_USE)
        used++;
    if (used == b->count)
        release_zeros(b->states, b->count);
    b->capacity = b->count;
    trim_memory(b->count);
}

static int widen_sizes(blocks *b) {
    uint32_t *sizes = malloc(b->count * sizeof *sizes);
    if (!sizes)
        return NO_MEMORY;
    for (uint32_t index = 0; index < b->count; index++)
        sizes[index] = short_size(b, index);
    DROP(b->narrow_sizes);
    b->sizes = sizes;
    return DONE;
}

API int fl_resize(blocks *b, uint32_t index, uint64_t size) {
    uint64_t start = block_address(b, index);
    uint64_t limit = index + 1 < b->count ? start_after(b, start, index + 1) : HIGHEST;
    DROP(b->sums);
    if (size > limit - start)
        return DISORDER;
    if (b->narrow_sizes && widen_sizes(b))
        return NO_MEMORY;
    if (cover(b, index, start, size))
        return NO_MEMORY;
    big *listed = big_of(b, index);
    if (listed)
        listed->size = size;
    b->sizes[index] = size < NONE ? (uint32_t)size : NONE;
    return DONE;
}
