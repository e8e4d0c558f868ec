/* Roots that reach the memory that several roots retain together.
 *
 * A *top* is a root, or a block that no single root or block dominates. An edge leads from a top to
 * a block if it begins in memory that the top retains. The edges are followed backwards, which
 * completes strongly connected components (R. Tarjan, "Depth-first search and linear graph
 * algorithms", 1972) before those that they lead to: so each set of roots is the union of known
 * sets. Time is proportional to the number of places and edges. Memory: 4 bytes for each place, 24
 * for each top, and 4 for each edge. */
#include "dominators.h"

#include <stdlib.h>

#define MOST 4u /* roots of a set; also in ../engine/dominators.py */
#define NO_SET 0u /* numbers of sets: no roots, and more than MOST */
#define MANY_ROOTS 1u /* also: a root below `first` */
#define COMPLETE UINT32_MAX /* instead of a number: the top's component is complete */
#define PHASES 4u

typedef struct {
    uint32_t roots[MOST], count; /* ascending */
    uint64_t bytes; /* retained by the blocks that exactly these roots reach */
} root_set;

typedef struct shared_roots {
    const dominators *d;
    uint32_t first, behind; /* the eligible roots: [first, behind) */
    const uint32_t *roots, *referred; /* the caller's: references from roots */
    uint64_t references, reference, at;
    unsigned phase;
    uint32_t *ranks; /* by place: number of its top */
    uint32_t *places; /* by rank: place of the top */
    uint32_t tops, end; /* number of tops; `end`: first place behind the subtree of the last one */
    uint32_t *firsts, *sources; /* by rank: the tops with an edge to it */
    uint32_t *numbers, *lows, *sets; /* by rank */
    uint32_t number;
    LIST(frame) frames;
    LIST(uint32_t) open; /* tops whose component is not complete */
    LIST(root_set) found;
    uint32_t *table; /* hash table of sets */
    uint64_t mask;
} shared_roots;

API void fl_shared_roots_free(shared_roots *s) {
    FREE_ALL(s->ranks, s->places, s->firsts, s->sources, s->numbers, s->lows, s->sets, s->frames.items, s->open.items, s->found.items, s->table, s);
}

/* `roots` and `referred`: references from roots to blocks. Both arrays must outlive the
 * computation. */
API shared_roots *fl_shared_roots_new(const dominators *d, uint32_t first, uint32_t behind, const uint32_t *roots, const uint32_t *referred, uint64_t references) {
    shared_roots *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->d = d;
    s->first = first;
    s->behind = behind;
    s->roots = roots;
    s->referred = referred;
    s->references = references;
    s->at = s->end = 1;
    s->mask = 255;
    s->ranks = malloc(((size_t)d->count + 1) * sizeof *s->ranks);
    s->places = malloc(((size_t)d->count + 1) * sizeof *s->places);
    s->table = calloc(s->mask + 1, sizeof *s->table);
    if (!s->ranks || !s->places || !s->table || PUSH(s->found, (root_set){{0}, 0, 0}) || PUSH(s->found, (root_set){{0}, MOST + 1, 0})) {
        fl_shared_roots_free(s);
        return NULL;
    }
    return s;
}

INLINE bool is_root(const shared_roots *s, uint32_t rank) { return s->d->nodes[s->places[rank]] & ROOT_NODE; }

static int number_tops(shared_roots *s, int64_t *budget) {
    const dominators *d = s->d;
    for (; s->at < d->count; s->at++) {
        if (--*budget < 0)
            return 1;
        if (s->at == s->end) {
            s->end += count_at(d, s->end);
            s->places[s->tops++] = (uint32_t)s->at;
        }
        s->ranks[s->at] = s->tops - 1;
    }
    s->firsts = calloc((size_t)s->tops + 2, sizeof *s->firsts);
    s->numbers = calloc((size_t)s->tops + 1, sizeof *s->numbers);
    s->lows = calloc((size_t)s->tops + 1, sizeof *s->lows);
    s->sets = calloc((size_t)s->tops + 1, sizeof *s->sets);
    s->at = 1;
    return s->firsts && s->numbers && s->lows && s->sets ? DONE : NO_MEMORY;
}

/* Return the rank of a block that is a top; NONE for another one. A block in a leaf tree has one
 * reference, so it is none. */
