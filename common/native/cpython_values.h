/* Separate blocks with the values of a dictionary, in CPython 3.13 and later. */
#ifndef CPYTHON_VALUES_H
#define CPYTHON_VALUES_H

#include "blocks.h"

#define MOST_VALUES 30u    /* SHARED_KEYS_MAX_SIZE */
#define LOWEST_VALUE 4096u /* lowest possible address of an object */
#define ADDRESS_BITS 48u

/* Return the number of the first word after the values in a block with the layout of 3.13; 0 if
 * this is no such block. `data`: at least one word. The first word has, in one byte each, the
 * number of values, the number of those in use, and whether the values are in an object; its other
 * bytes are not written. The order of the values in use follows the values, in one byte each,
 * rounded up to words (struct _dictvalues in Include/internal/pycore_dict.h of 3.13 and 3.14). */
INLINE uint64_t find_values(const uint8_t *data, uint64_t size) {
    uint64_t capacity = data[0], end = 1 + capacity, whole = (end + (capacity + WORD - 1) / WORD) * WORD;
    bool fits = whole <= size && size - whole <= whole / 4 + 4 * WORD;
    return capacity && capacity <= MOST_VALUES && data[1] <= capacity && !data[2] && fits ? end : 0;
}

/* Return whether a block contains such values: each word is null or an address, and the values that
 * are not null are those in use. The first word looks like a count of references. If the first
 * value is a type, the block looks like an object of this type. A single value is not examined.
 * `data`: the first `left` bytes of the block. `size`: bytes of the block. */
INLINE bool are_values(const uint8_t *data, uint64_t left, uint64_t size) {
    uint64_t end = left >= WORD && data[0] > 1 && data[1] ? find_values(data, size) : 0, used = 0, ordered = 0;
    for (uint64_t at = 1; at < end && (at + 1) * WORD <= left; at++) {
        uint64_t value = load(data + at * WORD);
        if (value && (value % WORD || value < LOWEST_VALUE || value >> ADDRESS_BITS))
            return false;
        used |= (uint64_t)(value != 0) << (at - 1);
    }
    if (!end || end * WORD + data[1] > left)
        return end != 0;
    for (uint64_t at = 0; at < data[1]; at++)
        ordered |= UINT64_C(1) << data[end * WORD + at] % 64;
    return ordered == used;
}

#endif
