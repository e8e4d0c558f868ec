/* Block directory: sizes of sealed blocks take 1 byte each if there are few different ones, or 2
 * bytes each if all of them are multiples of the granule. */
#include "blocks.h"

#include <stdlib.h>

#define NUMBER_BITS 10 /* of a place in the hash table of sizes, which is at most a quarter full */

/* Return the number of a size. If it has none, give it number *count. LISTED_SIZE: there are too
 * many different sizes. `places`: a hash table of numbers, plus 1. */
static uint32_t number_of_size(blocks *b, uint16_t *places, uint32_t *count, uint32_t size) {
    uint32_t place = (size * 0x9E3779B1u) >> (32 - NUMBER_BITS);
    for (; places[place]; place = (place + 1) & ((1u << NUMBER_BITS) - 1))
        if (b->size_values[places[place] - 1u] == size)
            return places[place] - 1u;
    if (*count == LISTED_SIZE)
        return LISTED_SIZE;
    b->size_values[*count] = size;
    places[place] = (uint16_t)++*count;
    return *count - 1;
}

/* Replace the first `count` numbers by the sizes. The number of a block is not behind its size, so
 * that no number is overwritten before it is read. */
static void restore_sizes(blocks *b, const uint8_t *numbers, uint32_t count) {
    while (count--) {
        uint32_t size = b->size_values[numbers[count]];
        memcpy(&b->sizes[count], &size, sizeof size);
    }
}

/* Store sizes in 1 byte each, in the memory of `sizes`. Return false, with the sizes unchanged, if
 * there are too many different sizes. */
static bool number_sizes(blocks *b) {
    uint16_t places[1u << NUMBER_BITS] = {0};
    uint8_t *numbers = (uint8_t *)b->sizes;
    uint32_t count = 0, last = NONE, number = LISTED_SIZE;
    b->size_values[LISTED_SIZE] = NONE;
    for (uint32_t index = 0; index < b->count; index++) {
        uint32_t size;
        memcpy(&size, &b->sizes[index], sizeof size);
        if (size != last) { /* neighbours often have the same size */
            number = size == NONE ? LISTED_SIZE : number_of_size(b, places, &count, size);
            if (number == LISTED_SIZE && size != NONE) {
                restore_sizes(b, numbers, index);
                return false;
            }
            last = size;
        }
        numbers[index] = (uint8_t)number;
    }
    void *less = realloc(numbers, b->count);
    b->size_numbers = less ? less : numbers;
    b->sizes = NULL;
    return true;
}

/* Store sizes in 2 bytes each if all of them are multiples of the granule. 2 bytes are enough: NEAR
 * slots have fewer granules than 2 bytes can count, and sizes of larger blocks are in `bigs`. */
static void narrow_sizes(blocks *b) {
    uint32_t *sizes = b->sizes, off = (1u << b->granule_shift) - 1;
    for (uint32_t index = 0; index < b->count; index++)
        if (sizes[index] & off && sizes[index] != NONE)
            return;
    uint16_t *narrow = (uint16_t *)(void *)sizes;
    for (uint32_t index = 0; index < b->count; index++) {
        uint32_t size;
        memcpy(&size, &narrow[2 * (size_t)index], sizeof size);
        narrow[index] = size == NONE || size >> b->granule_shift >= WIDE_SIZE ? WIDE_SIZE : (uint16_t)(size >> b->granule_shift);
    }
    void *less = realloc(narrow, b->count * sizeof *narrow);
    b->narrow_sizes = less ? less : narrow;
    b->sizes = NULL;
}

/* Return pages of the array of states to the kernel if all of their bytes are 0, that is, if all of
 * their blocks are in use. In a compacted heap, this is true for every page. */
static void release_states(blocks *b) {
    for (uint32_t from = 0, end; from < b->count; from = end + 1) {
        const uint8_t *other = b->states + from;
        const uint8_t *last = b->states + b->count;
        while (last - other >= 8 && !eight_bytes(other))
            other += 8;
        while (other < last && *other == IN_USE)
            other++;
        end = (uint32_t)(other - b->states);
        release_zeros(b->states + from, end - from);
    }
}

/* Release unused memory: the spare capacity of the arrays, unused bytes of the sizes, and pages of
 * the states. */
API void fl_seal(blocks *b) {
    drop_spares(b);
    if (!b->count || !b->sizes)
        return;
    void *sizes = realloc(b->sizes, b->count * sizeof *b->sizes);
    b->sizes = sizes ? sizes : b->sizes;
    if (!number_sizes(b))
        narrow_sizes(b);
    void *states = realloc(b->states, b->count);
    b->states = states ? states : b->states;
    release_states(b);
    uint64_t *samples = realloc(b->samples.items, b->samples.count * sizeof *samples);
    b->samples.items = samples ? samples : b->samples.items;
    b->samples.capacity = b->samples.count;
    b->capacity = b->count;
    trim_memory(b->count);
}

static int widen_sizes(blocks *b) {
    uint32_t *sizes = malloc(b->count * sizeof *sizes);
    if (!sizes)
        return NO_MEMORY;
    for (uint32_t index = 0; index < b->count; index++)
        sizes[index] = short_size(b, index);
    DROP(b->size_numbers);
    DROP(b->narrow_sizes);
    b->sizes = sizes;
    return DONE;
}

API int fl_resize(blocks *b, uint32_t index, uint64_t size) {
    uint64_t start = block_address(b, index);
    uint64_t limit = index + 1 < b->count ? start_after(b, start, index + 1) : HIGHEST;
    DROP(b->sums);
    if (size > limit - start)
        return DISORDER;
    if (!b->sizes && widen_sizes(b))
        return NO_MEMORY;
    if (cover(b, index, start, size))
        return NO_MEMORY;
    big *listed = big_of(b, index);
    if (listed)
        listed->size = size;
    b->sizes[index] = size < NONE ? (uint32_t)size : NONE;
    return DONE;
}
