/* A program whose own allocator puts a header before each block. It prints the expected result for each block.
 *
 *   headers BYTES COUNT [l|r|k|p]
 *
 * writes the lines of truth.c: COUNT blocks of many sizes with a header of BYTES, held by pointers behind it; a few large ones of sizes of
 * their own; lost ones; and blocks that only pointers to no particular place of theirs hold, which stay possible. With l a header begins with
 * the length of what is behind it, in 8 bytes; with k, with a small number, such as a kind or a reference count. With r half of the COUNT
 * blocks are in a ring with links to both neighbours, and each of them refers to one of the others. With p, variables refer to the COUNT
 * blocks, and the program also allocates 2,000 blocks of PLAIN bytes without a header. */
#include "truth.h"

static size_t header;
static int lengths, kinds;
static void *volatile held;     /* a list that is linked by the first words after the headers */
static void *volatile roots[512];
static unsigned root_count;

static void *behind(struct block b) { return (char *)b.p + header; }

static NOINLINE struct block allocate(size_t size) {
    struct block b = {malloc(header + size), header + size, 0};
    if (!b.p) abort();
    fill(b.p, malloc_usable_size(b.p));
    if (lengths) *(volatile uint64_t *)b.p = size;
    if (kinds) *(volatile uint64_t *)b.p = 2 + size / 8 % 7;
    *(void *volatile *)behind(b) = NULL;
    return b;
}

static NOINLINE void hold_some(unsigned count, const size_t *sizes, unsigned size_count, const char *category) {
    for (unsigned i = 0; i < count; i++) {
        struct block b = allocate(sizes[i % size_count]);
        *(void *volatile *)behind(b) = held;
        held = behind(b);
        note_reachable(b, category);
    }
}

struct link {
    struct link *next, *previous;
    void *value;
};

static NOINLINE void hold_ring(unsigned count, const size_t *sizes, unsigned size_count, const char *category) {
    static struct link ring = {&ring, &ring, NULL};
    for (unsigned i = 0; i < count; i++) {
        struct block b = allocate(sizes[i / 2 % size_count]);
        note_reachable(b, category);
        struct link *link = behind(b);
        if (i % 2) {
            ring.previous->value = link;
            continue;
        }
        *link = (struct link){&ring, ring.previous, NULL};
        link->previous->next = ring.previous = link;
    }
}

static NOINLINE void lose_some(void) {
    for (int i = 0; i < 30; i++) note_definite(allocate(100), "lost");
    struct block nodes[20];
    for (int i = 0; i < 20; i++) nodes[i] = allocate(100);
    for (int i = 0; i + 1 < 20; i++) *(void *volatile *)behind(nodes[i]) = behind(nodes[i + 1]);
    note_definite(nodes[0], "lost-list");
    for (int i = 1; i < 20; i++) note_indirect(nodes[i], nodes[0], "lost-list");
}

/* Half of the blocks of one size by one place, half by another; and others by any. */
static NOINLINE void hold_inside(struct rng *r) {
    for (int i = 0; i < 40; i++) {
        struct block b = make(r, 776);
        roots[root_count++] = (char *)b.p + (i % 2 ? 40 : 72);
        note_possible(b, "two-places");
    }
    for (int i = 0; i < 40; i++) {
        struct block b = make(r, 300 + 16 * (size_t)i);
        roots[root_count++] = (char *)b.p + 200 + draw(r, 90);
        note_possible(b, "anywhere");
    }
}

#define PLAIN 72

static NOINLINE void hold_by_variables(unsigned count, const size_t *sizes, unsigned size_count, const char *category) {
    for (unsigned i = 0; i < count; i++) {
        struct block b = allocate(sizes[i % size_count]);
        roots[root_count++] = behind(b);
        note_reachable(b, category);
    }
}

static NOINLINE void hold_plain(void) {
    static void *volatile first;
    for (int i = 0; i < 2000; i++) {
        struct block b = {malloc(PLAIN), PLAIN, 0};
        if (!b.p) abort();
        fill(b.p, malloc_usable_size(b.p));
        *(void *volatile *)b.p = first;
        first = b.p;
        note_reachable(b, "plain");
    }
}

int main(int argc, char **argv) {
    static const size_t usual[] = {24, 40, 56, 72, 104, 152, 200, 312, 408, 1000}, rare[] = {100000, 70000, 5000};
    static hidden none[9];
    if (argc < 3) return 2;
    header = (size_t)atoi(argv[1]);
    lengths = argc > 3 && argv[3][0] == 'l';
    kinds = argc > 3 && argv[3][0] == 'k';
    struct rng r;
    seed(&r, 88172645463325252u);
    char kind = argc > 3 ? argv[3][0] : ' ';
    (kind == 'r' ? hold_ring : kind == 'p' ? hold_by_variables : hold_some)((unsigned)atoi(argv[2]), usual, 10, "header");
    if (kind == 'p') hold_plain();
    hold_some(3, rare, 3, "header-rare");
    lose_some();
    hold_inside(&r);
    scrub();
    stop(none, 1);
}
