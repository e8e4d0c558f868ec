/* Recognises values of PHP in the blocks of Zend's memory manager by their heads (zend_types.h,
 * zend_string.h, zend_hash.h of PHP 7.3 to 8.4).
 *
 * A head begins with two 32-bit numbers: the reference count, and the type. Four bits of the type
 * are the type itself, six are flags, and 22 belong to the collector of arrays and objects.
 *
 * In a string, the hash follows (it is 0, or has the highest bit set), then the length, the
 * characters and a NUL. In an array, 32 bits of flags follow, then the 32-bit mask of its hash
 * slots, the address of its elements, and three 32-bit numbers: elements used, elements that are
 * not deleted, and places. */
#include "blocks.h"

#define TYPE_MASK 15u
#define FLAGS 0x3f0u
#define STRING 6u
#define ARRAY 7u
#define RESOURCE 9u
#define REFERENCE 10u
#define UNCOLLECTABLE 0x10u /* flag of all resources and references since 7.3 */
#define NO_VALUE UINT32_MAX
#define LEAF 1u /* the pattern that excludes every word; LEAF + n: all except the first n */
#define MOST_USED 62u /* the most words that such a pattern can keep */

/* Numbers of types. An array has the number ARRAYS + rank of its length. */
enum { STRINGS, REFERENCES, RESOURCES, ELEMENTS, ARRAYS, RANKS = 44, SUMS = 2 };

#define CHARACTERS (8 + 2 * WORD) /* offset of a string's characters */
#define MASK 12                   /* offsets of members of an array */
#define ELEMENTS_AT 16
#define NUMBERS (16 + WORD)
#define ARRAY_BYTES (WORD == 8 ? 56u : 48u)
#define REFERENCE_BYTES 32u
#define VALUE_BYTES 16u                /* element of a list since 8.2 */
#define BUCKET_BYTES (16 + 2 * WORD)   /* element of other arrays: value, hash, key */
#define RESOURCE_BYTES (WORD == 8 ? 32u : 24u)

/* Return a length up to 15 itself, and for longer ones a number for each power of two. */
static uint32_t rank_of(uint32_t length) { return length < 16 ? length : 11 + (32 - (uint32_t)__builtin_clz(length)); }

static bool is_string(const uint8_t *data, uint64_t size) {
    uint64_t hash = load(data + 8), length = load(data + 8 + WORD);
    if (hash && !(hash >> (8 * WORD - 1)))
        return false;
    return length < size - CHARACTERS && !data[CHARACTERS + length];
}

static bool is_array(const uint8_t *data) {
    uint32_t slots = -load32(data + MASK), used = load32(data + NUMBERS), count = load32(data + NUMBERS + 4), places = load32(data + NUMBERS + 8);
    uint64_t elements = load(data + ELEMENTS_AT);
    return slots >= 2 && !(slots & (slots - 1)) && places && !(places & (places - 1)) && used <= places && count <= used && elements &&
           elements % WORD == 0;
}

/* Return the size of an element in a block of `size` bytes with hash slots and then elements. If
 * the block is large enough for a bucket in each place of the array, elements are buckets,
 * otherwise values. */
static uint64_t element_bytes(const uint8_t *data, uint32_t slots, uint64_t size) {
    uint64_t places = load32(data + NUMBERS + 8);
    return 4 * (uint64_t)slots + places * BUCKET_BYTES > size ? VALUE_BYTES : BUCKET_BYTES;
}

/* Set the type of the block that contains an array's hash slots and then its elements. The places
 * after the used elements contain old data. Set the pattern that excludes these places; if there is
 * no such pattern, append their bounds to `unused`. Append the elements to `runs` (see
 * fl_php_stale). Add the size of the block to `bytes`. */
static int mark_elements(const blocks *b, const uint8_t *data, uint32_t *found, uint8_t *patterns, uint64_t *bytes, words *unused,
                         words *runs) {
    uint64_t elements = load(data + ELEMENTS_AT);
    uint32_t slots = -load32(data + MASK), target = block_find(b, elements);
    uint64_t start = elements - 4 * (uint64_t)slots;
    if (target == NONE || b->states[target] != IN_USE || found[target] != NO_VALUE || block_address(b, target) != start)
        return DONE;
    uint64_t size = size_of(b, target), stride = element_bytes(data, slots, size), number = load32(data + NUMBERS);
    uint64_t used = (4 * (uint64_t)slots + number * stride + WORD - 1) / WORD;
    found[target] = ELEMENTS;
    *bytes += size;
    uint64_t most = size > 4 * (uint64_t)slots ? (size - 4 * (uint64_t)slots) / stride : 0;
    if (number && most && PUSH_ALL(runs, elements, number < most ? number : most, stride))
        return NO_MEMORY;
    if (used <= MOST_USED)
        patterns[target] = (uint8_t)(LEAF + used);
    else if (used * WORD < size)
        return PUSH_ALL(unused, start + used * WORD, start + size);
    return DONE;
}

/* Recognise the value in each block in use that starts in the piece. Store the number of its type
 * in `found`, and LEAF in `patterns` if it is a string, or the pattern of an array's elements; both
 * have one element for each block. Add the value to `sums`, which has the number of values and
 * their bytes for each type; the bytes of an array include its elements. Append the addresses of
 * blocks that continue after the piece to `cut`. If a block of elements has no pattern, append the
 * start and the end of its unused memory to `unused`. For each array, append the address of its
 * first element, the number of used elements and the bytes of each to `runs`. */
API int fl_php_values(const blocks *b, const piece *p, uint32_t *found, uint8_t *patterns, uint64_t *sums, words *cut, words *unused,
                      words *runs) {
    uint64_t start = 0;
    for (uint32_t index = block_from(b, p->address, &start); index < b->count && start - p->address < p->length; next_block(b, &index, &start)) {
        uint64_t size = size_of(b, index);
        if (b->states[index] != IN_USE || size <= CHARACTERS || start % WORD || found[index] != NO_VALUE)
            continue;
        if (p->length - (start - p->address) < size) {
            if (words_push(cut, start))
                return NO_MEMORY;
            continue;
        }
        const uint8_t *data = p->data + (start - p->address);
        uint32_t count = load32(data), type = load32(data + 4), number = NO_VALUE;
        if (!count || count > INT32_MAX)
            continue;
        if ((type & ~FLAGS) == STRING && is_string(data, size))
            number = STRINGS;
        else if ((type & TYPE_MASK) == ARRAY && size == ARRAY_BYTES && is_array(data))
            number = ARRAYS + rank_of(load32(data + NUMBERS + 4));
        else if (type == (REFERENCE | UNCOLLECTABLE) && size == REFERENCE_BYTES)
            number = REFERENCES;
        else if (type == (RESOURCE | UNCOLLECTABLE) && size == RESOURCE_BYTES)
            number = RESOURCES;
        if (number == NO_VALUE)
            continue;
        found[index] = number;
        patterns[index] = number == STRINGS ? LEAF : patterns[index];
        sums[SUMS * number]++;
        sums[SUMS * number + 1] += size;
        if (number >= ARRAYS && mark_elements(b, data, found, patterns, &sums[SUMS * number + 1], unused, runs))
            return NO_MEMORY;
    }
    return DONE;
}
