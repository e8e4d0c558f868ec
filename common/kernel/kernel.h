/* What the kernel's files share. The kernel is C for a little-endian 64-bit target on a
 * little-endian 64-bit host. ../engine/kernel/ calls it, ../engine/python/ gives the same results,
 * ../engine/contract.py defines them.
 *
 * Every address and length from a target may be wrong: nothing is read outside of a piece, and
 * every loop is bounded by a piece's length or by a count that the kernel made.
 */
#ifndef FINDLEAKS_KERNEL_H
#define FINDLEAKS_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#define WORD 8u
#define NONE UINT32_MAX

/* Population counts decide the speed of look-ups, and baseline x86-64 lacks the instruction: hot
 * loops are compiled twice. */
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

enum { DONE = 0, NO_MEMORY = -1, TOO_MANY = -2, DISORDER = -3 };
enum { IN_USE = 0, CACHED = 1, FREE = 2, METADATA = 3 };
enum { UNKNOWN = 0, REACHABLE = 1, POSSIBLE = 2, DEFINITE = 3, INDIRECT = 4 };

#define MAX_BLOCKS (UINT64_C(1) << 30)
#define MAX_EDGES ((uint64_t)INT32_MAX)

INLINE uint64_t load(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* Prefetch the cache lines of `length` bytes. Harmless beyond the end of memory. */
INLINE void prefetch_ahead(const uint8_t *at, uint64_t ahead, uint64_t length) {
    uintptr_t line = (uintptr_t)at + ahead;
    for (uint64_t done = 0; done < length; done += 64)
        __builtin_prefetch((const void *)(line + done));
}

/* Bytes of a target at `address`. */
typedef struct {
    uint64_t address;
    const uint8_t *data;
    uint64_t length;
} piece;

/* Number of whole aligned words in a piece; *address becomes that of the first. */
INLINE uint64_t piece_words(const piece *p, uint64_t *address) {
    uint64_t skip = -p->address & (WORD - 1);
    *address = p->address + skip;
    return p->length < skip ? 0 : (p->length - skip) / WORD;
}

/* follow.c, over ascending pieces: the last piece that begins at or below `address`, or NULL; the
 * word at `address`, NULL unless one piece contains it; and copying `size` bytes, false if any is
 * missing. */
const piece *piece_holding(const piece *pieces, uint64_t count, uint64_t address);
const uint8_t *word_at(const piece *pieces, uint64_t count, uint64_t address);
bool copy_out(const piece *pieces, uint64_t count, uint64_t address, uint64_t size, uint8_t *out);

/* Grow an array of `size`-byte elements so that element `count` fits: the array, or NULL with the
 * old one intact. */
void *grow(void *array, uint64_t count, uint64_t *capacity, size_t size);

void *alloc_large(size_t bytes);

typedef struct {
    uint64_t *items;
    uint64_t count, capacity;
} words;

int words_push(words *list, uint64_t item);

/* follow.c: the nodes of a list, as fl_follow_list. */
int follow_list(const piece *pieces, uint64_t count, uint64_t *head, int64_t next_offset, bool mangled, uint64_t limit, words *nodes);

typedef struct {
    uint64_t start, end;
} range;

/* Is `address` in one of these sorted, disjoint ranges? */
INLINE bool in_ranges(const range *ranges, uint32_t count, uint64_t address) {
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (ranges[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low && address < ranges[low - 1].end;
}

#endif
