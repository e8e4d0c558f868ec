/* Finds values of PHP that were released but still contain the address of what they referred to
 * (zend_types.h of PHP 7.3 to 8.4).
 *
 * A value (zval) has 16 bytes: a number or an address, then the type, whose lowest byte is the type
 * itself. When PHP sets a value to undefined, null, false or true, it writes only the type. So the
 * address remains, although the program has released the value. In a bucket, the hash and the
 * address of the key follow the value. If the value is undefined, PHP does not use these either. */
#include "blocks.h"

#include <stdlib.h>

#define VALUE_BYTES 16u
#define TYPE 8u      /* offset of the type in a value */
#define UNDEFINED 0u /* types */
#define TRUE 3u
#define RUN 3u /* words of a run: the address of the first value, their number, bytes of each */

static int by_start(const void *one, const void *other) {
    uint64_t first = *(const uint64_t *)one, second = *(const uint64_t *)other;
    return first < second ? -1 : first > second;
}

/* Sort runs by their start, and cut off what overlaps with the next run. */
API void fl_php_sort(uint64_t *runs, uint64_t count) {
    if (count)
        qsort(runs, count, RUN * sizeof *runs, by_start);
    for (uint64_t at = 1; at < count; at++) {
        uint64_t *run = runs + RUN * (at - 1), room = (run[RUN] - run[0]) / run[2];
        if (run[1] > room)
            run[1] = room;
    }
}

/* Whether the address in a value, or a word after the value, refers to a block. */
static bool refers(const blocks *b, const uint8_t *data, uint64_t length) {
    for (uint64_t at = 0; at < length; at = at ? at + WORD : VALUE_BYTES) {
        uint64_t word = load(data + at);
        if (word && block_find(b, word) != NONE)
            return true;
    }
    return false;
}

/* Find the values of `runs` that the piece contains. Append the start and the end of the stale
 * memory in each value, if this memory refers to blocks. Successive ranges are joined. A value that
 * is divided between two pieces is omitted. The `count` runs must be sorted and disjoint. */
API int fl_php_stale(const blocks *b, const piece *p, const uint64_t *runs, uint64_t count, words *stale) {
    uint64_t end = p->address + p->length, first = 0;
    BISECT(first, count, middle, runs[RUN * middle] < p->address);
    for (uint64_t at = first ? first - 1 : 0; at < count && runs[RUN * at] < end; at++) {
        uint64_t start = runs[RUN * at], stride = runs[RUN * at + 2], last = 0;
        uint64_t skipped = start < p->address ? (p->address - start + stride - 1) / stride : 0;
        for (uint64_t number = skipped; number < runs[RUN * at + 1]; number++) {
            uint64_t place = start + number * stride;
            const uint8_t *data = bytes_in(p, place, stride);
            if (!data)
                break;
            uint32_t type = load32(data + TYPE) & 0xff;
            if (type > TRUE)
                continue;
            uint64_t length = type == UNDEFINED ? stride : stride == VALUE_BYTES ? VALUE_BYTES : TYPE;
            if (last != place && !refers(b, data, length))
                continue;
            last = place + length;
            if (stale->count && stale->items[stale->count - 1] == place)
                stale->items[stale->count - 1] = last;
            else if (PUSH_ALL(stale, place, last))
                return NO_MEMORY;
        }
    }
    return DONE;
}
