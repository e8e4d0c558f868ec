/* A pool with two size classes, and with large blocks that have another header: for `--pools`.
 *
 * It prints the address, the size and the state ("in-use", "lost", "free") of each chunk, then "ready", and waits. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct slab {
    struct slab *next;
};
struct chunk {
    size_t class; /* the program's memory follows; in a free chunk, it begins with the address of the next free chunk */
};
struct size_class {
    struct slab *slabs;
    struct chunk *free;
    size_t bytes; /* of a chunk with its header */
};
struct large {
    struct large *next;
    size_t bytes; /* without this header */
};
static struct {
    struct size_class classes[2];
    struct large *large;
} request_pool = {.classes = {{.bytes = 40}, {.bytes = 136}}};
enum { SLAB = 4096, ROUNDS = 300 };

static void release(size_t class, void *memory) {
    struct chunk *chunk = (struct chunk *)memory - 1;
    memset(memory, 0, request_pool.classes[class].bytes - sizeof *chunk);
    *(struct chunk **)memory = request_pool.classes[class].free;
    request_pool.classes[class].free = chunk;
}

static void *allocate(size_t class) {
    struct size_class *its = &request_pool.classes[class];
    if (!its->free) {
        struct slab *slab = calloc(1, SLAB);
        slab->next = its->slabs;
        its->slabs = slab;
        for (char *at = (char *)(slab + 1); at + its->bytes <= (char *)slab + SLAB; at += its->bytes) release(class, at + sizeof(struct chunk));
    }
    struct chunk *chunk = its->free;
    its->free = *(struct chunk **)(chunk + 1);
    chunk->class = class;
    memset(chunk + 1, 0, its->bytes - sizeof *chunk);
    return chunk + 1;
}

static void *allocate_large(size_t bytes) {
    struct large *large = calloc(1, sizeof *large + bytes);
    large->next = request_pool.large;
    large->bytes = bytes;
    request_pool.large = large;
    return large + 1;
}

static void say(const char *pool, const void *memory, size_t size, const char *state) {
    printf("%s %#zx %zu %s\n", pool, (size_t)(uintptr_t)memory, size, state);
}

static void *volatile kept[3 * ROUNDS];

static __attribute__((noinline)) void fill(void) {
    for (int round = 0; round < ROUNDS; round++) {
        size_t bytes = 1000 + 8 * (size_t)round;
        void *memory[3] = {allocate(0), allocate(1), allocate_large(bytes)};
        size_t sizes[3] = {32, 128, bytes};
        const char *names[3] = {"small", "medium", "large"};
        for (int kind = 0; kind < 3; kind++) {
            if (round % 3 == 0) kept[3 * round + kind] = memory[kind];
            if (round % 3 == 2 && kind < 2)
                release((size_t)kind, memory[kind]);
            else
                say(names[kind], memory[kind], sizes[kind], round % 3 == 0 ? "in-use" : "lost");
        }
    }
    for (int class = 0; class < 2; class ++)
        for (struct chunk *one = request_pool.classes[class].free; one; one = *(struct chunk **)(one + 1))
            say(class ? "medium" : "small", one + 1, class ? 128 : 32, "free");
}

/* Overwrite what fill() has left on the stack. */
static __attribute__((noinline)) void clear(void) {
    volatile char space[16384];
    for (size_t at = 0; at < sizeof space; at++) space[at] = 0;
}

int main(void) {
    static char buffer[1 << 17];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    fill();
    clear();
    printf("ready\n");
    fflush(stdout);
    memset(buffer, 0, sizeof buffer);
    for (;;) pause();
}
