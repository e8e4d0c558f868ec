/* Blocks that refer to each other in every shape. A global variable, an interior pointer, or nothing holds them. */
#ifndef TRUTH_SHAPES_H
#define TRUTH_SHAPES_H
#include "truth.h"

#define MAX_THREADS 64
#define LEAVERS 2
#define MAX_FREES 512

enum { GLOBAL_HEAPS, GLOBAL_GIVEN, GLOBAL_LEAVER, GLOBAL_OTHER };

/* The addresses that a thread stores: as pointers in `global` (several pointers form a chain of blocks), elsewhere complemented. */
struct thread {
    unsigned index;
    struct rng rng;
    void *volatile global[GLOBAL_OTHER + 4];
    hidden in[9], held[4], dead[8], given[4];
    hidden bin_frees[MAX_FREES], cache_frees[MAX_FREES];
    unsigned bin_count, cache_count;
};

static struct thread threads[MAX_THREADS + LEAVERS];

#define ROOTS 16384
static void *volatile roots[ROOTS] = {(void *)&roots[0]}; /* .data, not .bss: it has an initial value */
static atomic_uint roots_used = 1;

static unsigned root(const void *p) {
    unsigned at = atomic_fetch_add(&roots_used, 1);
    if (at >= ROOTS) abort();
    roots[at] = (void *)p;
    return at;
}

static volatile size_t nothing; /* always 0, but the compiler does not know this */

static const char *interior(struct rng *r, struct block b) { return (const char *)b.p + 1 + draw(r, b.requested - 1); }

/* ---- held ---------------------------------------------------------------------------------------------------------- */

static NOINLINE void reachable_list(struct rng *r) {
    struct block nodes[12];
    for (int i = 0; i < 12; i++) {
        nodes[i] = make(r, 48);
        if (i) link_to(r, nodes[i - 1], 0, nodes[i].p), link_to(r, nodes[i], 1, nodes[i - 1].p);
        note_reachable(nodes[i], "list");
    }
    root(nodes[0].p);
}

static struct block grow_tree(struct rng *r, int depth) {
    struct block node = make_any(r);
    for (unsigned child = 0; depth && child < 2; child++) link_to(r, node, child, grow_tree(r, depth - 1).p);
    note_reachable(node, "tree");
    return node;
}

static NOINLINE void reachable_hash(struct rng *r) {
    struct block table = {calloc(64, WORD), 64 * WORD, 0};
    root(table.p);
    note_reachable(table, "hash");
    for (int i = 0; i < 100; i++) {
        void **bucket = (void **)table.p + draw(r, 64);
        struct block node = make(r, 40);
        link_to(r, node, 0, *bucket);
        *bucket = node.p;
        note_reachable(node, "hash");
    }
}

static NOINLINE void reachable_shapes(struct rng *r) {
    for (int i = 0; i < 4; i++) {
        struct block b = make_any(r), c = make_any(r);
        root(b.p);
        note_reachable(b, "global");
        link_to(r, b, 0, c.p);
        link_to(r, c, 0, b.p);
        note_reachable(c, "global-pair");
    }
    struct block both = make_any(r);
    root(interior(r, both));
    root(both.p);
    note_reachable(both, "start-and-interior");
    struct block zero = {malloc(nothing), 0, 0};
    fill(zero.p, malloc_usable_size(zero.p));
    root(zero.p);
    note_reachable(zero, "zero-size");
    reachable_list(r);
    root(grow_tree(r, 4).p);
    reachable_hash(r);
}

static NOINLINE void possible_shapes(struct rng *r) {
    struct block a = make_any(r), b = make_any(r), c = make_any(r), d = make_any(r), e = make_any(r), lost = make_any(r);
    root(interior(r, a));
    note_possible(a, "interior");
    link_to(r, a, 0, b.p); /* a pointer to the start, but from a block that is only possibly lost */
    note_possible(b, "interior-child");
    link_to(r, b, 1, a.p); /* and back: still no pointer to the start from outside */
    root(c.p);
    note_reachable(c, "interior-parent");
    link_to(r, c, 0, (void *)interior(r, d));
    note_possible(d, "interior-from-block");
    root((char *)e.p + malloc_usable_size(e.p) - 1);
    if (e.requested < malloc_usable_size(e.p)) root((char *)e.p + e.requested - 1); /* the end of the block for LeakSanitizer */
    note_possible(e, "last-byte");
    link_to(r, lost, 0, b.p);
    note_definite(lost, "lost-parent");
}

/* ---- lost ---------------------------------------------------------------------------------------------------------- */

