/* Overlap of blocks with given ranges: bytes by state, and gaps between blocks. */
#include "blocks.h"

static void add_part(const blocks *b, const range *r, uint32_t index, uint64_t start, uint64_t *sums) {
    uint64_t end = start + size_of(b, index);
    uint64_t low = start > r->start ? start : r->start, high = end < r->end ? end : r->end;
    if (low < high)
        sums[b->states[index] & 3] += high - low;
}

/* Add the bytes of blocks in one range. The first and the last block may extend beyond the
 * range. The blocks between are wholly in it, so their addresses are not needed. */
static void add_range(blocks *b, const range *r, uint64_t *sums) {
    uint64_t start = 0;
    uint32_t index = block_reaching(b, r->start, &start), after = block_at_or_after(b, r->end);
    if (index >= after)
        return;
    add_part(b, r, index, start, sums);
    if (++index < after) {
        block_total between[METADATA + 1];
        fl_totals(b, index, after - 1, between);
        for (unsigned state = 0; state <= METADATA; state++)
            sums[state] += between[state].bytes;
        add_part(b, r, after - 1, block_address(b, after - 1), sums);
    }
}

/* Add the bytes of blocks in these ranges to sums[4], by state. */
API void fl_bytes_in(blocks *b, const range *ranges, uint64_t count, uint64_t *sums) {
    for (uint64_t at = 0; at < count; at++)
        add_range(b, &ranges[at], sums);
}

/* Push start and end of each gap of at least `least` bytes in [low, high) that no block covers. */
API int fl_gaps(const blocks *b, uint64_t low, uint64_t high, uint64_t least, words *found) {
    uint64_t start = 0, at = low;
    uint32_t index = low < high ? block_reaching(b, low, &start) : b->count;
    for (; index < b->count && start < high; next_block(b, &index, &start)) {
        uint64_t size = size_of(b, index);
        if (size && start > at && start - at >= least && PUSH_ALL(found, at, start))
            return NO_MEMORY;
        at = size && start + size > at ? start + size : at;
    }
    return at < high && high - at >= least ? PUSH_ALL(found, at, high) : DONE;
}
