/* Directories that threads fill for a part of a heap, and their joining. */
#include "blocks.h"

#include <stdlib.h>

/* Forget the blocks, but keep the memory. All slots in use lie between the first and last block. */
static void clear(blocks *b) {
    if (b->count)
        for (uint64_t at = b->lowest >> b->slot_shift, end = (b->floor >> b->slot_shift) + 1; at <= end; at++) {
            slot *s = slot_of(b, at << b->slot_shift);
            if (!s) /* a big block's; to the next table */
                at |= TABLE_SLOTS - 1;
            else
                *s = (slot){0, 0, 0};
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

/* Copy a slot whose blocks' indices rise by `base`; the starts of every SAMPLEth block of all. */
static int join_slot(blocks *b, const slot *from, uint64_t address, uint32_t base) {
    slot *to = ensure_slot(b, address);
    if (!to)
        return NO_MEMORY;
    if (!to->bits)
        to->rank = from->rank + base;
    to->bits |= from->bits;
    if (from->back)
        to->back = from->back;
    uint64_t bits = from->bits;
    for (uint32_t index = from->rank + base; bits; index++, bits &= bits - 1)
        if (index % SAMPLE == 0 && words_push(&b->samples, lowest_start(b, address, bits)))
            return NO_MEMORY;
    return DONE;
}

static int join_slots(blocks *b, const blocks *other, uint32_t base) {
    uint64_t last = (other->floor - 1) >> b->slot_shift;
    for (uint64_t at = other->lowest >> b->slot_shift; at <= last; at++) {
        const slot *from = slot_of(other, at << b->slot_shift);
        if (!from) /* a big block's; to the next table */
            at |= TABLE_SLOTS - 1;
        else if ((from->bits || from->back) && join_slot(b, from, at << b->slot_shift, base))
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
        b->count = (uint32_t)b->capacity; /* what grow_blocks goes by */
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
    for (uint64_t at = near; at < other->jumps.count; at++) { /* a directory's first block is one */
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
