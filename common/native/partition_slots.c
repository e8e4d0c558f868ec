/* Reads which slots of PartitionAlloc's slot spans are free or quarantined: see
 * ../allocators/partitionalloc/engine.py. */
#include "native.h"

#define SUPER_PAGE (UINT64_C(2) << 20)
#define PAGE UINT64_C(4096)
#define TABLE (2 * PAGE)                 /* offset of the counters of page-aligned slots */
#define TABLE_STRIDE UINT64_C(8)         /* bytes of the table for each page */
#define HELD UINT32_C(1)                 /* bit of a counter: the program has not freed the slot */
#define REFERENCES UINT32_C(0x3FFFFFFE) /* bits of a counter: number of raw_ptr */

/* ../allocators/partitionalloc/engine.py describes both structures. */
typedef struct {
    uint64_t start, stride, count, head, bit;
} span;
typedef struct {
    uint64_t freed, quarantined, damaged;
} outcome;

typedef struct {
    const piece *pieces;
    uint64_t count, pool;
    bool shadowed;
    uint8_t *bits;
} reader;

/* Set the bit of a slot. Return false if the bit was already set. */
INLINE bool mark(uint8_t *bits, uint64_t bit) {
    uint8_t *at = &bits[bit / 8], one = (uint8_t)(1u << bit % 8);
    bool fresh = !(*at & one);
    *at |= one;
    return fresh;
}

/* Mark the slots of a free list. Each link is the next slot's offset in the pool (its address if
 * `pool` is 0), with its bytes in reverse order. If `shadowed`, the inverted link follows. Pages of
 * free slots may have been discarded; they contain zeros. */
static void follow_free(const reader *r, const span *s, outcome *out) {
    uint64_t slot = s->head, from = s->head;
    while (slot) {
        uint64_t offset = slot - s->start, number = offset / s->stride;
        const uint8_t *link = number < s->count && offset % s->stride == 0 ? memory_at(r->pieces, r->count, slot, 16) : NULL;
        if (!link || !mark(r->bits, s->bit + number)) {
            out->damaged = from;
            return;
        }
        out->freed++;
        uint64_t word = eight_bytes(link);
        if (word && r->shadowed && eight_bytes(link + 8) != ~word) {
            out->damaged = slot;
            return;
        }
        from = slot;
        slot = word ? r->pool + __builtin_bswap64(word) : 0;
    }
}

INLINE bool contains(const uint64_t *sorted, uint64_t count, uint64_t value) {
    uint64_t at = 0;
    BISECT(at, count, middle, sorted[middle] < value)
    return at < count && sorted[at] == value;
}

/* Mark the quarantined slots: the program freed them, but a raw_ptr still refers to them. */
static void find_quarantined(const reader *r, const span *s, const uint64_t *cached, uint64_t cached_count, outcome *out) {
    for (uint64_t number = 0; number < s->count; number++) {
        uint64_t bit = s->bit + number, slot = s->start + number * s->stride;
        if (r->bits[bit / 8] >> bit % 8 & 1)
            continue;
        uint64_t at = slot + s->stride - 4;
        if (slot % PAGE == 0)
            at = (slot & -SUPER_PAGE) + TABLE + slot % SUPER_PAGE / PAGE * TABLE_STRIDE;
        const uint8_t *counter = memory_at(r->pieces, r->count, at, 4);
        uint32_t value = counter ? load32(counter) : HELD;
        if (!(value & HELD) && value & REFERENCES && !contains(cached, cached_count, slot)) {
            mark(r->bits, bit);
            out->quarantined++;
        }
    }
}

API void fl_partition_slots(const piece *pieces, uint64_t count, const uint64_t *spans, uint64_t number, uint64_t pool, bool shadowed,
                            bool counted, const uint64_t *cached, uint64_t cached_count, uint8_t *bits, uint64_t *outcomes) {
    reader r = {pieces, count, pool, shadowed, bits};
    const span *all = (const span *)spans;
    outcome *made = (outcome *)outcomes;
    for (uint64_t i = 0; i < number; i++) {
        made[i] = (outcome){0, 0, 0};
        follow_free(&r, &all[i], &made[i]);
        if (counted)
            find_quarantined(&r, &all[i], cached, cached_count, &made[i]);
    }
}