INLINE uint32_t top_of(const shared_roots *s, uint32_t index) {
    const dominators *d = s->d;
    if (is_left_out(d, index))
        return NONE;
    uint32_t place = place_of_block(d, index, 0);
    return place < BARRED && s->places[s->ranks[place]] == place ? s->ranks[place] : NONE;
}

/* Count an edge to a block, or record it (`records`), if it leads from one top to another. First,
 * firsts[rank + 2] is the number of edges to a top. Later, firsts[rank + 1] is where they begin,
 * and finally where they end. */
INLINE void meet(shared_roots *s, uint32_t target, uint32_t node, uint32_t from, bool records) {
    uint32_t rank = top_of(s, target);
    if (rank == NONE || rank == from || edge_ignored(s->d, target, node))
        return;
    if (records)
        s->sources[s->firsts[rank + 1]++] = from;
    else
        s->firsts[rank + 2]++;
}

/* Only `outward` blocks may have edges to other tops. */
INLINE int meet_all(shared_roots *s, int64_t *budget, bool records) {
    const dominators *d = s->d;
    while (s->at < d->count) {
        if (--*budget < 0)
            return 1;
        uint64_t bits = d->outward[s->at >> 6] >> (s->at & 63);
        s->at = bits ? s->at + (uint32_t)__builtin_ctzll(bits) : (s->at | 63) + 1;
        if (!bits || s->at >= d->count)
            continue;
        uint32_t node = d->nodes[s->at], count, from = s->ranks[s->at++];
        if (node & ROOT_NODE)
            continue;
        for (const uint32_t *edge = d->g->edges + edges_of(d->g, node, &count), *end = edge + count; edge < end; edge++, --*budget)
            meet(s, *edge >> INDEX_SHIFT, node, from, records);
    }
    for (; s->reference < s->references; s->reference++) {
        if (--*budget < 0)
            return 1;
        uint32_t root = s->roots[s->reference];
        meet(s, s->referred[s->reference], ROOT_NODE | root, s->ranks[d->places[root]], records);
    }
    s->at = 1;
    s->reference = 0;
    return DONE;
}

static int count_edges(shared_roots *s, int64_t *budget) {
    if (meet_all(s, budget, false))
        return 1;
    for (uint32_t rank = 0; rank < s->tops; rank++)
        s->firsts[rank + 2] += s->firsts[rank + 1];
    s->sources = malloc(((size_t)s->firsts[s->tops + 1] + 1) * sizeof *s->sources);
    return s->sources ? DONE : NO_MEMORY;
}

static int record_edges(shared_roots *s, int64_t *budget) {
    if (meet_all(s, budget, true))
        return 1;
    s->at = 0;
    return DONE;
}

static uint32_t *entry_of(const shared_roots *s, const root_set *set) {
    uint64_t hash = set->count;
    for (uint32_t each = 0; each < set->count; each++)
        hash = (hash ^ set->roots[each]) * UINT64_C(0x9E3779B97F4A7C15);
    for (uint64_t at = hash >> 20;; at++) {
        uint32_t *entry = &s->table[at & s->mask];
        if (!*entry || !memcmp(s->found.items[*entry].roots, set->roots, sizeof set->roots))
            return entry;
    }
}

/* Return the number of a set; NONE if out of memory. */
static uint32_t number_of_set(shared_roots *s, const root_set *set) {
    uint32_t *entry = entry_of(s, set);
    if (*entry)
        return *entry;
    if (s->found.count > s->mask / 2) {
        uint32_t *wider = calloc(s->mask * 4 + 4, sizeof *wider);
        if (!wider)
            return NONE;
        free(s->table);
        s->table = wider;
        s->mask = s->mask * 4 + 3;
        for (uint32_t each = 2; each < s->found.count; each++)
            *entry_of(s, &s->found.items[each]) = each;
        entry = entry_of(s, set);
    }
    *entry = (uint32_t)s->found.count;
    return PUSH(s->found, *set) ? NONE : *entry;
}

