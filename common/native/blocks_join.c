/* Directories that threads fill for parts of a heap, and the function that joins them. */
#include "blocks.h"

#include <stdlib.h>

/* Return how many of the slots with numbers from `at` to `last` lie in one table. */
static uint64_t slots_together(uint64_t at, uint64_t last) {
    uint64_t left = TABLE_SLOTS - (at & (TABLE_SLOTS - 1));
    return last - at < left ? last - at + 1 : left;
}

/* Drop all blocks, but keep the memory. All slots in use lie between the first and last block. */
static void clear(blocks *b) {
    if (b->count)
        for (uint64_t at = b->lowest >> b->slot_shift, last = b->floor >> b->slot_shift, some; at <= last; at += some) {
            slot *s = slot_of(b, at << b->slot_shift);
            some = slots_together(at, last);
            if (s)
                memset(s, 0, some * sizeof *s);
        }
    b->count = b->counted = 0;
    b->samples.count = b->bigs.count = b->jumps.count = 0;
    b->lowest = b->last_start = b->floor = 0;
    b->pending = false;
}

blocks *spare_blocks(blocks *b, unsigned number) {
    while (b->spares.count < number) {
        blocks *made = fl_blocks_new(b->granule_shift, 1);
        if (!made || PUSH(b->spares, made)) {
            if (made)
                fl_blocks_free(made);
            return NULL;
        }
    }
    clear(b->spares.items[number - 1]);
    return b->spares.items[number - 1];
}

void drop_spares(blocks *b) {
    for (uint64_t at = 0; at < b->spares.count; at++)
        fl_blocks_free(b->spares.items[at]);
    DROP(b->spares.items);
    b->spares.count = b->spares.capacity = 0;
}

/* Copy slots, and the start of every SAMPLEth block. Add `base` to the indices of the blocks. */
INLINE int join_slots_as(blocks *b, const slot *from, slot *to, uint64_t count, uint64_t address, uint32_t base) {
    for (uint64_t at = 0; at < count; at++, address += UINT64_C(1) << b->slot_shift) {
        uint64_t bits = from[at].bits;
        if (!bits && !from[at].back)
            continue;
        uint32_t index = from[at].rank + base, sampled = (index + SAMPLE - 1) / SAMPLE * SAMPLE;
        if (!to[at].bits)
            to[at].rank = index;
        to[at].bits |= bits;
        if (from[at].back)
            to[at].back = from[at].back;
        for (uint32_t end = index + (uint32_t)__builtin_popcountll(bits); sampled < end; sampled += SAMPLE) {
            for (; index < sampled; index++)
                bits &= bits - 1;
            if (words_push(&b->samples, lowest_start(b, address, bits)))
                return NO_MEMORY;
        }
    }
    return DONE;
}

POPCNT static int join_slots_popcnt(blocks *b, const slot *from, slot *to, uint64_t count, uint64_t address, uint32_t base) {
    return join_slots_as(b, from, to, count, address, base);
}

static int join_slots_plain(blocks *b, const slot *from, slot *to, uint64_t count, uint64_t address, uint32_t base) {
    return join_slots_as(b, from, to, count, address, base);
}

static int join_slots(blocks *b, const blocks *other, uint32_t base) {
    uint64_t last = (other->floor - 1) >> b->slot_shift;
    for (uint64_t at = other->lowest >> b->slot_shift, some; at <= last; at += some) {
        const slot *from = slot_of(other, at << b->slot_shift);
        some = slots_together(at, last);
        slot *to = from ? ensure_slot(b, at << b->slot_shift) : NULL;
        if (from && (!to || (has_popcnt() ? join_slots_popcnt : join_slots_plain)(b, from, to, some, at << b->slot_shift, base)))
            return NO_MEMORY;
    }
    return DONE;
}

int join_blocks(blocks *b, const blocks *other) {
    uint32_t base = b->count;
    if (!other->count)
        return DONE;
    if (other->count > MAX_BLOCKS - base)
        return TOO_MANY_BLOCKS;
    for (int failed; b->capacity < base + other->count;) {
        b->count = (uint32_t)b->capacity; /* grow_blocks uses this number */
        failed = grow_blocks(b);
        b->count = base;
        if (failed)
            return failed;
    }
    memcpy(b->sizes + base, other->sizes, other->count * sizeof *b->sizes);
    memcpy(b->states + base, other->states, other->count);
    if (join_slots(b, other, base))
        return NO_MEMORY;
    for (uint64_t at = 0; at < other->bigs.count; at++) {
        big one = other->bigs.items[at];
        one.index += base;
        if (PUSH(b->bigs, one))
            return NO_MEMORY;
    }
    bool near = base && (other->lowest >> b->slot_shift) - (b->last_start >> b->slot_shift) <= NEAR;
    for (uint64_t at = near; at < other->jumps.count; at++) { /* a first block has a jump */
        jump one = other->jumps.items[at];
        one.index += base;
        if (PUSH(b->jumps, one))
            return NO_MEMORY;
    }
    b->lowest = base ? b->lowest : other->lowest;
    b->last_start = other->last_start;
    b->floor = other->floor;
    b->count = base + other->count;
    return DONE;
}
