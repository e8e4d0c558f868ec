/* Sorts managed heaps' records by key: see ../engine/records.py. The Python engine assigns the
 * same numbers. */
#include "native.h"
#include <stdlib.h>

enum { COLUMNS = 3, KEY = 1 + COLUMNS, SHAPE = 1 + COLUMNS, RUN = 4 };

/* `keys`: KEY words each, in the order of discovery; `table`: their numbers by hash (open
 * addressing, at least half empty). */
typedef struct records {
    uint64_t *keys, *counts;
    uint32_t *table;
    uint64_t used, capacity, most, tag_mask, left;
    uint64_t *shapes; /* SHAPE words a tag: first word's mask, other offsets or 0 */
} records;

#define EMPTY NONE

API void fl_records_free(records *r) {
    FREE_ALL(r->keys, r->counts, r->table, r->shapes, r);
}

static int resized(records *r, uint64_t capacity);

/* `tag_mask` + 1 shapes; at most `most` different keys. */
API records *fl_records_new(const uint64_t *shapes, uint64_t tag_mask, uint64_t most) {
    records *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->tag_mask = tag_mask;
    r->most = most < NONE - 1 ? most : NONE - 1;
    size_t size = (tag_mask + 1) * SHAPE * sizeof *shapes;
    r->shapes = malloc(size);
    if (!r->shapes || resized(r, 256) != DONE) {
        fl_records_free(r);
        return NULL;
    }
    memcpy(r->shapes, shapes, size);
    return r;
}

INLINE uint64_t hashed(const uint64_t *key) {
    uint64_t hash = 0;
    for (int i = 0; i < KEY; i++)
        hash = (hash ^ key[i]) * UINT64_C(0x9e3779b97f4a7c15), hash ^= hash >> 29;
    return hash;
}

/* Make space for `capacity` keys, a power of two. */
static int resized(records *r, uint64_t capacity) {
    uint64_t slots = 2 * capacity;
    uint64_t *keys = realloc(r->keys, capacity * KEY * sizeof *keys);
    if (keys)
        r->keys = keys;
    uint64_t *counts = realloc(r->counts, capacity * sizeof *counts);
    if (counts)
        r->counts = counts;
    uint32_t *table = malloc(slots * sizeof *table);
    if (!keys || !counts || !table) {
        free(table);
        return NO_MEMORY;
    }
    free(r->table);
    r->table = table;
    r->capacity = capacity;
    memset(table, 0xff, slots * sizeof *table);
    for (uint64_t number = 0; number < r->used; number++) {
        uint64_t at = hashed(keys + number * KEY) & (slots - 1);
        while (table[at] != EMPTY)
            at = (at + 1) & (slots - 1);
        table[at] = (uint32_t)number;
    }
    return DONE;
}

/* Return a key's number, adding the key if it is new; NONE if there are too many keys, or if out of
 * memory (see *code). */
static uint32_t numbered(records *r, const uint64_t *key, int *code) {
    uint64_t mask = 2 * r->capacity - 1, at = hashed(key) & mask;
    for (; r->table[at] != EMPTY; at = (at + 1) & mask)
        if (!memcmp(r->keys + (uint64_t)r->table[at] * KEY, key, KEY * sizeof *key))
            return r->table[at];
    if (r->used == r->most)
        return NONE;
    if (r->used == r->capacity) {
        *code = resized(r, 2 * r->capacity);
        if (*code != DONE)
            return NONE;
        return numbered(r, key, code);
    }
    uint32_t number = (uint32_t)r->used++;
    memcpy(r->keys + (uint64_t)number * KEY, key, KEY * sizeof *key);
    r->counts[number] = 0;
    r->table[at] = number;
    return number;
}

/* Return the key numbers of the records in these runs (start, stride, count, mark). DISORDER,
 * and nothing is counted, unless each record is in the piece with all its columns. */
API int fl_records(records *r, const piece *p, const uint64_t *runs, uint64_t count, uint32_t *numbers) {
    uint64_t reach = WORD;
    for (uint64_t i = 0; i <= r->tag_mask; i++)
        for (int column = 1; column <= COLUMNS; column++)
            if (r->shapes[i * SHAPE + (uint64_t)column] + WORD > reach)
                reach = r->shapes[i * SHAPE + (uint64_t)column] + WORD;
    for (const uint64_t *run = runs; run < runs + count * RUN; run += RUN) {
        uint64_t offset = run[0] - p->address;
        if (run[0] % WORD || run[1] % WORD || run[1] < reach || run[0] < p->address || offset > p->length ||
            run[2] > (p->length - offset) / run[1])
            return DISORDER;
    }
    int code = DONE;
    for (const uint64_t *run = runs; run < runs + count * RUN; run += RUN) {
        const uint8_t *at = p->data + (run[0] - p->address);
        for (uint64_t i = 0; i < run[2]; i++, at += run[1]) {
            uint64_t first = load(at);
            const uint64_t *shape = r->shapes + (first & r->tag_mask) * SHAPE;
            uint64_t key[KEY] = {(first & shape[0]) | run[3]};
            for (int column = 1; column <= COLUMNS; column++)
                key[column] = shape[column] ? load(at + shape[column]) : 0;
            uint32_t number = numbered(r, key, &code);
            if (code != DONE)
                return code;
            *numbers++ = number;
            if (number != NONE)
                r->counts[number]++;
            else
                r->left++;
        }
    }
    return code;
}

/* Return the keys, the number of records of each, and the number of records without a key. */
API int fl_records_keys(const records *r, words *keys, words *counts, uint64_t *left) {
    *left = r->left;
    return words_append(keys, r->keys, r->used * KEY) || words_append(counts, r->counts, r->used) ? NO_MEMORY : DONE;
}
