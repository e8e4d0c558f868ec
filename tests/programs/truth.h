/* What truth.c is built on: blocks whose pointers' lifetimes are controlled, and a list of them that leaves no pointer behind.
 *
 * Pointers are kept only where a category wants them. On the way there they are held as their complement (~p is no valid
 * address), passed in registers, and what calls leave on the stack and in registers is wiped before the program stops. */
#ifndef TRUTH_H
#define TRUTH_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __clang__
#define NOINLINE __attribute__((noinline))
#else
#define NOINLINE __attribute__((noinline, noclone))
#endif
#define WORD sizeof(void *)

#define HELPER __attribute__((unused)) NOINLINE /* not every program uses all of these functions */

typedef uintptr_t hidden; /* the complement of a pointer */

static inline hidden hide(const void *p) {
    uintptr_t v = ~(uintptr_t)p;
    __asm__ volatile("" : "+r"(v)); /* hides the value from the compiler, which otherwise keeps p */
    return v;
}

static inline void *reveal(hidden h) {
    __asm__ volatile("" : "+r"(h));
    return (void *)~h;
}

/* ---- the list ------------------------------------------------------------------------------------------------------ */

static __thread hidden truth_key __attribute__((unused)); /* malloc's mark in the second word of each block in this thread's cache; 0: no cache */

static int truth_other __attribute__((unused)); /* a malloc other than glibc's: it is not known whether a freed block is cached ("freed") */

static inline char *put_hex(char *at, uint64_t v) {
    for (int shift = 60; shift >= 0; shift -= 4) *at++ = "0123456789abcdef"[v >> shift & 15];
    return at;
}

static inline char *put_text(char *at, const char *text) {
    while (*text) *at++ = *text++;
    return at;
}

/* One line: address usable requested state kind leader category alignment. The buffer is overwritten, although text is no pointer. */
static HELPER void note_line(uint64_t p, uint64_t usable, uint64_t requested, const char *state, const char *kind, uint64_t leader,
                               const char *category, uint64_t alignment) {
    char line[256];
    char *at = put_hex(line, p);
    *at++ = ' ';
    at = put_hex(at, usable);
    *at++ = ' ';
    at = put_hex(at, requested);
    *at++ = ' ';
    at = put_text(at, state);
    *at++ = ' ';
    at = put_text(at, kind);
    *at++ = ' ';
    at = put_hex(at, leader);
    *at++ = ' ';
    at = put_text(at, category);
    *at++ = ' ';
    at = put_hex(at, alignment);
    *at++ = '\n';
    if (write(1, line, (size_t)(at - line)) != at - line) abort();
    explicit_bzero(line, sizeof line);
}

struct block { /* never in memory while the program is stopped */
    void *p;
    size_t requested : 8 * WORD - 8;
    size_t aligned : 8; /* the binary logarithm of what memalign was asked for; 0: not aligned. Two words in all: they stay in registers */
};

static inline void note(struct block b, const char *kind, const void *leader, const char *category) {
    note_line((uintptr_t)b.p, malloc_usable_size(b.p), b.requested, "in-use", kind, (uintptr_t)leader, category, b.aligned ? UINT64_C(1) << b.aligned : 0);
}

static inline void note_reachable(struct block b, const char *category) { note(b, "reachable", NULL, category); }
static inline void note_possible(struct block b, const char *category) { note(b, "possible", NULL, category); }
static inline void note_definite(struct block b, const char *category) { note(b, "definite", b.p, category); }
static inline void note_indirect(struct block b, struct block leader, const char *category) { note(b, "indirect", leader.p, category); }

/* Free a block and record whether it went to the thread cache: then it contains malloc's mark. */
static HELPER void free_and_note(struct block b, const char *category) {
    uint64_t usable = malloc_usable_size(b.p);
    hidden again = hide(b.p);
    int gone = truth_key && ((volatile uintptr_t *)b.p)[-1] & 2; /* IS_MMAPPED: free unmaps the block */
    ((volatile uintptr_t *)b.p)[1] = 0;
    free(b.p);
    volatile uintptr_t *words = reveal(again);
    int cached = truth_key && !gone && ~words[1] == truth_key;
    const char *state = truth_other ? "freed" : cached ? "cached" : "free";
    note_line((uintptr_t)words, usable, b.requested, state, "none", 0, category, 0);
}