/* A chain of `n`, made in any order of addresses; the third link is an interior pointer. */
static NOINLINE void lost_chain(struct rng *r, unsigned n) {
    struct block nodes[16];
    for (unsigned i = 0; i < n; i++) nodes[i] = make_any(r);
    if (draw(r, 2))
        for (unsigned i = 0; i < n / 2; i++) {
            struct block swap = nodes[i];
            nodes[i] = nodes[n - 1 - i];
            nodes[n - 1 - i] = swap;
        }
    for (unsigned i = 0; i + 1 < n; i++) link_to(r, nodes[i], 0, i == 2 ? (void *)interior(r, nodes[3]) : nodes[i + 1].p);
    note_definite(nodes[0], "chain");
    for (unsigned i = 1; i < n; i++) note_indirect(nodes[i], nodes[0], "chain");
}

static struct block grow_lost(struct rng *r, struct block leader, int depth) {
    struct block node = make_any(r);
    if (!leader.p) leader = node;
    for (unsigned child = 0; depth && child < 2; child++) link_to(r, node, child, grow_lost(r, leader, depth - 1).p);
    if (leader.p == node.p)
        note_definite(node, "lost-tree");
    else
        note_indirect(node, leader, "lost-tree");
    return node;
}

/* A cycle of `n` blocks; `tail` more blocks are reachable from it. With `head`, a chain of two blocks refers to it. */
static NOINLINE void lost_cycle(struct rng *r, unsigned n, unsigned tail, int head) {
    struct block nodes[8], tails[4], heads[2];
    for (unsigned i = 0; i < n; i++) nodes[i] = make_any(r);
    for (unsigned i = 0; i < tail; i++) tails[i] = make_any(r);
    for (int i = 0; head && i < 2; i++) heads[i] = make_any(r);
    for (unsigned i = 0; i < n; i++) link_to(r, nodes[i], 0, nodes[(i + 1) % n].p);
    for (unsigned i = 0; i < tail; i++) link_to(r, i ? tails[i - 1] : nodes[n / 2], 1, tails[i].p);
    struct block low = lowest(nodes, n), leader = low;
    if (head) {
        link_to(r, heads[0], 0, heads[1].p);
        link_to(r, heads[1], 0, (void *)interior(r, nodes[n - 1]));
        leader = heads[0];
        note_definite(heads[0], "into-cycle");
        note_indirect(heads[1], leader, "into-cycle");
    }
    for (unsigned i = 0; i < n; i++)
        if (nodes[i].p == leader.p)
            note_definite(nodes[i], "cycle"); /* LeakSanitizer reports all blocks of a cycle as indirect */
        else
            note_indirect(nodes[i], leader, head ? "into-cycle" : "cycle");
    for (unsigned i = 0; i < tail; i++) note_indirect(tails[i], leader, "cycle-tail");
}

/* Two cycles, of which one refers to the other. */
static NOINLINE void lost_cycles(struct rng *r) {
    struct block nodes[6];
    for (int i = 0; i < 6; i++) nodes[i] = make_any(r);
    for (int i = 0; i < 6; i++) link_to(r, nodes[i], 0, nodes[i / 3 * 3 + (i + 1) % 3].p);
    link_to(r, nodes[1], 1, nodes[4].p);
    struct block leader = lowest(nodes, 3);
    for (int i = 0; i < 6; i++)
        if (nodes[i].p == leader.p)
            note_definite(nodes[i], "cycle");
        else
            note_indirect(nodes[i], leader, "cycle");
}

/* Two leak heads share a tail. The tail counts under the head with the lower address. */
static NOINLINE void lost_shared(struct rng *r) {
    struct block heads[2] = {make_any(r), make_any(r)}, tail = make_any(r);
    for (int i = 0; i < 2; i++) {
        link_to(r, heads[i], 0, tail.p);
        note_definite(heads[i], "shared-tail");
    }
    note_indirect(tail, lowest(heads, 2), "shared-tail");
}

/* Doubly linked: every node is reachable from every other node, so the whole list is one cycle. */
static NOINLINE void lost_list(struct rng *r) {
    struct block nodes[9];
    for (int i = 0; i < 9; i++) nodes[i] = make(r, 48);
    for (int i = 1; i < 9; i++) link_to(r, nodes[i - 1], 0, nodes[i].p), link_to(r, nodes[i], 1, nodes[i - 1].p);
    struct block leader = lowest(nodes, 9);
    for (int i = 0; i < 9; i++)
        if (nodes[i].p == leader.p)
            note_definite(nodes[i], "cycle");
        else
            note_indirect(nodes[i], leader, "cycle");
}

