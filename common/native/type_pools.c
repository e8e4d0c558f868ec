/* Pointers to objects in pools. A pool places objects one after another in blocks, without headers,
 * so these blocks have no type of their own. The caller finds the types of the objects from the
 * pointers to them, and adds the objects as root memory.
 * ../engine/reference/type_pools.py is the same in Python. */
#include "type_spread.h"

#include <stdlib.h>

/* Set the blocks of pools, by index. They get no claim. */
API int fl_spread_pools(spread *s, const uint32_t *indices, uint64_t count) {
    if (!s->pooled && !(s->pooled = calloc((size_t)s->b->count + 1, 1)))
        return NO_MEMORY;
    if (!s->recent && !(s->recent = calloc(RECENT, sizeof *s->recent)))
        return NO_MEMORY;
    for (uint64_t at = 0; at < count; at++) {
        if (indices[at] >= s->b->count)
            return DISORDER;
        s->pooled[indices[at]] = 1;
        set_claim(s, indices[at], DISPUTED);
    }
    return DONE;
}

/* Note a certain pointer to a block of a pool. Many pointers to one object have the same reference,
 * as those of all objects to their log. Most of these repetitions are left out. */
int note_pool_pointer(spread *s, const followed *p) {
    bool is_inside = p->value - p->start < size_of(s->b, p->index) || p->value == p->start;
    if (!is_inside || !p->certain || p->doubtful || s->b->states[p->index] != IN_USE)
        return DONE;
    pool_pointer *last = &s->recent[((p->value ^ (uint64_t)p->reference << 40) * UINT64_C(0x9E3779B97F4A7C15)) >> 50];
    if (last->value == p->value && last->reference == p->reference)
        return DONE;
    *last = (pool_pointer){p->value, p->reference};
    return PUSH_ALL(&s->pool_pointers, p->owner, p->place, p->value, p->reference) ? NO_MEMORY : DONE;
}

bool is_in_pool(const spread *s, uint64_t address) {
    uint64_t start;
    uint32_t index = s->pooled ? used_block(s, address, &start) : NONE;
    return index != NONE && s->pooled[index];
}

bool may_be_stale(const spread *s, const followed *p, uint32_t claim) {
    return level_of(claim) >= LEVEL_BASE && p->owner >= ROOT_BIT && s->roots.items[p->owner - ROOT_BIT].in_pool;
}

/* Append and forget the pointers to blocks of pools. Each has four words: owner, place, value,
 * reference. */
API int fl_spread_pool_pointers(spread *s, words *found) {
    int failed = words_append(found, s->pool_pointers.items, s->pool_pointers.count);
    s->pool_pointers.count = 0;
    return failed;
}
