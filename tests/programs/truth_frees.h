/* Freed blocks in every kind of list that glibc has, and lost blocks to which only freed blocks refer. */
#ifndef TRUTH_FREES_H
#define TRUTH_FREES_H
#include "truth.h"
#include "truth_shapes.h"

/* A block that will be freed. After the allocator's links, it still contains
 * a reference to a lost block. The lost block refers to another block. */
static NOINLINE void prepare(struct rng *r, hidden *list, unsigned *count, size_t size) {
    if (*count == MAX_FREES) return;
    struct block b = {malloc(size), size, 0};
    fill(b.p, malloc_usable_size(b.p));
    if (size >= 40) {
        struct block only = make(r, 32), next = make(r, 24);
        *((void *volatile *)b.p + 4) = only.p;
        link_to(r, only, 0, next.p);
        note_definite(only, "from-freed");
        note_indirect(next, only, "from-freed");
    }
    /* Its neighbour stays in use: freed blocks do not merge. malloc's bins refer to the header of the freed one, which overlaps
     * the last word of the block before it. */
    struct block guard = make(r, 24 + draw(r, 40));
    note_definite(guard, "beside-freed");
    list[(*count)++] = hide(b.p);
}

static NOINLINE void prepare_frees(struct thread *me, struct rng *r) {
    static const size_t in_fastbins[] = {24, 40, 72, 104, 120}, small[] = {200, 504, 1000}, large[] = {1500, 3000, 9000, 20000};
    note_definite(make(r, 24), "beside-freed");
    for (unsigned k = 0; k < 5; k++)
        for (int i = 0; i < 20; i++) prepare(r, me->cache_frees, &me->cache_count, in_fastbins[k]);
    for (unsigned k = 0; k < 3; k++)
        for (int i = 0; i < 20; i++) prepare(r, me->bin_frees, &me->bin_count, small[k]);
    for (unsigned k = 0; k < 4; k++)
        for (int i = 0; i < 3; i++) prepare(r, me->bin_frees, &me->bin_count, large[k] + 16 * draw(r, 8));
    for (int i = 0; i < 2; i++) prepare(r, me->cache_frees, &me->cache_count, 2000); /* these blocks stay in the unsorted bin */
}

static NOINLINE void free_to_bins(struct thread *me) {
    for (unsigned i = 0; i < me->bin_count; i++)
        free_and_note((struct block){reveal(me->bin_frees[i]), 0, 0}, "bin-freed");
    /* A request that is larger than all of them moves them to their bins. */
    struct block b = {calloc(1, 100000), 100000, 0};
    memset(b.p, 0, malloc_usable_size(b.p)); /* calloc clears only the requested bytes */
    note_definite(b, "sorter");
}

static NOINLINE void free_to_caches(struct thread *me) {
    for (unsigned i = 0; i < me->cache_count; i++)
        free_and_note((struct block){reveal(me->cache_frees[i]), 0, 0}, "cache-freed");
}

/* ---- between threads ----------------------------------------------------------------------------------------------- */

static NOINLINE void give(struct thread *me, struct rng *r) {
    for (int i = 0; i < 4; i++) me->given[i] = hide(make(r, 88).p);
}

/* Hold, lose and refer to blocks of another thread's arena. */
static NOINLINE void take(struct thread *me, struct thread *from, struct rng *r) {
    struct block lost = {reveal(from->given[0]), 88, 0}, held = {reveal(from->given[1]), 88, 0}, linked = {reveal(from->given[2]), 88, 0};
    struct block leader = make_any(r), parent = make_any(r);
    link_to(r, leader, 0, lost.p);
    note_definite(leader, "cross-arena");
    note_indirect(lost, leader, "cross-arena");
    me->global[GLOBAL_GIVEN] = held.p;
    note_reachable(held, "cross-arena");
    root(parent.p);
    note_reachable(parent, "cross-arena");
    link_to(r, parent, 2, linked.p);
    note_reachable(linked, "cross-arena");
    from->given[0] = from->given[1] = from->given[2] = 0;
}

/* Freed by a thread that did not allocate it: it goes to the cache of the thread that freed it. */
static NOINLINE void free_others(struct thread *from) {
    free_and_note((struct block){reveal(from->given[3]), 0, 0}, "freed-by-another");
}

#endif
