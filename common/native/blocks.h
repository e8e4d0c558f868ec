/* Block directory: finds the block that contains an address, with one or two cache misses.
 *
 * A slot is 64 granules of address space (1 KiB for 16-byte granules). It has one bit for each
 * granule at which a block starts, the index of the first of these blocks, and the distance back
 * to the slot with the latest start before it, if that block extends into this slot. Indices are
 * in the order of appending, so several heaps may share a slot. Tables of 2^16 slots are found
 * by hashing the upper bits of an address, so any 64-bit address works.
 *
 * Example: blocks start at the granules 3 and 10 of a slot; the first has index 7. For an
 * address in granule 12, the bits below it are 3 and 10: two starts, so the block has index 7 +
 * 2 - 1.
 *
 * Blocks that cover more than NEAR slots (`bigs`), and starts more than NEAR slots after the
 * previous one (`jumps`), are in sorted lists, which are bisected: no search visits more empty
 * slots than NEAR. */
#ifndef FINDLEAKS_BLOCKS_H
#define FINDLEAKS_BLOCKS_H

#include "native.h"

#define TABLE_BITS 16
#define TABLE_SLOTS (1u << TABLE_BITS)
#define NEAR 64u
#define WIDE_SIZE UINT16_MAX
#define SIZE_VALUES 256u
#define LISTED_SIZE (SIZE_VALUES - 1) /* the number of a size that is in `bigs` */
#define SAMPLE 32u /* the start of every 32nd block is stored: block_address walks from there */

typedef struct {
    uint64_t bits;
    uint32_t rank, back;
} slot;

#define TABLE_BYTES (TABLE_SLOTS * sizeof(slot))

typedef struct {
    uint64_t key;
    slot *slots; /* NULL: unused entry */
} table;

typedef struct {
    uint64_t start, size;
    uint32_t index;
} big;

typedef struct block_total {
    uint64_t count, bytes;
} block_total;

typedef struct {
    uint64_t start;
    uint32_t index;
} jump;

typedef struct blocks {
    unsigned granule_shift, slot_shift, table_shift, hash_shift;
    unsigned threads; /* threads that calls may use */
    table *tables; /* 1 << (64 - hash_shift) places */
    uint64_t table_count;
    table recent; /* where the last block was appended */
    uint32_t count;
    uint64_t capacity; /* of sizes and states */
    uint32_t *sizes; /* NONE: it is in `bigs` */
    /* Replaces `sizes` of sealed blocks if there are fewer than SIZE_VALUES different sizes: the
     * size of a block is size_values[size_numbers[index]]. NONE: the size is in `bigs`. */
    uint8_t *size_numbers;
    uint32_t size_values[SIZE_VALUES];
    /* Replaces `sizes` of other sealed blocks if all sizes are multiples of the granule: the number
     * of granules of each block, or WIDE_SIZE if the size is in `bigs`. */
    uint16_t *narrow_sizes;
    uint8_t *states;
    block_total *sums; /* see fl_totals; NULL: not added up since the last change */
    words samples;
    LIST(big) bigs;   /* ascending */
    LIST(jump) jumps; /* ascending */
    uint64_t lowest, last_start, floor; /* floor: lowest start of the next block */
    LIST(struct blocks *) spares; /* see spare_blocks */
    uint32_t counted;             /* number of blocks when the last table was created */
    bool pending; /* the last block's state is decided by the next chunk's PREV_INUSE bit */
} blocks;

slot *ensure_slot(blocks *b, uint64_t address);
int grow_blocks(blocks *b);
int cover(blocks *b, uint32_t index, uint64_t start, uint64_t size);
int add_jump(blocks *b, uint64_t start);
/* blocks_join.c. spare_blocks: an empty directory with a number from 1 on, which a thread fills;
 * NULL if out of memory. The other function appends the blocks of such a directory, which lie
 * above `b`'s. */
blocks *spare_blocks(blocks *b, unsigned number);
int join_blocks(blocks *b, const blocks *other);
void drop_spares(blocks *b);
uint64_t block_address(const blocks *b, uint32_t index);
uint32_t block_at_or_after(const blocks *b, uint64_t address);
uint32_t block_from(const blocks *b, uint64_t address, uint64_t *start);
uint32_t block_reaching(const blocks *b, uint64_t address, uint64_t *start);
big *big_of(const blocks *b, uint32_t index);
uint64_t big_size(const blocks *b, uint32_t index);
/* Count the blocks in [first, end) and their sizes by mark, for marks below `limit`; if `others`
 * is given, only blocks with others[index] == other. */
void add_up(const blocks *b, uint32_t first, uint32_t end, const uint8_t *marks, uint8_t limit, const uint8_t *others, uint8_t other,
            block_total *totals);
const big *big_at(const blocks *b, uint64_t address);
uint64_t jump_start(const blocks *b, uint32_t index);

INLINE uint32_t table_place(const blocks *b, uint64_t key) { return (uint32_t)((key * 0x9E3779B97F4A7C15u) >> b->hash_shift); }

/* Return the slot of an address; NULL if no block is near. */
INLINE slot *slot_of(const blocks *b, uint64_t address) {
    uint64_t key = address >> b->table_shift;
    uint32_t mask = (uint32_t)((UINT64_C(1) << (64 - b->hash_shift)) - 1);
    for (uint32_t place = table_place(b, key);; place = (place + 1) & mask) {
        const table *t = &b->tables[place];
        if (!t->slots)
            return NULL;
        if (t->key == key)
            return &t->slots[(address >> b->slot_shift) & (TABLE_SLOTS - 1)];
    }
}

