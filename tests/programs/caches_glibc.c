/* glibc heaps with something in every kind of list, and what malloc itself says of them as the last thing the program does.
 *
 * Usage: caches_glibc THREADS. Prints "mallinfo NAME VALUE" lines, what malloc_info writes, then "ready", and sleeps. Nothing is
 * allocated or freed behind the two calls: both print into static buffers. */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_barrier_t made;
static char written[1 << 20], buffer[1 << 16];

static void *keep[1 << 16];
static int kept, last;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *make(size_t size) {
    void *block = malloc(size);
    if (!block) _exit(4);
    memset(block, 0x5a, size < 64 ? size : 64);
    return block;
}

static void hold(size_t size) {
    void *block = make(size);
    pthread_mutex_lock(&lock);
    keep[kept++] = block;
    pthread_mutex_unlock(&lock);
}

/* `count` blocks of `size` with kept neighbours, all freed: some go to the thread cache, the others to fastbins or bins. */
static void lists(size_t size, int count) {
    void *blocks[64];
    for (int i = 0; i < count; i++) {
        blocks[i] = make(size);
        hold(24);
    }
    for (int i = 0; i < count; i++) free(blocks[i]);
}

static void mixture(int number) {
    for (int i = 0; i < 24; i++) hold(16 + 40 * (size_t)i);
    lists(24, 12 + number);
    lists(72, 20);
    lists(100, 31);
    lists(500, 12 + number);
    lists(1000, 20);
    lists(1032, 3);
    lists(1033, 20);
    lists(3000, 20);
    lists(70000, 3);
    hold(60000); /* moves chunks from the unsorted bin to their bins */
    lists(600, 21);
    lists(5000, 9);
    hold(200000 + 4096 * (size_t)number); /* in mappings */
    free(make(300000));
}

static void *thread(void *argument) {
    int number = (int)(intptr_t)argument;
    mixture(number);
    if (number == last) return 0; /* at its end, the thread's cache is freed, and its arena stays */
    if (number == 1)
        for (int i = 0; i < 800; i++) hold(100000); /* fills a second heap, most of which is not touched */
    if (number == 2) {
        void *blocks[60]; /* the heap grows and shrinks */
        for (int i = 0; i < 60; i++) blocks[i] = make(20000);
        for (int i = 60; i-- > 0;) free(blocks[i]);
    }
    pthread_barrier_wait(&made);
    for (;;) pause();
}

static void say(const char *text) {
    size_t length = strlen(text);
    if (write(1, text, length) != (ssize_t)length) _exit(3);
}

static void say_number(const char *name, unsigned long value) {
    char line[96];
    snprintf(line, sizeof line, "mallinfo %s %lu\n", name, value);
    say(line);
}

#define SAY(name) say_number(#name, (unsigned long)told.name)

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 4;
    FILE *file = fmemopen(written, sizeof written, "w");
    if (!file || setvbuf(file, buffer, _IOFBF, sizeof buffer)) return 1;
    mallopt(M_MMAP_THRESHOLD, 128 << 10); /* stays the threshold, even after mapped blocks are freed */
    last = threads;
    pthread_barrier_init(&made, 0, (unsigned)threads); /* with this thread, without the last one */
    pthread_t started;
    for (int i = 1; i <= threads; i++)
        if (pthread_create(&started, 0, thread, (void *)(intptr_t)i)) return 1;
    if (pthread_join(started, 0)) return 1;
    mixture(0);
    pthread_barrier_wait(&made);
    usleep(100000); /* time for the last thread to leave the barrier */
#if __GLIBC_PREREQ(2, 33)
    struct mallinfo2 told = mallinfo2();
#else
    struct mallinfo told = mallinfo();
#endif
    if (malloc_info(0, file) || fflush(file)) return 1;
    SAY(arena);
    SAY(ordblks);
    SAY(smblks);
    SAY(hblks);
    SAY(hblkhd);
    SAY(usmblks);
    SAY(fsmblks);
    SAY(uordblks);
    SAY(fordblks);
    SAY(keepcost);
    say(written);
    say("ready\n");
    for (;;) pause();
}
