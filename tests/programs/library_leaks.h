/* Parts of library_leaks.c: a malloc that records for which way of leaking it allocated each block, and random numbers. */
#ifndef LIBRARY_LEAKS_H
#define LIBRARY_LEAKS_H

#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define CHECK(condition)                                                                                                                   \
    do {                                                                                                                                   \
        if (!(condition)) fprintf(stderr, "line %d: %s\n", __LINE__, #condition), exit(1);                                                  \
    } while (0)
#define APART __attribute__((noinline))

/* ---- what malloc gives ---------------------------------------------------------------------------------------------------------------- */

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
void __libc_free(void *);

enum { SLOTS = 1 << 20 };
struct slot {
    uint64_t hidden; /* the complement of the address, so that it is not a pointer */
    int way;         /* 0: the block belongs to no way of leaking */
};
static struct slot *slots; /* a hash table by address: if a slot is taken, the next one is used */
static int way;            /* the way whose blocks are allocated now; 0: none */

static struct slot *slot_of(uint64_t hidden) {
    uint64_t at = hidden * 0x9e3779b97f4a7c15u >> 44;
    while (slots[at].hidden && slots[at].hidden != hidden) at = (at + 1) % SLOTS;
    return slots + at;
}

static void *made(void *block) {
    if (slots && block) {
        struct slot *one = slot_of(~(uint64_t)block);
        if (way || one->hidden) *one = (struct slot){~(uint64_t)block, way};
    }
    return block;
}

static void gone(void *block) {
    if (slots && block) slot_of(~(uint64_t)block)->way = 0;
}

void *malloc(size_t size) { return made(__libc_malloc(size)); }
void *calloc(size_t count, size_t size) { return made(__libc_calloc(count, size)); }
void *memalign(size_t to, size_t size) { return made(__libc_memalign(to, size)); }
void *aligned_alloc(size_t to, size_t size) { return made(__libc_memalign(to, size)); }
void free(void *block) {
    gone(block);
    __libc_free(block);
}
void *realloc(void *block, size_t size) {
    gone(block);
    return made(__libc_realloc(block, size));
}
int posix_memalign(void **block, size_t to, size_t size) { return (*block = made(__libc_memalign(to, size))) ? 0 : 12; }

/* ---- chance --------------------------------------------------------------------------------------------------------------------------- */

static uint64_t state;

static uint64_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state >> 11;
}

static unsigned any(unsigned low, unsigned high) { return low + (unsigned)(draw() % (high - low + 1)); }

static const char *word(void) {
    static char text[4][64];
    static unsigned turn;
    char *made = text[turn++ % 4], *at = made;
    for (unsigned left = any(4, 40); left; left--) *at++ = (char)('a' + any(0, 25));
    *at = 0;
    return made;
}

#endif
