/* Uses mimalloc's own functions next to libc's malloc, or as the process's malloc, from several threads, then has mimalloc list its areas
 * and blocks (mi_heap_visit_blocks) as the last thing each thread does, and stops.
 *
 * Lines: "area FIRST-BLOCK BLOCK-SIZE USED COMMITTED RESERVED" for each area, "block ADDRESS SIZE" for each block in use, "ready". */
#define _GNU_SOURCE
#include <mimalloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS 3
#define BLOCKS 4000

static void *held[THREADS + 1][BLOCKS];
static pthread_barrier_t together;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Without buffers: printf's buffer could be in the heap that is being listed. */
static void say(const char *word, uint64_t a, uint64_t b, int64_t c, int64_t d, int64_t e) {
    char line[160];
    int n = c < 0 ? snprintf(line, sizeof line, "%s %llx %llu\n", word, (unsigned long long)a, (unsigned long long)b)
                  : snprintf(line, sizeof line, "%s %llx %llu %lld %lld %lld\n", word, (unsigned long long)a, (unsigned long long)b,
                             (long long)c, (long long)d, (long long)e);
    if (write(1, line, (size_t)n) != n) abort();
}

static bool look(const mi_heap_t *heap, const mi_heap_area_t *area, void *block, size_t size, void *argument) {
    (void)heap, (void)area, (void)block, (void)size, (void)argument;
    return true;
}

static bool visit(const mi_heap_t *heap, const mi_heap_area_t *area, void *block, size_t size, void *argument) {
    (void)heap, (void)argument;
    if (block)
        say("block", (uintptr_t)block, size, -1, 0, 0);
    else
        say("area", (uintptr_t)area->blocks, area->block_size, (int64_t)area->used, (int64_t)area->committed, (int64_t)area->reserved);
    return true;
}

/* Collecting and a first visit process the blocks that other threads freed. Until then, an area's count of used blocks includes them. */
static void list(void) {
    pthread_mutex_lock(&lock);
    mi_heap_collect(mi_heap_get_default(), false);
    mi_heap_visit_blocks(mi_heap_get_default(), true, look, NULL);
    mi_heap_visit_blocks(mi_heap_get_default(), true, visit, NULL);
    pthread_mutex_unlock(&lock);
}

static void *work(void *argument) {
    unsigned me = (unsigned)(uintptr_t)argument;
    unsigned random = me * 7919 + 1;
    for (int i = 0; i < BLOCKS; i++) {
        random = random * 1103515245 + 12345;
        size_t size = i % 500 ? 1 + (random >> 8) % (i % 20 ? 600 : 60000) : 300000 + (random >> 8) % 3000000;
        held[me][i] = mi_malloc(size);
        memset(held[me][i], 'x', size < 64 ? size : 64);
    }
    pthread_barrier_wait(&together);
    for (int i = 0; i < BLOCKS; i += 3) mi_free(held[me][i]), held[me][i] = NULL;
    pthread_barrier_wait(&together);
    if (me)
        for (int i = 1; i < BLOCKS; i += 7)
            if (held[me % THREADS + 1][i]) mi_free(held[me % THREADS + 1][i]), held[me % THREADS + 1][i] = NULL;
    pthread_barrier_wait(&together);
    if (me) {
        list();
        pthread_barrier_wait(&together);
        pause();
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    char *other = malloc(100);
    setvbuf(stdout, NULL, _IONBF, 0);
    memset(other, 'y', 100);
    pthread_barrier_init(&together, NULL, THREADS + 1);
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    work((void *)0);
    pthread_barrier_wait(&together);
    list();
    if (write(1, "ready\n", 6) != 6) abort();
    pause();
    return other[0];
}
