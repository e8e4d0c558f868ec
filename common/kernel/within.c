/* How many bytes of the blocks in each state lie in given ranges: what resident pages hold. */
#include "blocks.h"

static void add_range(const blocks *b, const range *r, uint64_t *sums) {
    uint64_t start = 0;
    uint32_t index = block_before(b, slot_of(b, r->start), r->start, &start);
    if (index == NONE || start > r->start || r->start - start >= size_of(b, index)) {
        index = block_at_or_after(b, r->start);
        if (index < b->count)
            start = block_address(b, index);
    }
    while (index < b->count && start < r->end) {
        uint64_t end = start + size_of(b, index);
        uint64_t low = start > r->start ? start : r->start, high = end < r->end ? end : r->end;
        if (low < high)
            sums[b->states[index] & 3] += high - low;
        if (++index < b->count)
            start = start_after(b, start, index);
    }
}

/* Adds to sums[4], by state. */
API void fl_bytes_in(const blocks *b, const range *ranges, uint64_t count, uint64_t *sums) {
    for (uint64_t at = 0; at < count; at++)
        add_range(b, &ranges[at], sums);
}
