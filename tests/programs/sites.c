/* A program that records which of its functions allocated each block. It prints a line for each block that is in use at the end, lets the
 * heap profiler with which it runs write a profile, and prints "ready".
 *
 *   sites THREADS SCALE FILE
 *
 * Google's tcmalloc is asked to sample more than it usually does.
 *
 * Lines: address, size asked for, "lost" or "held", and the functions that called the allocator, innermost first. FILE: where
 * jemalloc's prof.dump or gperftools' HeapProfilerDump goes ("-": nowhere; what the latter makes of the name is its own). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 16
#define KINDS 6
#define SITE __attribute__((noinline, noclone))
#define BEHIND __asm__ volatile("" ::: "memory") /* prevents a tail call, so that the caller stays on the stack */

struct made {
    uintptr_t hidden; /* the complement of the address, so that it is not a reference */
    size_t size;
    const char *stack;
    int held;
};

struct worker {
    struct made *made;
    void **held;
    size_t count, holds;
};

void MallocExtension_Internal_SetProfileSamplingInterval(int64_t bytes) __attribute__((weak)); /* Google's tcmalloc */

static struct worker workers[MOST];
static pthread_barrier_t together;
static int threads;
static size_t scale;

SITE static void *inner_small(size_t size) {
    void *block = malloc(size);
    BEHIND;
    return block;
}

SITE static void *by_small(size_t i) {
    void *block = inner_small(24 + i % 3);
    BEHIND;
    return block;
}

SITE static void *by_other(size_t i) {
    void *block = inner_small(24 + i % 3);
    BEHIND;
    return block;
}

SITE static void *by_large(size_t i) {
    void *block = calloc(5, 1000 + i % 2);
    BEHIND;
    return block;
}

SITE static void *by_growth(size_t i) {
    void *block = malloc(10);
    block = realloc(block, 300 + i % 5 * 1000);
    BEHIND;
    return block;
}

SITE static void *by_alignment(size_t i) {
    void *block = NULL;
    if (posix_memalign(&block, 256, 700 + i % 2)) abort();
    BEHIND;
    return block;
}

SITE static void *by_mapping(size_t i) {
    void *block = malloc(300000 + i % 2);
    BEHIND;
    return block;
}

static const struct {
    void *(*make)(size_t);
    const char *stack;
} kinds[KINDS] = {
    {by_small, "inner_small by_small"}, {by_other, "inner_small by_other"}, {by_large, "by_large"},
    {by_growth, "by_growth"},           {by_alignment, "by_alignment"},     {by_mapping, "by_mapping"},
};

SITE static void fill(struct worker *worker, size_t kind, size_t blocks) {
    for (size_t i = 0; i < blocks; i++) {
        void *block = kinds[kind].make(i);
        struct made *made = &worker->made[worker->count];
        memset(block, 'x', malloc_usable_size(block)); /* overwrites former content */
        if (i % 4 == 3) { /* free a quarter */
            free(block);
            continue;
        }
        made->hidden = ~(uintptr_t)block;
        made->size = malloc_usable_size(block);
        made->stack = kinds[kind].stack;
        made->held = i % 4 == 1;
        if (made->held) worker->held[worker->holds++] = block;
        worker->count++;
    }
    BEHIND;
}

static void scrub(void) { /* Overwrites pointers that are left on the stack. */
    volatile char old[65536];
    for (size_t i = 0; i < sizeof old; i++) old[i] = 0;
}

static void *work(void *argument) {
    int me = (int)(intptr_t)argument;
    for (size_t kind = 0; kind < KINDS; kind++) fill(&workers[me], kind, kind == KINDS - 1 ? 1 + scale / 50 : scale);
    scrub();
    pthread_barrier_wait(&together);
    if (me) pause();
    return NULL;
}

static void account(const char *file) {
    int (*mallctl)(const char *, void *, size_t *, void *, size_t) = dlsym(RTLD_DEFAULT, "mallctl");
    void (*dump)(const char *) = dlsym(RTLD_DEFAULT, "HeapProfilerDump");
    int (*running)(void) = dlsym(RTLD_DEFAULT, "IsHeapProfilerRunning");
    if (mallctl && mallctl("prof.dump", NULL, NULL, &file, sizeof file)) _exit(3);
    if (dump && running && running()) dump("asked for");
}

int main(int argc, char **argv) {
    pthread_t thread;
    if (argc != 4) return 2;
    threads = atoi(argv[1]);
    scale = (size_t)atol(argv[2]);
    if (threads < 1 || threads > MOST) return 2;
    if (MallocExtension_Internal_SetProfileSamplingInterval) MallocExtension_Internal_SetProfileSamplingInterval(1000);
    for (int i = 0; i < threads; i++) {
        workers[i].made = calloc(KINDS * scale + 1, sizeof *workers[i].made);
        workers[i].held = calloc(KINDS * scale + 1, sizeof *workers[i].held);
    }
    setvbuf(stdout, malloc(1 << 16), _IOFBF, 1 << 16);
    pthread_barrier_init(&together, NULL, (unsigned)threads);
    for (int i = 1; i < threads; i++)
        if (pthread_create(&thread, NULL, work, (void *)(intptr_t)i)) abort();
    work(NULL);
    for (int i = 0; i < threads; i++)
        for (size_t at = 0; at < workers[i].count; at++) {
            struct made *made = &workers[i].made[at];
            printf("%#lx %zu %s %s\n", (unsigned long)~made->hidden, made->size, made->held ? "held" : "lost", made->stack);
        }
    fflush(stdout);
    scrub();
    if (strcmp(argv[3], "-")) account(argv[3]);
    scrub();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
