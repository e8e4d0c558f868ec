/* Columns of blocks: addresses, usable sizes and states of many, for Python. */
#include "blocks.h"

/* Of the blocks [first, last), which exist: an element each. */
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
