/* Groups of lost blocks: by kind, first word (where it identifies the type), size, cycle length,
 * and whether indirect blocks are counted under them. Or of all blocks in use of a known type. */
#include "lost.h"

#include <stdlib.h>

#define BYTES UINT64_C(0x0101010101010101) /* times a byte: eight of them */

/* ../engine/terms.py: Group. */
typedef struct {
    uint64_t kind, type_word, size, cycle, blocks, bytes, indirect_blocks, indirect_bytes, least, most, examples[3];
} group;

typedef struct {
    const graph *g;
    const range *types; /* the caller's */
    uint32_t type_count;
    bool typed; /* all blocks in use whose type is known, not the lost ones */
    uint32_t next; /* blocks from here on are not counted yet */
    uint32_t known;
    uint64_t known_start; /* address of the block `known` */
    uint64_t fed;
    LIST(group) items;
    uint32_t *places; /* a hash table of indices into items, plus 1 */
    uint64_t place_mask;
} grouping;

API void fl_groups_free(grouping *s) {
    FREE_ALL(s->items.items, s->places, s);
}

API grouping *fl_groups_new(const graph *g, const range *types, uint32_t type_count, bool typed) {
    grouping *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (grouping){.g = g, .types = types, .type_count = type_count, .typed = typed, .known = NONE, .place_mask = 1023};
    s->places = calloc(s->place_mask + 1, sizeof *s->places);
    if (!s->places) {
        free(s);
        return NULL;
    }
    return s;
}

static uint64_t hash(const group *key) {
    uint64_t h = key->type_word * UINT64_C(0x9E3779B97F4A7C15) ^ key->size * UINT64_C(0xC2B2AE3D27D4EB4F);
    h ^= (key->cycle << 4 | (uint64_t)(key->most > 0) << 3 | key->kind) * UINT64_C(0x165667B19E3779F9);
    h ^= h >> 32;
    h *= UINT64_C(0xD6E8FEB86659FD93);
    return h ^ h >> 32;
}

static int grow_table(grouping *s) {
    uint64_t mask = s->place_mask * 4 + 3;
    uint32_t *places = calloc(mask + 1, sizeof *places);
    if (!places)
        return NO_MEMORY;
    for (uint64_t at = 0; at < s->items.count; at++) {
        uint64_t place = hash(&s->items.items[at]) & mask;
        while (places[place])
            place = (place + 1) & mask;
        places[place] = (uint32_t)at + 1;
    }
    free(s->places);
    s->places = places;
    s->place_mask = mask;
    return DONE;
}

/* The group of this key, created if need be; NULL without memory. */
static group *group_of(grouping *s, const group *key) {
    if (s->items.count > s->place_mask / 2 && grow_table(s))
        return NULL;
    uint64_t place = hash(key) & s->place_mask;
    for (; s->places[place]; place = (place + 1) & s->place_mask) {
        group *found = &s->items.items[s->places[place] - 1];
        if (found->type_word == key->type_word && found->size == key->size && found->cycle == key->cycle && found->kind == key->kind &&
            (found->most > 0) == (key->most > 0))
            return found;
    }
    if (PUSH(s->items, *key))
        return NULL;
    s->places[place] = (uint32_t)s->items.count;
    return &s->items.items[s->items.count - 1];
}

static int add(grouping *s, uint32_t index, uint64_t start, uint64_t type_word) {
    const graph *g = s->g;
    group key = {.type_word = type_word, .size = size_of(g->b, index), .kind = g->kinds[index], .cycle = 1, .least = NONE};
    uint64_t hanging = 0, bytes = 0;
    if (s->typed && !type_word)
        return DONE;
    if (key.kind == DEFINITE && !s->typed) {
        const leader *leads = &g->lost->leaders.items[g->lost->low[place_of(g->lost, index)]];
        key.cycle = leads->cycle;
        hanging = leads->hanging;
        bytes = leads->bytes;
    }
    key.most = hanging;
    group *of = group_of(s, &key);
    if (!of)
        return NO_MEMORY;
    if (of->blocks < 3)
        of->examples[of->blocks] = start;
    of->blocks++;
    of->bytes += key.size;
    of->indirect_blocks += hanging;
    of->indirect_bytes += bytes;
    of->least = hanging < of->least ? hanging : of->least;
    of->most = hanging > of->most ? hanging : of->most;
    return DONE;
}

static bool counts(const grouping *s, uint32_t index) {
    uint8_t kind = s->g->kinds[index];
    return s->typed ? s->g->b->states[index] == IN_USE : kind == POSSIBLE || kind == DEFINITE;
}

/* The start of the next block to count; false if there is none. */
static bool next_counted(grouping *s, uint64_t *start) {
    const graph *g = s->g;
    while (s->next < g->count && !counts(s, s->next))
        s->next += !s->typed && s->next + 8 <= g->count && eight_bytes(g->kinds + s->next) == REACHABLE * BYTES ? 8 : 1;
    if (s->next == g->count)
        return false;
    if (s->known != s->next) {
        bool follows = s->known != NONE && s->known + 1 == s->next;
        s->known_start = follows ? start_after(g->b, s->known_start, s->next) : block_address(g->b, s->next);
        s->known = s->next;
    }
    *start = s->known_start;
    return true;
}

/* Count the blocks that start in this piece, and those before in none. Pieces ascend. */
API int fl_groups_feed(grouping *s, const piece *p) {
    uint64_t start;
    if (p->address < s->fed)
        return DISORDER;
    s->fed = p->length < UINT64_MAX - p->address ? p->address + p->length : UINT64_MAX;
    while (next_counted(s, &start)) {
        uint64_t offset = start - p->address, type_word = 0;
        if (start >= p->address) {
            if (offset >= p->length)
                break;
            if (start % WORD == 0 && p->length - offset >= WORD && size_of(s->g->b, s->next) >= WORD)
                type_word = load(p->data + offset);
        }
        if (add(s, s->next, start, type_word && in_ranges(s->types, s->type_count, type_word) ? type_word : 0))
            return NO_MEMORY;
        s->next++;
    }
    return DONE;
}

/* Count the rest; the words of all groups, unordered. */
API int fl_groups_finish(grouping *s, words *found) {
    uint64_t start;
    for (; !s->typed && next_counted(s, &start); s->next++)
        if (add(s, s->next, start, 0))
            return NO_MEMORY;
    return words_append(found, (const uint64_t *)s->items.items, s->items.count * sizeof(group) / sizeof(uint64_t));
}
