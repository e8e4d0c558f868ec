/* Columns of blocks for Python: addresses, usable sizes and states of many blocks. */
#include "blocks.h"

/* Fill columns with an element for each of the blocks [first, last), which exist. */
API void fl_block_columns(const blocks *b, uint32_t first, uint32_t last, uint64_t *addresses, uint64_t *sizes, uint8_t *states) {
    if (first >= last)
        return;
    uint64_t start = block_address(b, first);
    for (uint32_t index = first;;) {
        *addresses++ = start;
        *sizes++ = size_of(b, index);
        if (++index == last)
            break;
        start = start_after(b, start, index);
    }
    memcpy(states, b->states + first, last - first);
}

/* Fill columns with an element for each of these blocks, in any order; zeros for an index
 * without a block. Indices often follow one another, so a block's address is computed from the
 * previous one's where possible. */
API void fl_block_columns_of(const blocks *b, const uint32_t *indices, uint64_t count, uint64_t *addresses, uint64_t *sizes, uint8_t *states) {
    uint32_t last = NONE;
    uint64_t start = 0;
    for (uint64_t at = 0; at < count; at++) {
        uint32_t index = indices[at];
        if (index >= b->count) {
            addresses[at] = sizes[at] = states[at] = 0;
            continue;
        }
        start = last != NONE && index == last + 1 ? start_after(b, start, index) : block_address(b, index);
        last = index;
        addresses[at] = start;
        sizes[at] = size_of(b, index);
        states[at] = b->states[index];
    }
}

/* Collect the indices of the blocks in [first, last) with a wanted state and a wanted mark;
 * return their number. `states` has a bit for each state, `wanted` one for each mark. Without
 * branches: in a heap, blocks that pass and others alternate at random. */
API uint32_t fl_block_indices(const blocks *b, uint32_t first, uint32_t last, uint32_t states, const uint8_t *marks, uint32_t wanted,
                              uint32_t *indices) {
    uint32_t count = 0;
    for (uint32_t index = first; index < last; index++) {
        indices[count] = index;
        count += (states >> (b->states[index] & 31) & 1) & (wanted >> (marks[index] & 31) & 1);
    }
    return count;
}
