/* A small heap with a structure of every kind, like mutated.cpp's, for libcs without a C++ library. Prints "ready", and waits. */
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct node {
    struct node *next;
    struct node **nodes;
    void (*done)(struct node *);
    char text[40];
};

static struct node *ring, *lists[16];
static void *blocks[200];
static size_t used;
static pthread_barrier_t all;
static _Thread_local char *mine;

static void finished(struct node *node) { puts(node->text); }

static void *checked(void *block) {
    if (!block) _exit(3);
    return block;
}

static void *touched(size_t size) { return memset(checked(malloc(size)), 0x5a, size < 256 ? size : 256); }

static void hold(void *block) { blocks[__atomic_fetch_add(&used, 1, __ATOMIC_RELAXED)] = block; }

static void churn(void) {
    void *taken[120];
    for (size_t i = 0; i < 120; i++) taken[i] = touched(8 + i * i % 3000);
    for (size_t i = 0; i < 120; i += 2) free(taken[i]);
    for (size_t i = 1; i < 120; i += 8) hold(taken[i]);
}

static struct node *made(struct node *next, const char *text) {
    struct node *node = checked(calloc(1, sizeof *node));
    node->next = next;
    node->done = finished;
    strncpy(node->text, text, sizeof node->text - 1);
    return node;
}

static void *work(void *unused) {
    churn();
    mine = touched(700);
    pthread_barrier_wait(&all);
    pause();
    return mine ? unused : NULL;
}

static void __attribute__((noinline)) lose(void) {
    for (int i = 0; i < 12; i++) {
        struct node *head = made(NULL, "lost");
        head->next = made(i % 2 ? head : NULL, "behind");
        head->nodes = checked(calloc(5, sizeof *head->nodes));
        head->nodes[i % 5] = made(NULL, "below");
        __asm__ volatile("" ::"r"(head) : "memory");
    }
}

static void fill(void) {
    for (size_t i = 0; i < 60; i++) {
        lists[i % 16] = made(lists[i % 16], "order number of some customer");
        ring = made(ring, "https://example.org/a?b=c");
        if (i % 5 == 0) hold(checked(memalign((size_t)64 << i % 8, 100 + i)));
    }
    size_t sizes[] = {9000, 40000, 140000, 600000};
    for (size_t i = 0; i < 4; i++) hold(touched(sizes[i]));
    hold(checked(realloc(touched(5000), 50)));
}

int main(void) {
    pthread_t threads[2];
    pthread_barrier_init(&all, NULL, 3);
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, work, NULL)) return 3;
    churn();
    fill();
    lose();
    pthread_barrier_wait(&all);
    puts("ready");
    fflush(stdout);
    pause();
    return (uintptr_t)blocks[0] == 1;
}
