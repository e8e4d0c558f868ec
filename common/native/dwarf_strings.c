/* Stores each name once: see intern() in dwarf.h. */
#include "dwarf.h"
#include <stdlib.h>

enum { MOST_NAME = UINT16_MAX, KNOWN = 1 << 13 };

static uint64_t hash_text(const uint8_t *text, uint64_t size) {
    uint64_t hash = size;
    for (; size >= 8; text += 8, size -= 8)
        hash = (hash ^ eight_bytes(text)) * UINT64_C(0x9e3779b97f4a7c15), hash ^= hash >> 29;
    for (; size; text++, size--)
        hash = (hash ^ *text) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

/* An entry of the table has the upper half of the hash, and the offset of the text. Thus the table
 * can grow without reading the texts. */
static uint64_t entry_of(uint64_t hash, uint64_t offset) { return hash >> 32 << 32 | offset; }

static uint64_t place_of(uint64_t entry, uint64_t slots) { return (entry >> 32) * UINT64_C(0x9e3779b97f4a7c15) >> 20 & (slots - 1); }

/* Enlarge the table so that it stays at least half empty. */
static int ready_table(string_pool *pool) {
    if (2 * pool->used < pool->slots)
        return DONE;
    uint64_t slots = pool->slots ? 2 * pool->slots : 1 << 12;
    uint64_t *table = calloc(slots, sizeof *table);
    if (!table)
        return NO_MEMORY;
    for (uint64_t i = 0; i < pool->slots; i++)
        if (pool->table[i]) {
            uint64_t at = place_of(pool->table[i], slots);
            while (table[at])
                at = (at + 1) & (slots - 1);
            table[at] = pool->table[i];
        }
    free(pool->table);
    pool->table = table;
    pool->slots = slots;
    return DONE;
}

static int append(string_pool *pool, bool scratch, const uint8_t *text, uint64_t size) {
    uint64_t *capacity = scratch ? &pool->scratch.capacity : &pool->text.capacity;
    uint64_t *count = scratch ? &pool->scratch.count : &pool->text.count;
    void *items = scratch ? (void *)&pool->scratch.items : (void *)&pool->text.items;
    while (*capacity < *count + size)
        if (!grow(items, *capacity, capacity, 1))
            return NO_MEMORY;
    memcpy((scratch ? pool->scratch.items : pool->text.items) + *count, text, size);
    *count += size;
    return DONE;
}

static int intern_whole(types *t, const uint8_t *text, uint64_t size, uint32_t *name) {
    string_pool *pool = &t->strings;
    if (ready_table(pool) != DONE)
        return NO_MEMORY;
    if (!pool->text.count && append(pool, false, (const uint8_t *)"", 1) != DONE)
        return NO_MEMORY;
    uint64_t sought = entry_of(hash_text(text, size), 0), at = place_of(sought, pool->slots);
    for (; pool->table[at]; at = (at + 1) & (pool->slots - 1)) {
        uint64_t offset = pool->table[at] & UINT32_MAX;
        const uint8_t *known = pool->text.items + offset;
        if (entry_of(pool->table[at], 0) == sought && size < pool->text.count - offset && !memcmp(known, text, size) && !known[size])
            break;
    }
    if (!pool->table[at]) {
        if (pool->text.count + size + 1 > UINT32_MAX)
            return DISORDER;
        pool->table[at] = sought | pool->text.count;
        pool->used++;
        if (append(pool, false, text, size) != DONE || append(pool, false, (const uint8_t *)"", 1) != DONE)
            return NO_MEMORY;
    }
    *name = (uint32_t)pool->table[at];
    return DONE;
}

/* Store scope::text. DISORDER if the names together exceed what files of this size have. */
static int intern_scoped(types *t, uint32_t scope, const uint8_t *text, uint64_t size, uint32_t *name) {
    string_pool *pool = &t->strings;
    pool->scratch.count = 0;
    if (scope) {
        const uint8_t *above = pool->text.items + scope;
        if (append(pool, true, above, strlen((const char *)above)) != DONE || append(pool, true, (const uint8_t *)"::", 2) != DONE)
            return NO_MEMORY;
    }
    if (append(pool, true, text, size) != DONE)
        return NO_MEMORY;
    if (pool->scratch.count > MOST_NAME)
        pool->scratch.count = MOST_NAME;
    if (pool->scratch.count > t->budget)
        return DISORDER;
    t->budget -= pool->scratch.count;
    return intern_whole(t, pool->scratch.items, pool->scratch.count, name);
}

int intern(types *t, uint32_t scope, const uint8_t *text, uint64_t most, uint32_t *name) {
    string_pool *pool = &t->strings;
    *name = 0;
    if (!most || !*text)
        return DONE;
    if (!pool->known && !(pool->known = calloc(KNOWN, sizeof *pool->known)))
        return NO_MEMORY;
    struct known_text *known = &pool->known[((uintptr_t)text * 31 + scope) % KNOWN];
    if (known->text == text && known->scope == scope) {
        *name = known->name;
        return DONE;
    }
    most = most < MOST_NAME ? most : MOST_NAME;
    const uint8_t *zero = memchr(text, 0, most);
    int code = intern_scoped(t, scope, text, zero ? (uint64_t)(zero - text) : most, name);
    if (code == DONE)
        *known = (struct known_text){text, scope, *name};
    return code;
}

int intern_below(types *t, uint32_t scope, uint32_t below, uint32_t *name) {
    const uint8_t *text = t->strings.text.items + below;
    *name = below ? below : scope;
    return scope && below ? intern_scoped(t, scope, text, strlen((const char *)text), name) : DONE;
}

/* Forget where texts were, before these sections are released. */
void forget_texts(string_pool *pool) {
    if (pool->known)
        memset(pool->known, 0, KNOWN * sizeof *pool->known);
}

void strings_free(string_pool *pool) {
    FREE_ALL(pool->table, pool->text.items, pool->scratch.items, pool->known);
}
