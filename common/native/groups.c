/* Groups of leaked blocks (definite ones, and heads of possible ones), or of all blocks in use
 * with a known type. Blocks with a label are grouped by kind and label. Others are grouped by
 * kind, first word (if it identifies the type), else the caller's mark, size, cycle length, and
 * whether indirect blocks are counted under them. A cycle has the word and size of the block that
 * represents it. */
#include "lost.h"
#include "possible.h"

#include "threads.h"

#include <stdlib.h>

#define BYTES UINT64_C(0x0101010101010101) /* times a byte: eight of them */
#define EXAMPLES 3u
#define MARK 0xFFFFFFu /* bits of a mark that count: see terms.py, mark_of */
#define WEAK_MARK 0xF000000u
#define COUNTED (1u << 15) /* blocks that a thread counts at a time */

/* ../engine/terms.py: Group. */
typedef struct {
    uint64_t kind, type_word, size, cycle, blocks, bytes, indirect_blocks, indirect_bytes, least, most, examples[EXAMPLES], largest, label, mark;
} group;

/* Groups that one thread counts. */
typedef struct {
    LIST(group) items;
    uint32_t *places; /* a hash table of indices into items, plus 1 */
    uint64_t place_mask;
    uint32_t known;
    uint64_t known_start; /* address of the block `known` */
} counted;

typedef struct grouping {
    const graph *g;
    const range *types; /* the caller's */
    uint32_t type_count;
    const uint32_t *marks; /* the caller's, by block; NULL: none */
    bool typed; /* all blocks in use whose type is known, instead of the leaked ones */
    uint32_t next; /* blocks from this index on are not counted yet */
    uint64_t fed;
    const piece *piece; /* that the blocks being counted start in */
    counted *threads;
    unsigned thread_count; /* of the blocks, which may be freed before this */
    _Atomic int failed;
} grouping;

API void fl_groups_free(grouping *s) {
    for (unsigned thread = 0; s->threads && thread < s->thread_count; thread++)
        FREE_ALL(s->threads[thread].items.items, s->threads[thread].places);
    FREE_ALL(s->threads, s);
}

API grouping *fl_groups_new(const graph *g, const range *types, uint32_t type_count, bool typed, const uint32_t *marks) {
    grouping *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (grouping){.g = g, .types = types, .type_count = type_count, .typed = typed, .marks = marks, .thread_count = g->b->threads};
    if (!(s->threads = calloc(s->thread_count, sizeof *s->threads))) {
        free(s);
        return NULL;
    }
    return s;
}

static uint64_t hash(const group *key) {
    if (key->label != NONE)
        return (key->label << 3 | key->kind) * UINT64_C(0xD6E8FEB86659FD93) >> 20;
    uint64_t h = key->type_word * UINT64_C(0x9E3779B97F4A7C15) ^ key->size * UINT64_C(0xC2B2AE3D27D4EB4F);
    h += key->mark * UINT64_C(0x27D4EB2F165667C5);
    h ^= (key->cycle << 4 | (uint64_t)(key->most > 0) << 3 | key->kind) * UINT64_C(0x165667B19E3779F9);
    h ^= h >> 32;
    h *= UINT64_C(0xD6E8FEB86659FD93);
    return h ^ h >> 32;
}

static int grow_table(counted *c) {
    uint64_t mask = c->places ? c->place_mask * 4 + 3 : 1023;
    uint32_t *places = calloc(mask + 1, sizeof *places);
    if (!places)
        return NO_MEMORY;
    for (uint64_t at = 0; at < c->items.count; at++) {
        uint64_t place = hash(&c->items.items[at]) & mask;
        while (places[place])
            place = (place + 1) & mask;
        places[place] = (uint32_t)at + 1;
    }
    free(c->places);
    c->places = places;
    c->place_mask = mask;
    return DONE;
}

