/* Structures that keep a flag in the lowest bits of their links: glibc's tsearch and jemalloc's rb.h (the colour of a node), a crit-bit
 * tree (whether a child is a leaf), an XArray of Linux (whether an entry is a node).
 *
 *   tagged_links COUNT
 *
 * writes the same lines as truth.c, and waits. All blocks of these structures are reachable, and COUNT other blocks are lost. */
#include "truth.h"
#include "truth_stop.h"

#include <search.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct record {
    uint32_t key; /* big-endian, because the crit-bit tree compares bytes */
    char rest[60];
};
struct red_black {
    uint32_t key;
    struct red_black *left;
    uintptr_t right_red;
    char rest[64];
};
struct crit_bit {
    void *child[2];
    uint32_t byte, others;
};
struct xa_node {
    uintptr_t header[3], slots[64];
};

void *records;               /* root of tsearch's tree */
struct red_black *intervals; /* root of rb.h's tree */
void *names;                 /* root of a crit-bit tree */
uintptr_t cached;            /* root of an XArray, a pointer with a tag */

static NOINLINE void *made(size_t size, const char *what) {
    struct block b = {malloc(size), size, 0};
    if (!b.p) abort();
    memset(b.p, 0, malloc_usable_size(b.p));
    note_reachable(b, what);
    return b.p;
}

static int compare(const void *a, const void *b) { return memcmp(a, b, sizeof(uint32_t)); }

static uint32_t key_of(size_t i) { return __builtin_bswap32((uint32_t)i * 2654435761u); }

static void add_interval(uint32_t key) {
    struct red_black *node = made(sizeof *node, "rb.h"), *at = intervals;
    node->key = key;
    node->right_red = key & 1;
    if (!at) intervals = node;
    while (at && at != node) {
        struct red_black *right = (struct red_black *)(at->right_red & ~(uintptr_t)1);
        if (key < at->key ? !at->left : !right) {
            if (key < at->key) at->left = node;
            else at->right_red = (uintptr_t)node | (at->right_red & 1);
            return;
        }
        at = key < at->key ? at->left : right;
    }
}

static int turns(const struct crit_bit *node, const unsigned char *key) { return (1 + (int)(node->others | key[node->byte])) >> 8; }

/* D. J. Bernstein's crit-bit tree: a child is a node if its lowest bit is set, otherwise a leaf. */
static void add_name(unsigned char *key) {
    if (!names) {
        names = key;
        return;
    }
    unsigned char *leaf = names;
    while ((uintptr_t)leaf & 1) leaf = ((struct crit_bit *)(leaf - 1))->child[turns((struct crit_bit *)(leaf - 1), key)];
    uint32_t byte = 0;
    while (leaf[byte] == key[byte]) byte++;
    uint32_t bits = leaf[byte] ^ key[byte];
    bits |= bits >> 1, bits |= bits >> 2, bits |= bits >> 4;
    bits = (bits & ~(bits >> 1)) ^ 255;
    struct crit_bit *node = made(sizeof *node, "crit-bit");
    node->byte = byte;
    node->others = bits;
    int below = (1 + (int)(bits | leaf[byte])) >> 8;
    void **link = &names;
    while ((uintptr_t)*link & 1) {
        struct crit_bit *next = (struct crit_bit *)((char *)*link - 1);
        if (next->byte > byte || (next->byte == byte && next->others > bits)) break;
        link = &next->child[turns(next, key)];
    }
    node->child[1 - below] = key;
    node->child[below] = *link;
    *link = (char *)node + 1;
}

static void add_page(size_t i) {
    if (!cached) cached = (uintptr_t)made(sizeof(struct xa_node), "xarray") | 2;
    struct xa_node *top = (struct xa_node *)(cached & ~(uintptr_t)3);
    uintptr_t *slot = &top->slots[i / 64 % 64];
    if (!*slot) *slot = (uintptr_t)made(sizeof *top, "xarray") | 2;
    ((struct xa_node *)(*slot & ~(uintptr_t)3))->slots[i % 64] = (uintptr_t)made(200, "xarray");
}

static NOINLINE void lose(void) {
    struct block lost = {malloc(136), 136, 0};
    if (!lost.p) abort();
    memset(lost.p, 0, malloc_usable_size(lost.p));
    note_definite(lost, "unheld");
}

int main(int argc, char **argv) {
    static hidden none[9];
    size_t count = argc > 1 ? (size_t)atol(argv[1]) : 300;
    for (size_t i = 1; i <= count; i++) {
        struct record *record = made(sizeof *record, "tsearch"), *name = made(sizeof *name, "crit-bit");
        record->key = name->key = key_of(i);
        struct { void *key; uintptr_t left, right; } *node = tsearch(record, &records, compare);
        note_reachable((struct block){node, sizeof *node, 0}, "tsearch");
        add_interval(key_of(i));
        add_name((unsigned char *)name);
        add_page(i);
        lose();
    }
    scrub();
    stop(none, 1);
}