INLINE unsigned granule_of(const blocks *b, uint64_t address) { return (unsigned)(address >> b->granule_shift) & 63u; }

INLINE uint64_t slot_base(const blocks *b, uint64_t address) { return address >> b->slot_shift << b->slot_shift; }

INLINE uint64_t highest_start(const blocks *b, uint64_t base, uint64_t bits) {
    return base + ((uint64_t)(63 - __builtin_clzll(bits)) << b->granule_shift);
}

INLINE uint64_t lowest_start(const blocks *b, uint64_t base, uint64_t bits) {
    return base + ((uint64_t)__builtin_ctzll(bits) << b->granule_shift);
}

/* Return the size from `sizes`, `size_numbers` or `narrow_sizes`; NONE if the size is in `bigs`. */
INLINE uint32_t short_size(const blocks *b, uint32_t index) {
    if (b->size_numbers)
        return b->size_values[b->size_numbers[index]];
    if (!b->narrow_sizes)
        return b->sizes[index];
    uint32_t size = b->narrow_sizes[index];
    return size == WIDE_SIZE ? NONE : size << b->granule_shift;
}

INLINE uint64_t size_of(const blocks *b, uint32_t index) {
    uint32_t size = short_size(b, index);
    return size == NONE ? big_size(b, index) : size;
}

/* As size_of, for loops: `wide` is b->sizes, which stays in a register. */
INLINE uint64_t size_in(const blocks *b, const uint32_t *wide, uint32_t index) {
    uint32_t size = wide ? wide[index] : short_size(b, index);
    return size == NONE ? big_size(b, index) : size;
}

INLINE void prefetch_size(const blocks *b, uint32_t index) {
    if (b->size_numbers)
        __builtin_prefetch(&b->size_numbers[index]);
    else
        __builtin_prefetch(b->narrow_sizes ? (const void *)&b->narrow_sizes[index] : &b->sizes[index]);
}

/* Return the last block that starts at or below `address` and may contain it; NONE if there is
 * none. `s`: the address's slot, or NULL. The caller compares the block's size. */
INLINE uint32_t block_before(const blocks *b, const slot *s, uint64_t address, uint64_t *start) {
    if (s) {
        uint64_t below = s->bits & (~UINT64_C(0) >> (63 - granule_of(b, address)));
        if (below) {
            *start = highest_start(b, slot_base(b, address), below);
            return s->rank + (uint32_t)__builtin_popcountll(below) - 1;
        }
        if (s->back) {
            uint64_t base = slot_base(b, address) - ((uint64_t)s->back << b->slot_shift);
            const slot *before = slot_of(b, base);
            *start = highest_start(b, base, before->bits);
            return s->rank - 1;
        }
    }
    const big *found = b->bigs.count ? big_at(b, address) : NULL;
    if (!found)
        return NONE;
    *start = found->start;
    return found->index;
}

INLINE uint32_t block_find(const blocks *b, uint64_t address) {
    uint64_t start = 0;
    uint32_t index = block_before(b, slot_of(b, address), address, &start);
    return index != NONE && (address == start || address - start < size_of(b, index)) ? index : NONE;
}

/* Return the start of block number `next`, which follows the block at `start`. */
INLINE uint64_t start_after(const blocks *b, uint64_t start, uint32_t next) {
    uint64_t base = slot_base(b, start);
    const slot *s = slot_of(b, base);
    unsigned at = granule_of(b, start);
    uint64_t above = at == 63 ? 0 : s->bits >> (at + 1) << (at + 1);
    for (unsigned step = 0; step <= NEAR; step++) {
        if (above)
            return lowest_start(b, base, above);
        base += UINT64_C(1) << b->slot_shift;
        s = base & ((UINT64_C(1) << b->table_shift) - 1) && s ? s + 1 : slot_of(b, base);
        above = s ? s->bits : 0;
    }
    return jump_start(b, next);
}

/* Advance to the next block; false if there is none. */
INLINE bool next_block(const blocks *b, uint32_t *index, uint64_t *start) {
    if (++*index >= b->count)
        return false;
    *start = start_after(b, *start, *index);
    return true;
}

/* The caller checks that `start` is on a granule at or above b->floor, and start + size < 2^64. */
INLINE int block_append(blocks *b, uint64_t start, uint64_t size, uint8_t state) {
    uint32_t index = b->count;
    int failed = DONE;
    if (index == b->capacity && (failed = grow_blocks(b)))
        return failed;
    if (index % SAMPLE == 0 && words_push(&b->samples, start))
        return NO_MEMORY;
    uint64_t number = start >> b->slot_shift;
    if ((!index || number - (b->last_start >> b->slot_shift) > NEAR) && add_jump(b, start))
        return NO_MEMORY;
    bool recent = b->recent.slots && b->recent.key == number >> TABLE_BITS;
    slot *s = recent ? &b->recent.slots[number & (TABLE_SLOTS - 1)] : ensure_slot(b, start);
    if (!s)
        return NO_MEMORY;
    if (!s->bits)
        s->rank = index;
    s->bits |= UINT64_C(1) << granule_of(b, start);
    if (number != (start + size) >> b->slot_shift && cover(b, index, start, size))
        return NO_MEMORY;
    b->sizes[index] = size < NONE ? (uint32_t)size : NONE;
    b->states[index] = state;
    b->last_start = start;
    b->floor = start + (size ? size : 1);
    b->count = index + 1;
    return DONE;
}

#endif
