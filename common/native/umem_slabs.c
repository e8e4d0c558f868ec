/* libumem's slabs (umem_impl.h, umem.c and malloc.c of OpenSolaris' usr/src/lib/libumem/common): a
 * ring for each cache through its null slab; a slab counts its chunks and lists free buffers,
 * magazines others; malloc() puts a tag before blocks. Results: ../allocators/umem/engine.py. */
#include "umem_slabs.h"

#include <stdlib.h>

#define MAX_SLABS (UINT64_C(1) << 26)

enum { HASHED = 1, OWN = 2 }; /* also in ../allocators/umem/engine.py */
enum { LIST = 1, CORRUPT, FREE_LIST, NO_BUFFER, OUTSIDE, OVERLAPS };
enum { NOT_MINE = 1, IN_MAGAZINE, ON_LIST };

static int push_problem(words *wrong, uint64_t code, uint64_t of, uint64_t number, uint64_t value, uint64_t why, uint64_t count) {
    return PUSH_ALL(wrong, code, of, number, value, why, count);
}

/* ---- slabs ----------------------------------------------------------------------------------- */

typedef struct {
    const piece *pieces;
    uint64_t count;
    words *records, *wrong;
    words heads;     /* heads of the free lists, by slab */
    uint64_t chunks; /* in all records */
    uint64_t unclaimed;   /* bytes of memory less chunks: bounds the number of chunks */
} lister;

/* The first seven words of a slab: cache, base, next, prev, head, refcnt, chunks. */
#define SLAB_WORDS 7u
#define NEXT_SLAB 2u /* index of next */

static bool read_slab(const piece *pieces, uint64_t count, uint64_t address, uint64_t *fields) {
    uint8_t record[SLAB_WORDS * WORD];
    if (!copy_out(pieces, count, address, sizeof record, record))
        return false;
    for (unsigned at = 0; at < SLAB_WORDS; at++)
        fields[at] = load(record + at * WORD);
    return true;
}

static int add_slab(lister *l, const cache *c, uint64_t number, uint64_t address, const uint64_t *raw) {
    if (raw[0] != c->address || !raw[1] || !raw[6] || raw[6] > c->slabsize / c->chunksize || raw[6] > l->unclaimed)
        return push_problem(l->wrong, CORRUPT, number, 0, address, 0, 0);
    if (PUSH_ALL(l->records, address, raw[1], number, raw[6], raw[5], raw[3], l->chunks) || words_push(&l->heads, raw[4]))
        return NO_MEMORY;
    l->chunks += raw[6];
    l->unclaimed -= raw[6];
    return DONE;
}

/* A cache's ring of slabs, taken for intact. All rings side by side, so as to prefetch slabs. */
typedef struct {
    uint64_t address, steps;
    uint64_t noted, turn; /* Brent: a cycle without the null slab meets one noted at 2^n */
    const piece *now;     /* where the slab is */
    words found;          /* address of each slab, and what it holds */
    bool open, sound;
} ring;

/* Prefetch a ring's next slab, or close the ring. */
static void ring_look(const lister *l, ring *r, const cache *c) {
    r->open = false;
    if (!r->address || r->address % WORD || r->address == r->noted || r->steps >= MAX_SLABS)
        return;
    r->now = piece_holding(l->pieces, l->count, r->address);
    if (!r->now || !word_at(r->now, 1, r->address + 2 * WORD))
        return;
    const uint8_t *here = r->now->data + (r->address - r->now->address);
    if (r->address == c->nullslab)
        r->sound = load(here + 2 * WORD) == c->first;
    r->open = r->address != c->nullslab;
    __builtin_prefetch(here);
}

static int ring_step(const lister *l, ring *r, const cache *c) {
    uint64_t items[1 + SLAB_WORDS] = {r->address};
    if (!read_slab(r->now, 1, r->address, items + 1)) {
        r->open = false;
        return DONE;
    }
    if (words_append(&r->found, items, 1 + SLAB_WORDS))
        return NO_MEMORY;
    if (++r->steps == r->turn) {
        r->noted = r->address;
        r->turn *= 2;
    }
    r->address = items[1 + NEXT_SLAB];
    ring_look(l, r, c);
    return DONE;
}

static int walk_rings(const lister *l, ring *rings, const cache *caches, uint64_t count) {
    bool on = true;
    for (uint64_t at = 0; at < count; at++) {
        rings[at] = (ring){caches[at].first, 0, 0, 1, NULL, {NULL, 0, 0}, false, false};
        ring_look(l, &rings[at], &caches[at]);
    }
    while (on) {
        on = false;
        for (uint64_t at = 0; at < count; at++) {
            if (rings[at].open && ring_step(l, &rings[at], &caches[at]))
                return NO_MEMORY;
            on = on || rings[at].open;
        }
    }
    return DONE;
}

