/* Hash tables with one control byte a bucket, whose head points to the control bytes. The
 * entries of the same block precede or follow these.
 *
 * hashbrown (Rust's std since 1.45; hashbrown 0.7 to 0.16, src/raw): entries, then `buckets` =
 * mask + 1 control bytes, a power of two, and 16, 8 or 4 bytes that repeat the first ones. 0xFF:
 * empty, 0x80: deleted, below 0x80: full. The head has, in any order: {pointer, mask,
 * growth_left, items}, and growth_left + items + deleted == capacity(mask), 7/8 of the buckets.
 *
 * Example: 8 buckets, 3 full, none deleted: mask 7, items 3, growth_left 4; 3 + 4 + 0 = 7.
 *
 * Abseil (raw_hash_set.h, LTS 20230802 to 20250512): growth_left, control bytes, one of 0xFF at
 * index `capacity` = 2^k - 1, 15 or 7 bytes that repeat the first ones, entries. 0x80: empty,
 * 0xFE: deleted. The head has the pointer, followed by the pointer to the entries. Before that
 * version the control bytes began the block. */
#include "interior_structures.h"

#define GROUP_MOST 16u
#define NEIGHBOURS 3u /* words beside the pointer that may belong to the head */
#define EMPTY 0xFFu
#define DELETED 0x80u
#define SWISS_EMPTY 0x80u
#define SWISS_DELETED 0xFEu
#define SENTINEL 0xFFu
#define SLOT_ALIGN 64u /* maximum bytes between the control bytes and the first entry */

typedef struct {
    uint64_t full, deleted, others; /* others: neither these nor empty */
} tally;

bool may_be_table(const memory *m, const candidate *c) {
    uint8_t first[4];
    if (c->pointer % 4 || end_of(c) - c->pointer < sizeof first || !read_bytes(m, c->pointer, sizeof first, first))
        return false;
    for (unsigned at = 0; at < sizeof first; at++)
        if (first[at] > 0x80 && first[at] < SWISS_DELETED)
            return false;
    return true;
}

/* Count `count` control bytes from `address` on. Return false if bytes are missing or too many
 * were read in total, and stop early with false once more than `most` are not empty. */
static bool count_bytes(memory *m, uint64_t address, uint64_t count, uint64_t most, uint8_t empty, uint8_t deleted, tally *found) {
    *found = (tally){0, 0, 0};
    while (count) {
        const piece *p = piece_holding(m->pieces, m->count, address);
        uint64_t offset = p ? address - p->address : 0;
        if (!p || offset >= p->length)
            return false;
        uint64_t some = p->length - offset < count ? p->length - offset : count;
        some = some < 4096 ? some : 4096;
        if (m->credit < some)
            return false;
        m->credit -= some;
        const uint8_t *at = p->data + offset;
        uint64_t full = 0, gone = 0, none = 0;
        for (uint64_t byte = 0; byte < some; byte++) {
            full += at[byte] < 0x80;
            gone += at[byte] == deleted;
            none += at[byte] == empty;
        }
        found->full += full;
        found->deleted += gone;
        found->others += some - full - gone - none;
        if (found->others || found->full + found->deleted > most)
            return false;
        address += some;
        count -= some;
    }
    return true;
}

static uint64_t capacity_of(uint64_t mask) { return mask < 8 ? mask : (mask + 1) / 8 * 7; }

static bool is_mask(uint64_t value) { return value && !(value & (value + 1)); }

/* Return whether the group after the control bytes repeats the first ones. */
static bool repeats(const memory *m, uint64_t pointer, uint64_t buckets, uint64_t width) {
    uint8_t first[GROUP_MOST], last[GROUP_MOST];
    if (buckets >= width)
        return read_bytes(m, pointer, width, first) && read_bytes(m, pointer + buckets, width, last) && !memcmp(first, last, width);
    if (!read_bytes(m, pointer, width, first) || !read_bytes(m, pointer + width, buckets, last))
        return false;
    for (uint64_t at = buckets; at < width; at++)
        if (first[at] != EMPTY)
            return false;
    return !memcmp(first, last, buckets);
}

