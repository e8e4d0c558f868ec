/* Declarations that the C engine's files share. Each library built from them serves targets of
 * one word size and byte order, on 64-bit little-endian hosts. ../engine/native/ calls it;
 * ../engine/reference/ gives the same results, which ../engine/contract.py defines.
 *
 * Any address and length from a target may be wrong. So nothing outside of pieces is read, and
 * loops are limited by a piece's length or by a count that the C engine computed. */
#ifndef FINDLEAKS_NATIVE_H
#define FINDLEAKS_NATIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

/* The target's words: the build sets WORD to 4 or 8 bytes, and BIG to 1 for big-endian ones. */
#ifndef WORD
#define WORD 8u
#endif
#ifndef BIG
#define BIG 0
#endif
#define HIGHEST (UINT64_MAX >> (64 - 8 * WORD)) /* address */

#define NONE UINT32_MAX

/* The speed of look-ups depends on population counts. Baseline x86-64 has no instruction for them,
 * so hot loops are compiled twice. */
#if defined(__x86_64__)
#define POPCNT __attribute__((target("popcnt")))
#define AVX2 __attribute__((target("avx2,popcnt")))
#define has_popcnt() (__builtin_cpu_supports("popcnt") != 0)
#define has_avx2() (__builtin_cpu_supports("avx2") != 0 && has_popcnt())
#else
#define POPCNT
#define has_popcnt() false
#define has_avx2() false
#endif

enum { DONE = 0, NO_MEMORY = -1, TOO_MANY_BLOCKS = -2, DISORDER = -3, TOO_MANY_EDGES = -4 };
enum { IN_USE = 0, CACHED = 1, FREE = 2, METADATA = 3 };
enum { UNKNOWN = 0, REACHABLE = 1, POSSIBLE = 2, DEFINITE = 3, INDIRECT = 4 };

#define MAX_BLOCKS (UINT64_C(1) << 30)
#define MAX_EDGES ((uint64_t)INT32_MAX)

/* eight_bytes: read 8 bytes in this machine's byte order. load16, load32, load64, load: read a
 * number of 2, 4 or 8 bytes, or a word, in the target's byte order. */
INLINE uint64_t eight_bytes(const uint8_t *at) {
    uint64_t bytes;
    memcpy(&bytes, at, sizeof bytes);
    return bytes;
}

INLINE uint16_t load16(const uint8_t *at) {
    uint16_t number;
    memcpy(&number, at, sizeof number);
    return BIG ? __builtin_bswap16(number) : number;
}

INLINE uint32_t load32(const uint8_t *at) {
    uint32_t number;
    memcpy(&number, at, sizeof number);
    return BIG ? __builtin_bswap32(number) : number;
}

INLINE uint64_t load64(const uint8_t *at) { return BIG ? __builtin_bswap64(eight_bytes(at)) : eight_bytes(at); }

INLINE uint64_t load(const uint8_t *at) { return WORD == 8 ? load64(at) : load32(at); }

/* Prefetch the cache lines of `length` bytes. Harmless beyond the end of memory. */
INLINE void prefetch_ahead(const uint8_t *at, uint64_t ahead, uint64_t length) {
    uintptr_t line = (uintptr_t)at + ahead;
    for (uint64_t done = 0; done < length; done += 64)
        __builtin_prefetch((const void *)(line + done));
}

/* Prefetch up to `ahead` bytes after data[offset], for a walk in which the place of each header
 * depends on the previous one. *fetched: offset up to which bytes are already prefetched. */
INLINE void prefetch_on(const uint8_t *data, uint64_t offset, uint64_t ahead, uint64_t *fetched) {
    if (offset + ahead > *fetched) {
        uint64_t from = *fetched > offset ? *fetched - offset : 0;
        prefetch_ahead(data + offset, from, ahead - from);
        *fetched = offset + ahead;
    }
}

/* Return element `at` of an array of type numbers, which have 2 or 4 bytes each (`width`). The
 * largest number of either width stands for no type: the result is then NONE. */
INLINE uint32_t type_number(const uint8_t *numbers, uint64_t width, uint64_t at) {
    uint16_t narrow;
    uint32_t wide;
    if (width == sizeof narrow) {
        memcpy(&narrow, numbers + at * sizeof narrow, sizeof narrow);
        return narrow == UINT16_MAX ? NONE : narrow;
    }
    memcpy(&wide, numbers + at * sizeof wide, sizeof wide);
    return wide;
}

/* Bytes of a target at `address`. */
typedef struct {
    uint64_t address;
    const uint8_t *data;
    uint64_t length;
} piece;

/* Whole aligned words in a piece; *address: that of the first. */
INLINE uint64_t piece_words(const piece *p, uint64_t *address) {
    uint64_t skip = -p->address & (WORD - 1);
    *address = p->address + skip;
    return p->length < skip ? 0 : (p->length - skip) / WORD;
}

/* Return the `size` bytes at `address`; NULL unless the piece, which may be NULL, has all of
 * them. */