/* Return the number of the union of two sets; NONE if out of memory. */
static uint32_t unite(shared_roots *s, uint32_t one, uint32_t other) {
    if (one == other || other == NO_SET || one == MANY_ROOTS)
        return one;
    if (one == NO_SET || other == MANY_ROOTS)
        return other;
    const root_set *a = &s->found.items[one], *b = &s->found.items[other];
    root_set made = {{0}, 0, 0};
    for (uint32_t left = 0, right = 0; left < a->count || right < b->count;) {
        uint32_t mine = left < a->count ? a->roots[left] : NONE, its = right < b->count ? b->roots[right] : NONE;
        if (made.count == MOST)
            return MANY_ROOTS;
        made.roots[made.count++] = mine < its ? mine : its;
        left += mine <= its;
        right += its <= mine;
    }
    return number_of_set(s, &made);
}

static int add(shared_roots *s, uint32_t rank, uint32_t set) {
    set = unite(s, s->sets[rank], set);
    s->sets[rank] = set;
    return set == NONE ? NO_MEMORY : DONE;
}

static int open_top(shared_roots *s, uint32_t rank) {
    s->numbers[rank] = s->lows[rank] = ++s->number;
    return PUSH(s->open, rank) || PUSH(s->frames, (frame){s->firsts[rank], rank}) ? NO_MEMORY : DONE;
}

/* Handle an edge from `source` to `rank`. */
static int follow(shared_roots *s, uint32_t rank, uint32_t source) {
    if (is_root(s, source)) {
        root_set single = {{s->d->nodes[s->places[source]] & ~ROOT_NODE}, 1, 0};
        if (single.roots[0] < s->first || single.roots[0] >= s->behind)
            return add(s, rank, single.roots[0] < s->first ? MANY_ROOTS : NO_SET);
        uint32_t set = number_of_set(s, &single);
        return set == NONE ? NO_MEMORY : add(s, rank, set);
    }
    if (!s->numbers[source])
        return open_top(s, source);
    if (s->numbers[source] == COMPLETE)
        return add(s, rank, s->sets[source]);
    s->lows[rank] = s->numbers[source] < s->lows[rank] ? s->numbers[source] : s->lows[rank];
    return DONE;
}

/* All edges to a top were followed. If this completes its component, all tops of the component get
 * the same set. */
static int close_top(shared_roots *s, uint32_t rank) {
    s->frames.count--;
    if (s->lows[rank] == s->numbers[rank]) {
        uint32_t member;
        do {
            member = s->open.items[--s->open.count];
            s->sets[member] = s->sets[rank];
            s->numbers[member] = COMPLETE;
            s->found.items[s->sets[rank]].bytes += bytes_at(s->d, s->places[member]);
        } while (member != rank);
    }
    if (!s->frames.count)
        return DONE;
    uint32_t above = s->frames.items[s->frames.count - 1].number;
    if (s->numbers[rank] != COMPLETE && s->lows[rank] < s->lows[above])
        s->lows[above] = s->lows[rank];
    return add(s, above, s->sets[rank]);
}

static int unite_sets(shared_roots *s, int64_t *budget) {
    int failed = DONE;
    while (!failed) {
        if (--*budget < 0)
            return 1;
        if (s->frames.count) {
            frame *top = &s->frames.items[s->frames.count - 1];
            uint32_t rank = top->number;
            failed = top->next < s->firsts[rank + 1] ? follow(s, rank, s->sources[top->next++]) : close_top(s, rank);
        } else if (s->at == s->tops) {
            return DONE;
        } else {
            uint32_t rank = (uint32_t)s->at++;
            failed = is_root(s, rank) || s->numbers[rank] ? DONE : open_top(s, rank);
        }
    }
    return failed;
}

/* Return 1 if work is left; 0 if the sets are complete. */
API int fl_shared_roots_compute(shared_roots *s, int64_t budget) {
    static int (*const phases[PHASES])(shared_roots *, int64_t *) = {number_tops, count_edges, record_edges, unite_sets};
    for (; s->phase < PHASES; s->phase++) {
        int more = phases[s->phase](s, &budget);
        if (more)
            return more;
    }
    return DONE;
}

/* Return for each set its bytes, the number of its roots, and MOST roots. The caller frees them
 * with fl_free. */
API int fl_shared_roots_sets(const shared_roots *s, words *found) {
    int failed = DONE;
    for (uint32_t each = 2; each < s->found.count && !failed; each++) {
        const root_set *set = &s->found.items[each];
        if (set->bytes)
            failed = PUSH_ALL(found, set->bytes, set->count, set->roots[0], set->roots[1], set->roots[2], set->roots[3]);
    }
    return failed;
}
