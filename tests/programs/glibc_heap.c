/* Heaps in unusual states, and malloc's own counters for them.
 *
 * Usage: glibc_heap SCENARIO [THREADS]. Prints a line a block as it is made or freed, "in-use ADDRESS USABLE" or "freed ADDRESS USABLE",
 * then "total NAME VALUE" lines of what mallinfo(3) says, then "ready", and sleeps. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static pthread_barrier_t started, made;

/* Lines are written with write(2), because stdio would allocate its buffer in the heap under test. */
static void say(const char *state, void *block, size_t usable) {
    char line[96];
    int length = snprintf(line, sizeof line, "%s %#lx %zu\n", state, (unsigned long)block, usable);
    if (write(1, line, (size_t)length) != length) _exit(3);
}

static void total(const char *name, int bytes) {
    char line[96];
    int length = snprintf(line, sizeof line, "total %s %u\n", name, (unsigned)bytes);
    if (write(1, line, (size_t)length) != length) _exit(3);
}

static void *make(size_t size) {
    void *block = malloc(size);
    if (!block) _exit(4);
    memset(block, 0x5a, size);
    return block;
}

static void *keep(size_t size) {
    void *block = make(size);
    say("in-use", block, malloc_usable_size(block));
    return block;
}

static void drop(void *block) {
    say("freed", block, malloc_usable_size(block));
    free(block);
}

/* Twelve blocks of a fastbin's size with kept neighbours: 7 go to the cache (16 since 2.42),
 * the others to a fastbin. Three blocks that are too large for both go to the unsorted bin. */
static void mixture(void) {
    void *small[12], *large[3];
    for (int i = 0; i < 12; i++) {
        small[i] = make(56);
        keep(40);
    }
    for (int i = 0; i < 3; i++) {
        large[i] = make(5000);
        keep(100 + 300 * (size_t)i);
    }
    for (int i = 0; i < 12; i++) drop(small[i]);
    for (int i = 0; i < 3; i++) drop(large[i]);
}

static void *thread(void *argument) {
    pthread_barrier_wait(&started); /* starting a thread calls malloc, too */
    for (uintptr_t i = 0; i < (uintptr_t)argument; i++) { /* most pages are not touched: they use addresses, but no memory */
        void *block = malloc(100000);
        say("in-use", block, malloc_usable_size(block));
    }
    mixture();
    pthread_barrier_wait(&made);
    pause();
    return 0;
}

static void threads(int count, uintptr_t large) {
    pthread_barrier_init(&started, 0, (unsigned)count + 1);
    pthread_barrier_init(&made, 0, (unsigned)count + 1);
    for (int i = 0; i < count; i++) {
        pthread_t id;
        if (pthread_create(&id, 0, thread, (void *)large)) _exit(5);
    }
    pthread_barrier_wait(&started);
    pthread_barrier_wait(&made);
}

/* Other code also moves the break: by pages, and by a few bytes that leave it unaligned. The memory that it gets is not malloc's. */
static void foreign_break(void) {
    static const intptr_t sizes[] = {4096, 24, 70000, 8};
    for (unsigned i = 0; i < 4; i++) {
        for (int j = 0; j < 50; j++) keep(2000 + 16 * (size_t)j);
        char *theirs = sbrk(sizes[i]);
        memset(theirs, i & 1 ? 0x21 : 0, (size_t)sizes[i]);
        void **held = (void **)(((uintptr_t)theirs + 7) & ~(uintptr_t)7);
        *held = 0;
        if (sizes[i] >= 4096) *held = keep(3333); /* reachable only through memory that is not malloc's */
        for (int j = 0; j < 80; j++) keep(3000);
    }
    void *last = make(1000);
    keep(24);
    drop(last);
}

/* The break can no longer grow: malloc maps at least 1 MiB at a time. */
static void no_break(void) {
    mixture();
    void *block = sbrk(0);
    if (mmap((void *)(((uintptr_t)block + 0xffff) & ~(uintptr_t)4095), 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) _exit(6);
    for (int i = 0; i < 3000; i++) keep(1000 + 16 * ((size_t)i % 9));
    mixture();
}

static void mapped(void) {
    for (size_t i = 0; i < 5; i++) {
        keep(200000 + 10000 * i);
        for (size_t alignment = 64; alignment <= 1 << 20; alignment *= 8) {
            void *block = memalign(alignment, 150000);
            say("in-use", block, malloc_usable_size(block));
        }
        void *other = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); /* freed, it merges with its neighbours */
        memset(other, 1, 8192);
    }
    void *grown = realloc(memalign(4096, 140000), 900000);
    say("in-use", grown, malloc_usable_size(grown));
}

/* A second libc in a separate namespace, with its own main arena, which never uses the break. */
static void namespace(void) {
    void *libc = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
    void *(*other)(size_t) = (void *(*)(size_t))(libc ? dlsym(libc, "malloc") : 0);
    size_t (*usable)(void *) = (size_t (*)(void *))(libc ? dlsym(libc, "malloc_usable_size") : 0);
    if (!other) _exit(7);
    for (size_t i = 0; i < 2000; i++) {
        void *block = other(i % 1500);
        say("in-use", block, usable(block));
    }
    for (size_t i = 0; i < 3; i++) {
        void *block = other(300000 + i);
        say("in-use", block, usable(block));
    }
    mixture();
    keep(400000);
}

int main(int count, char **words) {
    const char *scenario = count > 1 ? words[1] : "";
    int wanted = count > 2 ? atoi(words[2]) : 4;
    if (!strcmp(scenario, "plain")) mixture();
    else if (!strcmp(scenario, "threads")) threads(wanted, 0), mixture();
    else if (!strcmp(scenario, "only-threads")) threads(wanted, 0);
    else if (!strcmp(scenario, "long-arenas")) threads(wanted, 1500); /* 150 MB each: three heaps of 64 MiB */
    else if (!strcmp(scenario, "foreign")) foreign_break();
    else if (!strcmp(scenario, "no-break")) no_break();
    else if (!strcmp(scenario, "mapped")) mapped();
    else if (!strcmp(scenario, "namespace")) namespace();
    else if (strcmp(scenario, "nothing")) return 2;
    if (strcmp(scenario, "nothing") && strcmp(scenario, "only-threads")) { /* otherwise, the call would initialise main_arena */
        struct mallinfo info = mallinfo();
        total("arena", info.arena);
        total("hblks", info.hblks);
        total("hblkhd", info.hblkhd);
        total("fordblks", info.fordblks);
    }
    if (write(1, "ready\n", 6) != 6) return 3;
    for (;;) pause();
}