INLINE const uint8_t *bytes_in(const piece *p, uint64_t address, uint64_t size) {
    uint64_t offset = p ? address - p->address : 0;
    return p && offset < p->length && p->length - offset >= size ? p->data + offset : NULL;
}

/* follow.c, for ascending pieces. piece_holding: the last piece that begins at or below
 * `address`, or NULL. memory_at: `size` bytes at `address`, or NULL unless one piece contains all
 * of them. word_at: the word at `address`, in the same way. copy_out: copy bytes, also from several
 * pieces; false if a byte is missing. */
const piece *piece_holding(const piece *pieces, uint64_t count, uint64_t address);
const uint8_t *memory_at(const piece *pieces, uint64_t count, uint64_t address, uint64_t size);
const uint8_t *word_at(const piece *pieces, uint64_t count, uint64_t address);
bool copy_out(const piece *pieces, uint64_t count, uint64_t address, uint64_t size, uint8_t *out);

/* Pieces that are read at nearby addresses. `recent`: the piece of the last read, or NULL. */
typedef struct {
    const piece *pieces, *recent;
    uint64_t count;
} piece_reader;

/* As memory_at. Most reads are in the same piece as the read before, and need no search. */
INLINE const uint8_t *memory_near(piece_reader *r, uint64_t address, uint64_t size) {
    const uint8_t *found = bytes_in(r->recent, address, size);
    if (!found)
        found = bytes_in(r->recent = piece_holding(r->pieces, r->count, address), address, size);
    return found;
}

/* Bisection: raises `low` to the first number in [low, high) at which `before` is false, or to
 * `high`. `before` is an expression of `middle`, a number, and true below the result. */
#define BISECT(low, high, middle, before)                          \
    for (__typeof__(low) bound_ = (high), middle; low < bound_;) { \
        middle = low + (bound_ - low) / 2;                         \
        if (before)                                                \
            low = middle + 1;                                      \
        else                                                       \
            bound_ = middle;                                       \
    }

/* Grow the array of `size`-byte elements that the pointer at `array` refers to, so that element
 * `count` fits: false without memory, with the array intact. */
bool grow(void *array, uint64_t count, uint64_t *capacity, size_t size);

/* Make pages of memory resident that will be written soon, so that another thread need not wait
 * for them. */
void ready_pages(void *memory, size_t bytes);

/* Allocate zeros (NULL if out of memory), and free them. A large array has pages of its own: unlike
 * an array from calloc, it never separates free parts of malloc's heap, and its pages are only
 * resident once they are written. */
void *allocate_zeros(size_t bytes);
void free_zeros(void *memory, size_t bytes);

void release_zeros(void *memory, size_t bytes);
void trim_memory(uint64_t blocks);

/* FREE_ALL frees several pointers, any of which may be NULL. DROP frees a pointer, and sets it to
 * NULL. */
void free_all(void *const *all, size_t count);
#define FREE_ALL(...) free_all((void *const[]){__VA_ARGS__}, sizeof((void *const[]){__VA_ARGS__}) / sizeof(void *))
#define DROP(pointer) (free(pointer), (pointer) = NULL)

#define LIST(type)                \
    struct {                      \
        type *items;              \
        uint64_t count, capacity; \
    }

/* Append an item to a list: DONE or NO_MEMORY. */
#define PUSH(list, ...)                                                                                         \
    ((list).count < (list).capacity || grow(&(list).items, (list).count, &(list).capacity, sizeof *(list).items) \
         ? ((list).items[(list).count++] = (__VA_ARGS__), DONE)                                                 \
         : NO_MEMORY)

typedef LIST(uint64_t) words;

INLINE int words_push(words *list, uint64_t item) { return PUSH(*list, item); }

int words_append(words *list, const uint64_t *items, size_t count);
#define PUSH_ALL(list, ...) words_append(list, (const uint64_t[]){__VA_ARGS__}, sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

typedef struct {
    uint64_t start, end;
} range;

/* Return the one of these sorted, disjoint ranges that contains `address`, or NULL. */
INLINE const range *range_holding(const range *ranges, uint32_t count, uint64_t address) {
    uint32_t after = 0;
    BISECT(after, count, middle, ranges[middle].start <= address)
    return after && address < ranges[after - 1].end ? &ranges[after - 1] : NULL;
}

INLINE bool in_ranges(const range *ranges, uint32_t count, uint64_t address) {
    return range_holding(ranges, count, address) != NULL;
}

/* follow.c: as fl_follow_list. */
int follow_list(const piece *pieces, uint64_t count, uint64_t *head, int64_t next_offset, bool mangled, uint64_t limit, words *nodes);
/* count_words: the words of some pieces. follow_lists: as fl_follow_all, with the maximum number of
 * `nodes`, which may already contain some. */
uint64_t count_words(const piece *pieces, uint64_t count);
int follow_lists(const piece *pieces, uint64_t count, const uint64_t *heads, uint64_t lists, int64_t next_offset, uint64_t limit,
                 const range *within, uint64_t most, words *nodes, uint64_t *ends, words *problems);

#include "api.h"

#endif
