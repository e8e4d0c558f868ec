// THREADS threads, each with an arena of its own, keep blocks and lose some; beside them lie mappings of no allocator: one that was only
// looked at, one that was written to, one that no_owner touched. Prints their sizes in bytes, in this order, and what is lost: blocks, bytes.
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { KEPT = 200, LOST = 2000, SIZE = 1000, MOST = 16, LOOKED = 24 << 20, WRITTEN = 9 << 20, UNTOUCHED = 40 << 20, APART = 1 << 20 };

static void *volatile kept[MOST][KEPT];
static volatile size_t usable;
static pthread_barrier_t made, never;

static void *work(void *argument) {
    long me = (long)argument;
    for (int i = 0; i < KEPT; i++) kept[me][i] = memset(malloc(SIZE), 'a', SIZE);
    for (int i = 0; i < LOST; i++) {
        char *volatile lost = memset(malloc(SIZE), 'x', SIZE);
        usable = malloc_usable_size(lost);
        lost = NULL;
    }
    pthread_barrier_wait(&made);
    pthread_barrier_wait(&never);
    return NULL;
}

static char *volatile mapped[8]; // references to all mappings of the program
static int mappings;

// Anonymous memory with an inaccessible page after it, so that the kernel does not merge two mappings.
static char *mapping(size_t size) {
    char *start = mmap(NULL, size + APART, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED || mprotect(start, size, PROT_READ | PROT_WRITE)) exit(1);
    madvise(start, size, MADV_NOHUGEPAGE); // otherwise, one read maps 2 MiB
    mapped[mappings++] = start;
    return start;
}

int main(int count, char **words) {
    long threads = count > 1 ? atol(words[1]) : 0;
    if (threads < 1 || threads > MOST) return 1;
    volatile char *looked = mapping(LOOKED);
    char sum = 0;
    for (int at = 0; at < LOOKED; at += 4096) sum += looked[at];
    memset(mapping(WRITTEN), 1 + sum, WRITTEN);
    mapping(UNTOUCHED);
    pthread_barrier_init(&made, NULL, threads + 1);
    pthread_barrier_init(&never, NULL, threads + 1);
    for (long i = 0; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)i)) return 1;
    }
    pthread_barrier_wait(&made);
    printf("%d %d %d %ld %ld\nready\n", LOOKED, WRITTEN, UNTOUCHED, threads * LOST, threads * LOST * (long)usable);
    fflush(stdout);
    pause();
}
