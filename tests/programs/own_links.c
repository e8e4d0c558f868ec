/* A program with chains of nodes that have links in a special form. It prints the expected result for each block.
 *
 *   own_links KIND COUNT
 *
 * writes the lines of truth.c: chains of LENGTH nodes, together COUNT nodes. A table has the first node of each chain in the form KIND,
 * except of every fifth chain, which is leaked. Each node has the next one in the same form, a plain pointer to a string, a counter and a
 * random number. */
#include "truth.h"
#include "truth_stop.h"

#include <stdio.h>

enum { LENGTH = 8, LOST_EVERY = 5 };

struct node {
    uint64_t id;
    uint64_t link;
    char *text;
    uint32_t hash, half; /* `half`: a link of 32 bits */
    uint64_t payload[4];
};

static char *base;          /* base of compressed links */
static uint64_t key;        /* key of combined links */
static uint64_t *table;     /* first nodes of the chains */

static uint64_t random_word(void) {
    static uint64_t state = 88172645463325252u;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static void compressed(uint64_t *link, uint32_t *half, uintptr_t p) { (void)link; *half = p ? (uint32_t)((p - (uintptr_t)base) >> 3) : 0; }
static void relative(uint64_t *link, uint32_t *half, uintptr_t p) { (void)half; *link = p ? p - (uintptr_t)link : 0; }
static void relative32(uint64_t *link, uint32_t *half, uintptr_t p) { (void)link; *half = p ? (uint32_t)(p - (uintptr_t)half) : 0; }
static void keyed(uint64_t *link, uint32_t *half, uintptr_t p) { (void)half; *link = p ^ key; }
static void coded(uint64_t *link, uint32_t *half, uintptr_t p) { (void)half; *link = p ^ UINT64_C(0x9e3779b97f4a7c15); }

static const struct { const char *name; void (*encode)(uint64_t *, uint32_t *, uintptr_t); } kinds[] = {
    {"compressed", compressed}, {"relative", relative}, {"relative32", relative32}, {"keyed", keyed}, {"coded", coded},
};

static NOINLINE struct block zeroed(size_t size) {
    struct block b = {malloc(size), size, 0};
    if (!b.p) abort();
    memset(b.p, 0, malloc_usable_size(b.p));
    return b;
}

static NOINLINE void make_chains(void (*encode)(uint64_t *, uint32_t *, uintptr_t), size_t count) {
    for (size_t chain = 0; chain < count / LENGTH; chain++) {
        int lost = chain % LOST_EVERY == LOST_EVERY - 1;
        struct block first = {0}, before = {0};
        for (size_t n = 0; n < LENGTH; n++) {
            struct block node = zeroed(sizeof(struct node)), text = zeroed(20 + random_word() % 80);
            struct node *at = node.p;
            at->id = chain * LENGTH + n, at->hash = (uint32_t)random_word(), at->text = text.p;
            memset(text.p, 'a' + (int)n, 19);
            encode(&at->link, &at->half, 0);
            struct node *last = before.p;
            if (n) encode(&last->link, &last->half, (uintptr_t)node.p);
            else {
                first = node;
                if (!lost) encode(&table[chain], (uint32_t *)&table[chain] , (uintptr_t)node.p);
            }
            if (!lost) note_reachable(node, "node"), note_reachable(text, "text");
            else {
                if (n) note_indirect(node, first, "lost");
                else note_definite(node, "lost");
                note_indirect(text, first, "lost");
            }
            before = node;
        }
    }
}

int main(int argc, char **argv) {
    static hidden none[9];
    if (argc < 3) return 2;
    size_t count = (size_t)atoi(argv[2]);
    key = random_word() | 1;
    base = sbrk(0);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        if (strcmp(kinds[k].name, argv[1])) continue;
        struct block heads = zeroed(count / LENGTH * sizeof *table);
        table = heads.p;
        note_reachable(heads, "table");
        make_chains(kinds[k].encode, count);
        scrub();
        stop(none, 1);
    }
    return 2;
}