static bool is_hashbrown(memory *m, candidate *c, uint64_t mask, uint64_t growth, uint64_t items) {
    uint64_t capacity = capacity_of(mask), left = end_of(c) - c->pointer;
    if (!is_mask(mask) || growth > capacity || items > capacity - growth || mask >= left || mask + 1 > c->pointer - c->start)
        return false;
    for (uint64_t width = GROUP_MOST; width >= 4; width /= 2) {
        uint64_t length = mask + 1 + width;
        if (length > left || (c->pointer - c->start) % width || (left - length) > c->size / 2 || !repeats(m, c->pointer, mask + 1, width))
            continue;
        if (c->counted != mask) { /* once, even if the head may have several orders */
            tally found;
            c->counted = mask;
            c->sound = count_bytes(m, c->pointer, mask + 1, capacity, EMPTY, DELETED, &found);
            c->full = found.full;
            c->deleted = found.deleted;
        }
        if (!c->sound || c->full != items || growth + items + c->deleted != capacity)
            return false;
        c->used = items;
        c->places = mask + 1;
        return true;
    }
    return false;
}

/* Return the index of the first 0xFF byte whose index is one less than a power of two; 0 if
 * there is none. */
static uint64_t sentinel(const memory *m, const candidate *c, uint64_t entries) {
    for (uint64_t capacity = 1; capacity < entries - c->pointer; capacity = capacity * 2 + 1) {
        uint8_t byte;
        uint64_t behind = entries - c->pointer - capacity; /* the sentinel, clones, padding */
        if (behind <= GROUP_MOST + SLOT_ALIGN && read_bytes(m, c->pointer + capacity, 1, &byte) && byte == SENTINEL)
            return capacity;
    }
    return 0;
}

static bool is_swiss(memory *m, candidate *c, uint64_t entries) {
    if (c->pointer - c->start < WORD || c->pointer - c->start > 4 * WORD || entries <= c->pointer || entries > end_of(c))
        return false;
    uint64_t growth, capacity = sentinel(m, c, entries);
    if (!capacity || !read_word(m, c->pointer - WORD, &growth))
        return false;
    growth &= HIGHEST >> 1; /* the highest bit shows whether there are deleted bytes */
    uint64_t most = capacity == 7 ? 7 : capacity - capacity / 8; /* 6 of 7 in groups of 8 */
    for (uint64_t width = GROUP_MOST; width >= 8; width /= 2) {
        uint64_t clones = width - 1 < capacity ? width - 1 : capacity;
        uint8_t first[GROUP_MOST], last[GROUP_MOST];
        if (c->pointer + capacity + width > entries || entries - (c->pointer + capacity + width) >= SLOT_ALIGN)
            continue;
        if (!read_bytes(m, c->pointer, clones, first) || !read_bytes(m, c->pointer + capacity + 1, clones, last) || memcmp(first, last, clones))
            continue;
        tally found;
        if (growth > most || !count_bytes(m, c->pointer, capacity, most, SWISS_EMPTY, SWISS_DELETED, &found))
            return false;
        uint64_t taken = found.full + found.deleted + growth;
        if (taken != most && !(capacity == 7 && taken == 6))
            return false;
        c->used = found.full;
        c->places = capacity;
        return true;
    }
    return false;
}

int table_at(memory *m, candidate *c) {
    uint64_t values[2 * NEIGHBOURS + 1];
    bool there[2 * NEIGHBOURS + 1];
    if (!c->word)
        return NOTHING;
    for (unsigned at = 0; at <= 2 * NEIGHBOURS; at++)
        there[at] = read_word(m, (c->word + (uint64_t)at * WORD - NEIGHBOURS * WORD) & HIGHEST, &values[at]);
    /* Four consecutive words, one of which is the pointer: the other three have these orders. */
    static const uint8_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (unsigned first = 0; first <= NEIGHBOURS; first++) {
        uint64_t others[3];
        unsigned count = 0;
        for (unsigned at = first; at <= first + NEIGHBOURS; at++)
            if (at != NEIGHBOURS && there[at])
                others[count++] = values[at];
        for (unsigned order = 0; count == 3 && order < 6; order++)
            if (is_hashbrown(m, c, others[orders[order][0]], others[orders[order][1]], others[orders[order][2]]))
                return HASHBROWN;
    }
    return there[NEIGHBOURS + 1] && is_swiss(m, c, values[NEIGHBOURS + 1]) ? SWISS_TABLE : NOTHING;
}
