/* A program that ends with malloc_stats_print, which prints jemalloc's own counters of its bins as text and as JSON; then "ready".
 *
 *   jemalloc_stats THREADS
 *
 * Every thread allocates blocks of every small class and of some large ones, frees some of them, and some of another thread's blocks. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 64
#define EACH 3000

static void *made[MOST][EACH];
static int threads;
static pthread_barrier_t together;
static char text[4 << 20];
static size_t length;

static void add(void *unused, const char *more) {
    size_t size = strlen(more);
    (void)unused;
    if (length + size > sizeof text) abort();
    memcpy(text + length, more, size);
    length += size;
}

static void *work(void *argument) {
    int me = (int)(intptr_t)argument, next = (me + 1) % threads;
    uint64_t state = 88172645463325252u + 77u * (uint64_t)me;
    for (int i = 0; i < EACH; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        size_t size = 1 + state % (i % 50 == 0 ? 300000 : i % 7 == 0 ? 14336 : 700);
        made[me][i] = memset(malloc(size), 'x', size);
    }
    pthread_barrier_wait(&together);
    for (int i = 0; i < EACH; i += 3) {
        free(made[me][i]);
        made[me][i] = NULL;
    }
    pthread_barrier_wait(&together);
    for (int i = 1; i < EACH; i += 6) {
        free(made[next][i]);
        made[next][i] = NULL;
    }
    pthread_barrier_wait(&together);
    if (me) pause();
    return NULL;
}

int main(int argc, char **argv) {
    void (*print)(void (*)(void *, const char *), void *, const char *) = dlsym(RTLD_DEFAULT, "malloc_stats_print");
    pthread_t thread;
    threads = argc > 1 ? atoi(argv[1]) : 1;
    if (!print || threads < 1 || threads > MOST) return 2;
    pthread_barrier_init(&together, NULL, (unsigned)threads);
    for (int i = 1; i < threads; i++)
        if (pthread_create(&thread, NULL, work, (void *)(intptr_t)i)) abort();
    work(NULL);
    usleep(20000); /* the other threads are in pause() then; if not, only the stacks differ */
    print(add, NULL, "gmdlxeh");
    add(NULL, "\n--json--\n");
    print(add, NULL, "Jx");
    add(NULL, "\nready\n");
    for (size_t at = 0; at < length;) {
        ssize_t n = write(1, text + at, length - at);
        if (n < 0) abort();
        at += (size_t)n;
    }
    for (;;) pause();
}
