/* A process with many blocks in five arenas, as real ones are: long lists, trees, hash tables, vectors; mixed sizes; some freed, some
 * lost in every way. Prints how much it lost, then aborts, so that the kernel writes a core; or waits for somebody who takes one.
 * usage: heap BLOCKS [wait]
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS 5 /* the main arena, and four arenas of threads */
#define BATCH 4096

typedef struct node {
    struct node *next;
    uint64_t payload[];
} node;

typedef struct tree {
    struct tree *left, *right;
    uint64_t key;
    char *name;
} tree;

typedef struct entry {
    struct entry *chain;
    char *key;
    void *value;
} entry;

typedef struct {
    node *lists[16];
    tree *roots[4];
    entry **table;
    void **vectors[64];
} holders;

static holders held[THREADS];
static atomic_long definite, indirect, possible, total;
static pthread_barrier_t built;
static long per_thread;

static __thread uint64_t state;

static uint64_t next_random(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static size_t some_size(void) {
    static const uint16_t sizes[16] = {24, 32, 40, 48, 56, 64, 72, 96, 120, 136, 200, 280, 408, 504, 760, 760};
    return sizes[next_random() & 15];
}

static void *filled(size_t size) {
    uint64_t *block = malloc(size);
    for (size_t at = 0; at < size / 8; at++)
        block[at] = next_random() >> 40; /* numbers and flags, no pointers */
    atomic_fetch_add_explicit(&total, 1, memory_order_relaxed);
    return block;
}

static char *text(void) {
    size_t size = 12 + next_random() % 60;
    char *block = filled(size);
    memset(block, 'a' + (int)(next_random() % 26), size - 1);
    block[size - 1] = 0;
    return block;
}

static void *pair(void *first, void *second, size_t size) {
    void **block = filled(size < 16 ? 16 : size);
    block[0] = first;
    block[1] = second;
    return block;
}

static void lose(holders *h) {
    switch (next_random() % 5) {
    case 0:
    case 1:
        filled(some_size());
        definite++;
        break;
    case 2: /* a chain */
        pair(pair(pair(NULL, NULL, 40), NULL, 24), filled(100), 56);
        definite++;
        indirect += 3;
        break;
    case 3: { /* a cycle */
        void **a = pair(NULL, NULL, 48), **b = pair(a, NULL, 48);
        a[0] = b;
        definite++;
        indirect++;
        break;
    }
    default: { /* held only by a pointer to its middle */
        char *block = filled(88);
        node *holder = filled(32);
        holder->payload[0] = (uint64_t)(block + 24);
        holder->next = h->lists[0];
        h->lists[0] = holder;
        possible++;
    }
    }
}

static void build(long id) {
    holders *h = &held[id];
    uint64_t buckets = (uint64_t)per_thread / 8 + 1;
    void *freed[64] = {0};
    state = 0x9E3779B97F4A7C15u * (uint64_t)(id + 1);
    h->table = calloc(buckets, sizeof *h->table);
    total++;
    for (int at = 0; at < 64; at++) {
        h->vectors[at] = calloc(1024, sizeof(void *));
        total++;
    }
    long begin = 0;
    for (long made = 0; made < per_thread; begin++) {
        unsigned way = next_random() % 100;
        if (way < 40) {
            node **list = &h->lists[1 + next_random() % 15], *fresh = filled(some_size());
            fresh->next = *list;
            *list = fresh;
            made++;
        } else if (way < 60) {
            tree *fresh = filled(sizeof *fresh), **place = &h->roots[next_random() & 3];
            *fresh = (tree){NULL, NULL, next_random(), text()};
            for (uint64_t way_down = fresh->key; *place; way_down = way_down >> 1 | way_down << 63)
                place = way_down & 1 ? &(*place)->left : &(*place)->right;
            *place = fresh;
            made += 2;
        } else if (way < 85) {
            entry **bucket = &h->table[next_random() % buckets], *fresh = filled(sizeof *fresh);
            *fresh = (entry){*bucket, text(), filled(some_size())};
            *bucket = fresh;
            made += 3;
        } else if (way < 93) {
            void **vector = h->vectors[next_random() & 63], **place = &vector[next_random() & 1023];
            *place = pair(*place, NULL, some_size());
            made++;
        } else if (way < 98) { /* freed later: goes to tcache, fastbins or bins */
            void **place = &freed[next_random() & 63];
            if (*place) {
                free(*place);
                total--;
            }
            *place = filled(some_size() * (next_random() & 7 ? 1 : 3));
        } else {
            lose(h);
            made += 2;
        }
    }
    for (int at = 0; at < 64; at++)
        if (freed[at]) {
            free(freed[at]);
            total--;
        }
    memset(freed, 0, sizeof freed);
    __asm__ volatile("" : : "r"(freed) : "memory");
}

/* Overwrite what building the heap has left on the stack. */
static void __attribute__((noinline)) wipe(void) {
    char stack[BATCH];
    memset(stack, 0, sizeof stack);
    __asm__ volatile("" : : "r"(stack) : "memory");
}

static void *thread(void *argument) {
    build((long)argument);
    wipe();
    pthread_barrier_wait(&built);
    pthread_barrier_wait(&built); /* this barrier is never passed */
    return NULL;
}

int main(int argc, char **argv) {
    per_thread = (argc > 1 ? atol(argv[1]) : 1000000) / THREADS;
    pthread_barrier_init(&built, NULL, THREADS);
    for (long id = 1; id < THREADS; id++) {
        pthread_t started;
        if (pthread_create(&started, NULL, thread, (void *)id))
            return 1;
    }
    build(0);
    wipe();
    pthread_barrier_wait(&built);
    printf("{\"blocks\": %ld, \"definite\": %ld, \"indirect\": %ld, \"possible\": %ld}\n", total, definite, indirect, possible);
    fflush(stdout);
    if (argc > 2)
        pause();
    abort();
}