static bool same_key(const group *one, const group *other) {
    if (one->kind != other->kind || one->label != other->label)
        return false;
    return one->label != NONE ||
           (one->type_word == other->type_word && one->mark == other->mark && one->size == other->size && one->cycle == other->cycle && (one->most > 0) == (other->most > 0));
}

/* Return the group with this key, created if necessary; NULL if out of memory. */
static group *group_of(counted *c, const group *key) {
    if ((!c->places || c->items.count > c->place_mask / 2) && grow_table(c))
        return NULL;
    uint64_t place = hash(key) & c->place_mask;
    for (; c->places[place]; place = (place + 1) & c->place_mask) {
        group *found = &c->items.items[c->places[place] - 1];
        if (same_key(found, key))
            return found;
    }
    if (PUSH(c->items, *key))
        return NULL;
    c->places[place] = (uint32_t)c->items.count;
    return &c->items.items[c->items.count - 1];
}

/* Keep the lowest addresses, ascending. */
static void add_example(group *to, uint64_t start) {
    uint64_t count = to->blocks < EXAMPLES ? to->blocks : EXAMPLES;
    if (count == EXAMPLES && start > to->examples[EXAMPLES - 1])
        return;
    uint64_t at = count < EXAMPLES ? count : EXAMPLES - 1;
    for (; at && to->examples[at - 1] > start; at--)
        to->examples[at] = to->examples[at - 1];
    to->examples[at] = start;
}

/* Extend the ranges of `to` by those of `from`, which has the same key. */
static void widen(group *to, const group *from) {
    to->size = from->size < to->size ? from->size : to->size;
    to->largest = from->largest > to->largest ? from->largest : to->largest;
    to->cycle = from->cycle == to->cycle ? to->cycle : 0;
    to->least = from->least < to->least ? from->least : to->least;
    to->most = from->most > to->most ? from->most : to->most;
}

static int add(const grouping *s, counted *c, uint32_t index, uint64_t start, uint64_t type_word) {
    const graph *g = s->g;
    group key = {.type_word = type_word, .size = size_of(g->b, index), .kind = g->kinds[index], .cycle = 1, .label = NONE};
    uint64_t own = key.size, hanging = 0, bytes = 0;
    if (s->typed && !type_word)
        return DONE;
    uint32_t shown = index;
    if (key.kind == DEFINITE && !s->typed) {
        uint32_t number = g->lost->low[place_of(g->lost, index)];
        const leak_head *leads = &g->lost->leak_heads.items[number];
        const cycle *of = leads->cycle > 1 && g->lost->represented ? cycle_of(g->lost, number) : NULL;
        if (of) {
            shown = g->lost->indices[of->shown];
            key.size = size_of(g->b, shown);
            key.type_word = of->type_word;
            start = of->address ? of->address : block_address(g->b, shown);
        }
        key.cycle = leads->cycle;
        hanging = leads->hanging;
        bytes = leads->bytes;
    }
    if (key.kind == POSSIBLE && !s->typed && !g->possible->flat) {
        const head *leads = head_of(g, index);
        if (!leads) /* counted under one */
            return DONE;
        hanging = leads->hanging;
        bytes = leads->bytes;
    }
    if (!s->typed && label_of(g, index) != NONE) {
        key.label = label_of(g, index);
        key.type_word = 0;
    }
    if (s->marks && key.label == NONE && !(key.type_word && (s->marks[shown] & WEAK_MARK) == 1u << 24)) {
        key.mark = s->marks[shown] & MARK;
        key.type_word = key.mark ? 0 : key.type_word;
    }
    key.largest = key.size;
    key.least = key.most = hanging;
    group *of = group_of(c, &key);
    if (!of)
        return NO_MEMORY;
    add_example(of, start);
    widen(of, &key);
    of->blocks++;
    of->bytes += own;
    of->indirect_blocks += hanging;
    of->indirect_bytes += bytes;
    return DONE;
}

