/* Objects of lists and trees. Each object contains its links, and a link refers to the links in another object. The links are like struct
 * list_head, hlist_node and rb_node of Linux, and cds_lfht_node of liburcu. Also chunks of bumpalo. Writes the lines of truth.c.
 *
 *   linked_nodes
 *
 * All objects have the same size. Twice as many other blocks have this size, too, so that no offset is a convention. Each object
 * refers to another block. */
#include "truth.h"
#include "truth_stop.h"

enum { SIZE = 72, COUNT = 24 };

struct list { /* list_head; hlist_node, whose second link refers to the first link of the previous node */
    struct list *next, *previous;
};
struct tree { /* rb_node: the lowest bit of the first link is the colour */
    uintptr_t parent;
    struct tree *right, *left;
};
struct object {
    long id;
    void *value;
    union {
        struct list list;
        struct tree tree;
        uintptr_t next; /* a singly linked list, with flags in the low bits */
    } links;
    char rest[32];
};

static struct list rows = {&rows, &rows}, *buckets[5];
static struct tree *records;
static uintptr_t table[4];
static void *volatile plain[2 * COUNT * 4], *volatile strays[64], *volatile chunks[6];

static NOINLINE struct block made(size_t size, const char *kind, const struct block *leader, const char *what) {
    struct block b = {malloc(size), size, 0};
    if (!b.p) abort();
    memset(b.p, 0, malloc_usable_size(b.p));
    note(b, kind, leader ? leader->p : NULL, what);
    return b;
}

static NOINLINE struct object *object(const char *kind, const struct block *leader, const char *what) {
    struct object *o = made(SIZE, kind, leader, what).p;
    o->value = made(40, kind, leader, "value").p;
    return o;
}

static NOINLINE void append(struct list *head, struct list *node) {
    *node = (struct list){head, head->previous};
    node->previous->next = node;
    head->previous = node;
}

static NOINLINE void insert(struct tree *node, unsigned path) {
    struct tree **place = &records, *parent = NULL;
    for (; *place; path >>= 1) {
        parent = *place;
        place = path & 1 ? &parent->left : &parent->right;
    }
    node->parent = (uintptr_t)parent | (path & 1);
    *place = node;
}

static NOINLINE void build(void) {
    for (unsigned i = 0; i < COUNT; i++) {
        append(&rows, &object("reachable", NULL, "row")->links.list);
        insert(&object("reachable", NULL, "record")->links.tree, i * 2654435769u);
        struct list **bucket = &buckets[i % 5], *node = &object("reachable", NULL, "bucket")->links.list;
        *node = (struct list){*bucket, (struct list *)bucket};
        if (*bucket) (*bucket)->previous = (struct list *)&(*bucket)->next;
        *bucket = node;
        struct object *entry = object("reachable", NULL, "entry");
        entry->links.next = table[i % 4];
        table[i % 4] = (uintptr_t)&entry->links | i % 4;
    }
    for (unsigned i = 0; i < 2 * COUNT * 4; i++) plain[i] = made(SIZE, "reachable", NULL, "plain").p;
    for (unsigned i = 0; i < 6; i++) { /* chunks of bumpalo: {start, size, alignment, previous, first used byte, counter} at their end */
        struct block b = made(512, i < 3 ? "reachable" : "possible", NULL, "chunk");
        uintptr_t *footer = (uintptr_t *)((char *)b.p + 512 - 6 * WORD);
        footer[0] = (uintptr_t)b.p + (i < 3 ? 0 : WORD);
        footer[1] = 512;
        footer[2] = 16;
        footer[3] = (uintptr_t)&rows;
        footer[4] = (uintptr_t)b.p + 100;
        *(void **)b.p = made(40, i < 3 ? "reachable" : "possible", NULL, "value").p;
        chunks[i] = footer;
    }
    for (unsigned i = 0; i < 64; i++) { /* pointers to other members; a link that does not lead back */
        struct object *o = object("possible", NULL, "stray");
        o->links.list.previous = i % 2 ? &rows : NULL;
        strays[i] = i % 2 ? &o->links : (void *)&o->rest;
    }
    struct block head = made(SIZE, "definite", NULL, "lost"); /* a list whose head is leaked */
    struct object *o = head.p;
    o->links.list = (struct list){&o->links.list, &o->links.list};
    for (unsigned i = 0; i < COUNT; i++) append(&o->links.list, &object("indirect", &head, "lost")->links.list);
}

int main(void) {
    static hidden none[9];
    build();
    scrub();
    stop(none, 1);
}