static NOINLINE void lost_singles(struct rng *r) {
    for (int i = 0; i < 12; i++) note_definite(make_any(r), "single");
    struct block zero = {malloc(nothing), 0, 0};
    fill(zero.p, malloc_usable_size(zero.p));
    note_definite(zero, "zero-size");
    for (int i = 0; i < 2; i++) { /* the block refers to its own start, and to its own inside */
        struct block self = make_any(r);
        link_to(r, self, 0, self.p);
        link_to(r, self, 1, (void *)interior(r, self));
        note_definite(self, "self");
    }
    /* Not a multiple of the granule: after the requested bytes, LeakSanitizer's allocator has a gap, as glibc has its size word. */
    struct block past = make(r, 41 + 16 * draw(r, 40)), odd = make_any(r), coded = make_any(r), wiped = make_any(r);
    /* The address directly after the block belongs to no block. In a slab, it would be the start of the next block. */
    if (!truth_other) root((char *)past.p + malloc_usable_size(past.p));
    note_definite(past, "past-end");
    static _Alignas(16) char unaligned[64 * 16];
    static atomic_uint next;
    memcpy(unaligned + 16 * (atomic_fetch_add(&next, 1) % 64) + WORD / 2, &odd.p, WORD);
    note_definite(odd, "unaligned");
    root((void *)hide(coded.p));
    note_definite(coded, "coded");
    roots[root(wiped.p)] = NULL;
    note_definite(wiped, "overwritten");
    struct block to_held = make_any(r), held = make_any(r); /* lost, but refers to a held block */
    root(held.p);
    note_reachable(held, "held-by-lost-too");
    link_to(r, to_held, 0, held.p);
    note_definite(to_held, "lost-parent");
}

static NOINLINE void lost_shapes(struct rng *r) {
    static const struct block none;
    lost_singles(r);
    for (unsigned n = 2; n <= 9; n += 3) lost_chain(r, n);
    grow_lost(r, none, 3);
    for (unsigned n = 2; n <= 5; n++) lost_cycle(r, n, n % 4, 0);
    lost_cycle(r, 3, 2, 1);
    lost_cycles(r);
    lost_shared(r);
    lost_list(r);
}

/* ---- mapped by malloc ---------------------------------------------------------------------------------------------- */

static struct block make_large(void *p, size_t size) {
    if (!p) abort();
    /* New memory from the kernel is clean. If the size word before a block has no IS_MMAPPED, the block came from an arena. */
    fill(p, !truth_other && ((size_t *)p)[-1] & 2 ? 256 : malloc_usable_size(p));
    return (struct block){p, size, 0};
}

/* Blocks with a mapping of their own, neighbours that the kernel merges into one region, and among them a mapping of the
 * program's that is a root. `fake`: that one begins like a mapping of malloc's. */
static NOINLINE void mmapped_shapes(struct rng *r, int fake) {
    size_t size = (200 << 10) + draw(r, 100 << 10);
    struct block lost = make_large(malloc(size), size), held = make_large(malloc(size + 5000), size + 5000);
    void *volatile *mapping = mmap(NULL, 64 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct block inside = make_large(malloc(size), size), child = make_large(malloc(size + 9), size + 9);
    struct block aligned = make_large(memalign(64 << 10, size), size), tail = make_any(r);
    struct block far = make_large(memalign(1 << 20, size), size), cleared = {calloc(1, size), size, 0};
    struct block grown = make_large(realloc(malloc(size), 3 * size), 3 * size);
    struct block from_mapping = make_any(r);
    aligned.aligned = 16;
    far.aligned = 20;
    if (mapping == MAP_FAILED) abort();
    note_definite(lost, "mmapped");
    root(held.p);
    note_reachable(held, "mmapped");
    root((char *)inside.p + 150000);
    note_possible(inside, "mmapped-interior");
    *((void *volatile *)held.p + 20) = child.p;
    note_reachable(child, "mmapped");
    *((void *volatile *)aligned.p + 9) = tail.p;
    note_definite(aligned, "mmapped-aligned");
    note_indirect(tail, aligned, "mmapped-aligned");
    root(far.p);
    note_reachable(far, "mmapped-aligned");
    memset(cleared.p, 0, malloc_usable_size(cleared.p)); /* calloc clears only the requested bytes */
    note_definite(cleared, "mmapped-calloc");
    note_definite(grown, "mmapped-realloc");
    if (fake) mapping[1] = (void *)((64 << 10) | 2);
    mapping[2 + draw(r, 8190)] = from_mapping.p;
    note_reachable(from_mapping, "mapping");
}

#endif