static int list_slabs(lister *l, const ring *r, const cache *c, uint64_t number) {
    int failed = DONE;
    for (uint64_t at = 0; !failed && r->sound && at < r->found.count; at += 1 + SLAB_WORDS)
        failed = add_slab(l, c, number, r->found.items[at], r->found.items + at + 1);
    if (r->sound)
        return failed;
    uint64_t head = c->first, raw[SLAB_WORDS];
    words nodes = {NULL, 0, 0};
    int why = follow_list(l->pieces, l->count, &head, NEXT_SLAB * WORD, false, MAX_SLABS, &nodes);
    failed = why < 0 ? why : DONE;
    if (!failed && (!nodes.count || nodes.items[nodes.count - 1] != c->nullslab))
        failed = push_problem(l->wrong, LIST, number, 0, head, (uint64_t)why, nodes.count);
    for (uint64_t at = 0; !failed && at < nodes.count; at++) {
        if (!read_slab(l->pieces, l->count, nodes.items[at], raw))
            raw[0] = ~c->address;
        if (nodes.items[at] != c->nullslab)
            failed = add_slab(l, c, number, nodes.items[at], raw);
    }
    free(nodes.items);
    return failed;
}

/* The state of the buffer of a free-list node; NULL if it is not in the slab. */
static uint8_t *state_of(const lister *l, const cache *c, const slab *s, uint64_t node, uint8_t *states, uint64_t *buffer) {
    uint64_t offset = c->flags & HASHED ? 0 : c->bufctl;
    *buffer = node;
    if (c->flags & HASHED) {
        uint8_t word[WORD];
        *buffer = copy_out(l->pieces, l->count, node + WORD, WORD, word) ? load(word) : 0;
    }
    if (*buffer < s->base || *buffer - s->base < offset)
        return NULL;
    uint64_t distance = *buffer - s->base - offset;
    return distance % c->chunksize || distance / c->chunksize >= s->chunks ? NULL : &states[s->first + distance / c->chunksize];
}

/* Mark the buffers on a slab's free list; false, with some marked, if it is damaged. */
static bool marked(const lister *l, const cache *c, const slab *s, uint64_t head, uint8_t *states) {
    uint64_t buffer;
    for (uint64_t node = head; node;) {
        uint8_t *state = node % WORD ? NULL : state_of(l, c, s, node, states, &buffer);
        const uint8_t *next = state && *state != FREE ? word_at(l->pieces, l->count, node) : NULL;
        if (!next)
            return false;
        *state = FREE;
        node = load(next);
    }
    return true;
}

/* The same, with problems reported. */
static int list_free(lister *l, const cache *c, const slab *s, uint64_t number, uint64_t head, uint8_t *states) {
    words nodes = {NULL, 0, 0};
    if (marked(l, c, s, head, states))
        return DONE;
    int why = follow_list(l->pieces, l->count, &head, 0, false, s->chunks, &nodes), failed = why < 0 ? why : DONE;
    if (why > 0)
        failed = push_problem(l->wrong, FREE_LIST, s->cache, number, head, (uint64_t)why, nodes.count);
    for (uint64_t at = 0; !failed && at < nodes.count; at++) {
        uint64_t buffer;
        uint8_t *state = state_of(l, c, s, nodes.items[at], states, &buffer);
        if (state)
            *state = FREE;
        else
            failed = push_problem(l->wrong, NO_BUFFER, s->cache, number, buffer, 0, 0);
    }
    free(nodes.items);
    return failed;
}

#define DIGIT 11u

/* Radix sort of slabs by base, stable; `spare` is as large. The result is `items` or `spare`. */
static user *by_base(user *items, user *spare, uint64_t count) {
    uint64_t low = UINT64_MAX, high = 0;
    for (uint64_t at = 0; at < count; at++) {
        low = items[at].base < low ? items[at].base : low;
        high = items[at].base > high ? items[at].base : high;
    }
    for (unsigned shift = 0; count && shift < 64 && (high - low) >> shift; shift += DIGIT) {
        uint64_t places[1u << DIGIT] = {0}, sum = 0;
        for (uint64_t at = 0; at < count; at++)
            places[(items[at].base - low) >> shift & ((1u << DIGIT) - 1)]++;
        for (unsigned digit = 0; digit < 1u << DIGIT; digit++) {
            uint64_t found = places[digit];
            places[digit] = sum;
            sum += found;
        }
        for (uint64_t at = 0; at < count; at++)
            spare[places[(items[at].base - low) >> shift & ((1u << DIGIT) - 1)]++] = items[at];
        user *other = items;
        items = spare;
        spare = other;
    }
    return items;
}