/* Read that mark from a cached block. (2.31 uses the address of the thread's cache.) The first free may find the
 * cache filled from a bin. In both cases the cache then has a block, which the second request takes and returns. */
static HELPER void learn_key(void) {
    for (int i = 0; i < 2; i++) {
        hidden block = hide(malloc(24));
        ((volatile uintptr_t *)reveal(block))[1] = 0;
        free(reveal(block));
        truth_key = ~((volatile uintptr_t *)reveal(block))[1];
    }
    if (!~truth_key) abort();
}

/* ---- allocation ---------------------------------------------------------------------------------------------------- */

struct rng {
    uintptr_t parts[4]; /* 16 bits in each word, because a word with more bits might look like an address */
};

static inline void seed(struct rng *r, uint64_t state) {
    for (int i = 0; i < 4; i++) r->parts[i] = state >> 16 * i & 0xffff;
}

static inline uint64_t draw(struct rng *r, uint64_t below) {
    uint64_t state = 0;
    for (int i = 0; i < 4; i++) state |= (uint64_t)r->parts[i] << 16 * i;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    seed(r, state);
    return (state >> 11) % below;
}

/* Fill a block with text: its words are not addresses, and no former content remains. */
static inline void fill(void *p, size_t size) {
    for (size_t i = 0; i < size; i++) ((volatile char *)p)[i] = (char)('a' + i % 26);
}

static inline size_t pick_size(struct rng *r, size_t least) {
    static const size_t spans[] = {40, 40, 120, 120, 400, 1000, 4000, 20000};
    return least + draw(r, spans[draw(r, 8)]);
}

/* A block of at least `size` bytes from one of malloc's functions, completely filled. */
static HELPER struct block make(struct rng *r, size_t size) {
    void *p = NULL;
    unsigned aligned = 0;
    switch (draw(r, 12)) {
    case 0: p = calloc(1, size); break;
    case 1: p = realloc(malloc(size / 2 + 1), size); break;
    case 2: p = realloc(malloc(size * 2), size); break;
    case 3: p = memalign(1u << (aligned = 6), size); break;
    case 4: p = memalign(1u << (aligned = 8), size); break;
    case 5: p = draw(r, 4) ? malloc(size) : memalign(1u << (aligned = 12), size); break;
    case 6:
        if (posix_memalign(&p, 1u << (aligned = 5), size)) abort();
        break;
    default: p = malloc(size);
    }
    if (!p) abort();
    fill(p, malloc_usable_size(p));
    return (struct block){p, size, aligned};
}

static inline struct block make_any(struct rng *r) { return make(r, pick_size(r, 24)); }

/* Store `value` in a word of `b`, chosen by `nth` (0, 1, 2) and at random. The words differ for different `nth`. */
static inline void **slot(struct rng *r, struct block b, unsigned nth) {
    size_t words = b.requested / WORD / 3;
    return (void **)b.p + nth + 3 * draw(r, words ? words : 1);
}

static inline void link_to(struct rng *r, struct block from, unsigned nth, void *to) { *(void *volatile *)slot(r, from, nth) = to; }

static inline struct block lowest(const struct block *b, size_t n) {
    struct block low = b[0];
    for (size_t i = 1; i < n; i++)
        if ((uintptr_t)b[i].p < (uintptr_t)low.p) low = b[i];
    return low;
}

/* ---- wiping and stopping ------------------------------------------------------------------------------------------- */

/* Overwrite the stack below the current frame, so that unused words of later frames contain no old pointers. */
static HELPER void scrub(void) {
    volatile char dead[48 << 10];
    for (size_t i = 0; i < sizeof dead; i++) dead[i] = 0;
    __asm__ volatile("" : : "r"(dead) : "memory");
}

#define IN_REGISTERS 8 /* stop() in truth_stop.h says which */
#define BELOW_STACK 8  /* index of the word below the stack pointer */

__attribute__((used)) static atomic_int stopped;
__attribute__((used)) static const char ready_text[] = "ready\n";

#include "truth_stop.h"

#endif
