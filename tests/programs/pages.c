/* A glibc heap whose pages are known: blocks in use, cached, free and kept, free and returned, in use and never touched; the same in an
 * arena of a thread. Prints every live block, whether each page is resident (pagemap), and what malloc_trim(0) returns, which a
 * forked child tries out. Lines: "block ADDRESS USABLE", "cached ADDRESS USABLE", "pages START 0110…", "trim BYTES", "ready". */
#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define MOST 4096

static void *blocks[MOST];
static struct {
    void *address;
    size_t size;
} cached_blocks[MOST];
static int count, cached_count;
static uint64_t entries[1 << 16];
static uintptr_t arena;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t filled;

static void keep(void *block) {
    pthread_mutex_lock(&lock);
    blocks[count++] = block;
    pthread_mutex_unlock(&lock);
}

static void *touched(size_t size) {
    void *block = malloc(size);
    memset(block, 0x5a, size);
    return block;
}

/* The pages that malloc_trim returns of a free chunk: all whole pages after its header and links. */
static void give_back(void *block) {
    uintptr_t chunk = (uintptr_t)block - 16, size = malloc_usable_size(block) + 8;
    uintptr_t low = (chunk + 48 + PAGE - 1) & -PAGE, high = (chunk + size) & -PAGE;
    free(block);
    if (low < high && madvise((void *)low, high - low, MADV_DONTNEED))
        abort();
}

static void to_cache(void *block) {
    pthread_mutex_lock(&lock);
    cached_blocks[cached_count].address = block;
    cached_blocks[cached_count++].size = malloc_usable_size(block);
    pthread_mutex_unlock(&lock);
    free(block);
}

static void fill(unsigned seed) {
    void *large[60], *cached[7], *fast[200];
    for (int at = 0; at < 60; at++) {
        large[at] = touched(2000 + (seed = seed * 1103515245 + 12345) % 60000);
        keep(touched(24 + at % 5 * 16)); /* keeps free neighbours from merging */
    }
    for (int at = 0; at < 7; at++)
        cached[at] = touched(1032);
    keep(touched(24));
    for (int at = 0; at < 200; at++)
        fast[at] = touched(100);
    keep(touched(24));
    char *sparse = malloc(1 << 20); /* most of it is never touched */
    sparse[0] = sparse[(1 << 20) - 1] = 1;
    keep(sparse);
    for (int at = 0; at < 60; at++) {
        if (at % 3 == 0)
            give_back(large[at]);
        else if (at % 3 == 1)
            free(large[at]);
        else
            keep(large[at]);
    }
    for (int at = 0; at < 7; at++)
        to_cache(cached[at]);
    for (int at = 0; at < 7; at++)
        to_cache(fast[at]);
    for (int at = 7; at < 200; at++) /* to a fastbin: whole pages after they are merged */
        free(fast[at]);
    keep(touched(24));
}

static void *work(void *ignored) {
    fill(7);
    arena = (uintptr_t)blocks[count - 1] & -(64ul << 20);
    pthread_barrier_wait(&filled);
    pause();
    return ignored;
}

static unsigned long presence(uintptr_t start, uintptr_t end, int print) {
    int fd = open("/proc/self/pagemap", O_RDONLY);
    unsigned long present = 0, wanted = (end - start) / PAGE;
    if (wanted > sizeof entries / sizeof *entries || pread(fd, entries, wanted * 8, start / PAGE * 8) != (ssize_t)(wanted * 8))
        abort();
    close(fd);
    if (print)
        printf("pages %#lx ", start);
    for (unsigned long at = 0; at < wanted; at++) {
        present += entries[at] >> 63;
        if (print)
            putchar('0' + (int)(entries[at] >> 63));
    }
    if (print)
        putchar('\n');
    return present * PAGE;
}

int main(void) {
    static char out[1 << 16], maps[1 << 16];
    pthread_t thread;
    setvbuf(stdout, out, _IOFBF, sizeof out); /* a buffer that is not from malloc */
    mallopt(M_MMAP_THRESHOLD, 32 << 20); /* 2.31 accepts no larger value */
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
    mallopt(M_MXFAST, 128);
    uintptr_t start = (uintptr_t)sbrk(0);
    pthread_barrier_init(&filled, NULL, 2);
    fill(1);
    if (pthread_create(&thread, NULL, work, NULL))
        return 1;
    pthread_barrier_wait(&filled);
    keep((char *)((void **)thread)[1] - 16); /* the thread's DTV (tcbhead_t.dtv), which ld.so allocates with malloc */

    /* The thread's heap ends where its writable mapping does. */
    int fd = open("/proc/self/maps", O_RDONLY);
    size_t length = 0;
    for (ssize_t got; (got = read(fd, maps + length, sizeof maps - 1 - length)) > 0;)
        length += (size_t)got;
    close(fd);
    uintptr_t low, high, arena_end = 0;
    for (char *line = maps; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (sscanf(line, "%lx-%lx", &low, &high) == 2 && low == arena)
            arena_end = high;
    uintptr_t end = (uintptr_t)sbrk(0);
    int channel[2];
    if (!arena_end || pipe(channel))
        return 1;
    if (!fork()) {
        unsigned long before = presence(start, end, 0) + presence(arena, arena_end, 0);
        malloc_trim(0);
        uintptr_t now = (uintptr_t)sbrk(0);
        unsigned long returned = before - presence(start, now < end ? now : end, 0) - presence(arena, arena_end, 0);
        _exit(write(channel[1], &returned, sizeof returned) != sizeof returned);
    }
    unsigned long returned = 0;
    if (read(channel[0], &returned, sizeof returned) != sizeof returned || wait(NULL) < 0)
        return 1;
    for (int at = 0; at < count; at++)
        printf("block %p %zu\n", blocks[at], malloc_usable_size(blocks[at]));
    for (int at = 0; at < cached_count; at++)
        printf("cached %p %zu\n", cached_blocks[at].address, cached_blocks[at].size);
    presence(start, end, 1);
    presence(arena, arena_end, 1);
    printf("trim %lu\nready\n", returned);
    fflush(stdout);
    pause();
}
