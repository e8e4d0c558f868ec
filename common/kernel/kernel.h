/* What the kernel's files share. The kernel is plain C for a little-endian 64-bit target on a little-endian 64-bit host;
 * ../engine/kernel/ is its only caller, ../engine/python/ gives the same answers, and ../engine/contract.py says what they mean.
 *
 * Every address and length that came from a target may be wrong: nothing is read outside a piece, and every loop is bounded
 * by a piece's length or by a count of ours.
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

/* Bit counting decides the speed of look-ups, and the baseline x86-64 lacks the instruction: hot loops are compiled twice. */
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

/* Ask for the cache lines of `length` bytes that will be read soon. Beyond the end of memory this does nothing. */
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

/* The whole aligned words of a piece: the first at *address, of them the result. */
INLINE uint64_t piece_words(const piece *p, uint64_t *address) {
    uint64_t skip = -p->address & (WORD - 1);
    *address = p->address + skip;
    return p->length < skip ? 0 : (p->length - skip) / WORD;
}

/* follow.c: the last piece that begins at or below `address`, or NULL; the word at `address` in our memory, NULL unless it lies whole in
 * one; and whether `size` bytes at `address` were there. Pieces ascend. */
const piece *piece_holding(const piece *pieces, uint64_t count, uint64_t address);
const uint8_t *word_at(const piece *pieces, uint64_t count, uint64_t address);
bool copy_out(const piece *pieces, uint64_t count, uint64_t address, uint64_t size, uint8_t *out);

/* A growing array of `size`-byte elements: room for one more after `count`; the new array, or NULL with the old one intact. */
void *grow(void *array, uint64_t count, uint64_t *capacity, size_t size);

void *alloc_large(size_t bytes);

typedef struct {
    uint64_t *items;
    uint64_t count, capacity;
} words;

int words_push(words *list, uint64_t item);

/* follow.c: the nodes of a list, as fl_follow. */
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
