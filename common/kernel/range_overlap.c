/* Overlap of blocks with given ranges: bytes by state, and gaps between blocks. */
#include "blocks.h"

/* The first block that ends above `address`, and its start; b->count if none. */
static uint32_t first_above(const blocks *b, uint64_t address, uint64_t *start) {
    uint32_t index = block_before(b, slot_of(b, address), address, start);
    if (index == NONE || *start > address || address - *start >= size_of(b, index)) {
        index = block_at_or_after(b, address);
        if (index < b->count)
            *start = block_address(b, index);
    }
    return index;
}

static void add_range(const blocks *b, const range *r, uint64_t *sums) {
    uint64_t start = 0;
    uint32_t index = first_above(b, r->start, &start);
    while (index < b->count && start < r->end) {
        uint64_t end = start + size_of(b, index);
        uint64_t low = start > r->start ? start : r->start, high = end < r->end ? end : r->end;
        if (low < high)
            sums[b->states[index] & 3] += high - low;
        if (++index < b->count)
            start = start_after(b, start, index);
    }
}

/* Add the bytes of blocks in these ranges to sums[4], by state. */
API void fl_bytes_in(const blocks *b, const range *ranges, uint64_t count, uint64_t *sums) {
    for (uint64_t at = 0; at < count; at++)
        add_range(b, &ranges[at], sums);
}

/* Push start and end of each gap of at least `least` bytes in [low, high) that no block covers. */
API int fl_gaps(const blocks *b, uint64_t low, uint64_t high, uint64_t least, words *found) {
    uint64_t start = 0, at = low;
    uint32_t index = low < high ? first_above(b, low, &start) : b->count;
    while (index < b->count && start < high) {
        uint64_t size = size_of(b, index);
        if (size && start > at && start - at >= least && (words_push(found, at) || words_push(found, start)))
            return NO_MEMORY;
        at = size && start + size > at ? start + size : at;
        if (++index < b->count)
            start = start_after(b, start, index);
    }
    if (at < high && high - at >= least && (words_push(found, at) || words_push(found, high)))
        return NO_MEMORY;
    return DONE;
}