/* The program's slabs by base, without impossible ones. */
static int place(const cache *caches, const words *records, const range *regions, uint32_t region_count, words *users, words *wrong) {
    const slab *slabs = (const slab *)records->items;
    uint64_t count = records->count / (sizeof(slab) / sizeof(uint64_t)), found = 0, kept = 0;
    user *first = malloc((size_t)(count + 1) * sizeof *first), *second = malloc((size_t)(count + 1) * sizeof *second);
    for (uint64_t at = 0; first && second && at < count; at++)
        if (!(caches[slabs[at].cache].flags & OWN))
            first[found++] = (user){slabs[at].base, 0, at};
    user *placed = first && second ? by_base(first, second, found) : first;
    free(placed == first ? second : first);
    if (!first || !second) {
        free(placed);
        return NO_MEMORY;
    }
    int failed = DONE;
    for (uint64_t at = 0; !failed && at < found; at++) {
        user u = placed[at];
        const slab *s = &slabs[u.number];
        const range *region = range_holding(regions, region_count, u.base);
        /* at most the slab's size: list_slabs */
        uint64_t bytes = s->chunks * caches[s->cache].chunksize;
        if (!region || bytes > region->end - u.base || u.base % 8) {
            failed = push_problem(wrong, OUTSIDE, s->cache, u.number, 0, 0, 0);
            continue;
        }
        u.end = u.base + bytes;
        if (kept && u.base < placed[kept - 1].end)
            failed = push_problem(wrong, OVERLAPS, s->cache, u.number, placed[kept - 1].number, 0, 0);
        else
            placed[kept++] = u;
    }
    *users = (words){(uint64_t *)placed, kept * (sizeof(user) / sizeof(uint64_t)), 0};
    return failed;
}

/* Slabs to `records`, their caches' ends to `ends`; chunks' states to *states (free by fl_free),
 * *chunks of them; the program's slabs to `users`; six words a problem to `wrong`: code, cache,
 * slab, value, why a list ended, after how many nodes. */
API int fl_read_slabs(const piece *pieces, uint64_t count, const cache *caches, uint64_t cache_count, const range *regions,
                      uint32_t region_count, words *records, uint64_t *ends, uint8_t **states, uint64_t *chunks, words *users, words *wrong) {
    lister l = {pieces, count, records, wrong, {NULL, 0, 0}, 0, 0};
    int failed = DONE;
    for (uint32_t at = 0; at < region_count; at++)
        l.unclaimed += regions[at].end - regions[at].start;
    ring *rings = calloc((size_t)cache_count + 1, sizeof *rings);
    failed = rings ? walk_rings(&l, rings, caches, cache_count) : NO_MEMORY;
    for (uint64_t at = 0; !failed && at < cache_count; at++) {
        failed = list_slabs(&l, &rings[at], &caches[at], at);
        ends[at] = records->count / (sizeof(slab) / sizeof(uint64_t));
    }
    for (uint64_t at = 0; rings && at < cache_count; at++)
        free(rings[at].found.items);
    free(rings);
    if (!failed && !(*states = calloc((size_t)l.chunks + 1, 1)))
        failed = NO_MEMORY;
    *chunks = l.chunks;
    const slab *slabs = (const slab *)records->items;
    for (uint64_t at = 0; !failed && at < l.heads.count; at++)
        failed = list_free(&l, &caches[slabs[at].cache], &slabs[at], at, l.heads.items[at], *states);
    free(l.heads.items);
    return failed ? failed : place(caches, records, regions, region_count, users, wrong);
}

/* ---- magazines ------------------------------------------------------------------------------- */

/* Mark the buffers of cache `number`'s magazines; `wrong`: a code and the index in `buffers` of one
 * that does not exist or was marked before. */
API int fl_mark_cached(const cache *caches, const slab *slabs, const user *users, uint64_t user_count, uint8_t *states, uint64_t number,
                       const uint64_t *buffers, uint64_t count, words *wrong) {
    uint64_t size = caches[number].chunksize;
    for (uint64_t at = 0; at < count; at++) {
        uint64_t after = 0, code = 0;
        BISECT(after, user_count, middle, users[middle].base <= buffers[at])
        const user *u = after ? &users[after - 1] : NULL;
        if (!u || buffers[at] >= u->end || slabs[u->number].cache != number || (buffers[at] - u->base) % size) {
            code = NOT_MINE;
        } else {
            uint8_t *state = &states[slabs[u->number].first + (buffers[at] - u->base) / size];
            code = *state == CACHED ? IN_MAGAZINE : *state ? ON_LIST : 0;
            *state = *state ? *state : CACHED;
        }
        if (code && PUSH_ALL(wrong, code, at))
            return NO_MEMORY;
    }
    return DONE;
}
