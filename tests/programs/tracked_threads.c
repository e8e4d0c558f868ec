/* Starts threads that allocate, replace blocks of other threads, and end. After some turns, it forks a child that frees and moves the same
 * blocks in its copy of the memory. First prints "ready". For each line that it reads, it makes a round. Then it prints the calls of each
 * site as "site calls 0 number", the blocks left as "all left 0 number", and "done". */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
enum { TURNS = 40, THREADS = 6, BLOCKS = 60, SLOTS = 512 };

static _Atomic(void *) slots[SLOTS];
static atomic_long mallocs, reallocs, aligned;
static pthread_key_t key;

NOINLINE static void *by_malloc(size_t size) {
    void *volatile made = malloc(size);
    mallocs++;
    return made;
}

NOINLINE static void *by_realloc(void *block, size_t size) {
    void *volatile made = realloc(block, size);
    reallocs++;
    return made;
}

NOINLINE static void *by_memalign(size_t size) {
    void *made = NULL;
    if (posix_memalign(&made, 64, size)) abort();
    aligned++;
    return made;
}

/* Frees a block that another thread stored there. */
static void put(unsigned at, void *block) { free(atomic_exchange(&slots[at % SLOTS], block)); }

static void *work(void *number) {
    unsigned random = (unsigned)(uintptr_t)number * 2654435761u + 1;
    pthread_setspecific(key, by_malloc(100)); /* freed as the thread ends */
    for (int at = 0; at < BLOCKS; at++) {
        random = random * 1664525u + 1013904223u;
        size_t size = 64 + (random >> 8) % 3000, more = random >> 20;
        void *block = by_malloc(size);
        if (random >> 30 == 0) block = by_realloc(block, size + 8 + 48 * more); /* usually moved */
        if (random >> 30 == 1) block = by_realloc(block, size - 16);            /* usually in place */
        void *volatile failed = random >> 30 == 2 ? realloc(block, PTRDIFF_MAX) : NULL;
        if (failed) abort();
        put(random >> 10, block);
        put(random >> 11, by_memalign(128));
    }
    return NULL;
}

static void use_copies(void) {
    for (int at = 0; at < SLOTS; at++)
        at % 3 ? free(slots[at]) : free(realloc(slots[at], 5000));
    for (int at = 0; at < 200; at++) free(malloc(100));
    _exit(0);
}

int main(void) {
    char line[16];
    pthread_key_create(&key, free);
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        for (int turn = 0; turn < TURNS; turn++) {
            pthread_t threads[THREADS];
            for (int at = 0; at < THREADS; at++) pthread_create(&threads[at], NULL, work, (void *)(uintptr_t)(turn * THREADS + at));
            for (int at = 0; at < THREADS; at++) pthread_join(threads[at], NULL);
            pid_t child = turn % 5 ? -1 : fork();
            if (child == 0) use_copies();
            if (child > 0) waitpid(child, NULL, 0);
        }
        int left = 0;
        for (int at = 0; at < SLOTS; at++) left += slots[at] != NULL;
        printf("by_malloc calls 0 %ld\nby_realloc calls 0 %ld\nby_memalign calls 0 %ld\nall left 0 %d\ndone\n", mallocs, reallocs, aligned, left);
        fflush(stdout);
    }
    return 0;
}