/* The lowest addresses of two lists of examples, ascending. */
static void join_examples(group *to, const group *from) {
    uint64_t joined[EXAMPLES] = {0}, own = to->blocks < EXAMPLES ? to->blocks : EXAMPLES, others = from->blocks < EXAMPLES ? from->blocks : EXAMPLES;
    for (uint64_t at = 0, first = 0, second = 0; at < EXAMPLES && (first < own || second < others); at++) {
        bool take = second == others || (first < own && to->examples[first] < from->examples[second]);
        joined[at] = take ? to->examples[first++] : from->examples[second++];
    }
    memcpy(to->examples, joined, sizeof joined);
}

static int join_groups(counted *to, const counted *from) {
    for (uint64_t at = 0; at < from->items.count; at++) {
        const group *one = &from->items.items[at];
        group key = *one;
        key.blocks = key.bytes = key.indirect_blocks = key.indirect_bytes = 0;
        group *of = group_of(to, &key);
        if (!of)
            return NO_MEMORY;
        join_examples(of, one);
        widen(of, one);
        of->blocks += one->blocks;
        of->bytes += one->bytes;
        of->indirect_blocks += one->indirect_blocks;
        of->indirect_bytes += one->indirect_bytes;
    }
    return DONE;
}

/* Return the next block to count from `index` on; `end` if there is none. */
INLINE uint32_t next_counted(const grouping *s, uint32_t index, uint32_t end) {
    const uint8_t *kinds = s->g->kinds, *states = s->g->b->states;
    if (s->typed) {
        while (index < end && states[index] != IN_USE)
            index++;
        return index;
    }
    while (index < end && kinds[index] != POSSIBLE && kinds[index] != DEFINITE)
        index += index + 8 <= end && eight_bytes(kinds + index) == REACHABLE * BYTES ? 8 : 1;
    return index;
}

static void count_some(void *context, unsigned thread, uint64_t first, uint64_t end) {
    grouping *s = context;
    counted *c = &s->threads[thread];
    uint32_t base = s->next, last = base + (uint32_t)end, index = next_counted(s, base + (uint32_t)first, last);
    for (; index < last && !s->failed; index = next_counted(s, index + 1, last)) {
        bool follows = c->known_start && c->known + 1 == index;
        c->known_start = follows ? start_after(s->g->b, c->known_start, index) : block_address(s->g->b, index);
        c->known = index;
        if (add(s, c, index, c->known_start, type_word_at(s->g->b, s->piece, s->types, s->type_count, index, c->known_start)))
            s->failed = NO_MEMORY;
    }
}

/* Count the blocks up to number `end`. Blocks that start in the piece have readable contents. */
static int count_up_to(grouping *s, uint32_t end, const piece *p) {
    s->piece = p;
    if (end > s->next) {
        run_in_parts(s->thread_count, end - s->next, COUNTED, count_some, s);
        s->next = end;
    }
    s->piece = NULL;
    return s->failed;
}

/* Count the blocks that start in this piece, and those before it, which are in no piece. Pieces
 * ascend. */
API int fl_groups_feed(grouping *s, const piece *p) {
    if (p->address < s->fed)
        return DISORDER;
    s->fed = p->length < UINT64_MAX - p->address ? p->address + p->length : UINT64_MAX;
    return count_up_to(s, block_at_or_after(s->g->b, s->fed), p);
}

/* Count the remaining blocks. Returns the words of all groups, unordered. */
API int fl_groups_finish(grouping *s, words *found) {
    int failed = s->typed ? s->failed : count_up_to(s, s->g->count, NULL);
    for (unsigned thread = 1; thread < s->thread_count && !failed; thread++)
        failed = join_groups(&s->threads[0], &s->threads[thread]);
    if (failed)
        return failed;
    return words_append(found, (const uint64_t *)s->threads[0].items.items, s->threads[0].items.count * sizeof(group) / sizeof(uint64_t));
}
