/* Walks the objects of V8's pages. ../runtimes/v8/engine.py describes the arguments. */
#include "native.h"

#define ROW 15u
#define FIELDS 3u
#define BYTES UINT64_C(8) /* of a word of V8's heap */
#define FETCHED 1024u     /* The walk prefetches this number of bytes ahead. */

enum { FIXED = 0, COUNTED = 1, UP_TO_MAP = 2, ASKED = 3 };
enum { DONE_WALKING = 0, NEW_MAP = 1, ASK = 2, DAMAGED = 3, FULL = 4 };
enum { POSITION = 0, END = 1, MAP_WORD = 2, GIVEN = 3, FOUND = 4, SHARED_START = 5, SHARED_END = 6, LISTED = 7 };
enum { KIND = 0, BASE, ALIGN, AT, WIDTH, SHIFT, MASK, PER, UNIT, SECOND, SECOND_UNIT, IS_FREE, FIELD };

typedef struct {
    const uint64_t *keys;
    const uint32_t *numbers;
    uint64_t mask;
} map_table;

static uint32_t map_number(const map_table *t, uint64_t word) {
    unsigned bits = (unsigned)__builtin_popcountll(t->mask);
    uint64_t at = bits ? (word * 0x9E3779B97F4A7C15u) >> (64 - bits) : 0;
    for (uint64_t tried = 0; tried <= t->mask && t->keys[at]; tried++, at = (at + 1) & t->mask)
        if (t->keys[at] == word)
            return t->numbers[at];
    return NONE;
}

static uint64_t number_at(const uint8_t *at, uint32_t width) {
    return width == 4 ? load32(at) : width == 1 ? *at : BIG ? (uint64_t)at[0] << 8 | at[1] : (uint64_t)at[1] << 8 | at[0];
}

/* Return the size that is computed from numbers in an object, of which `left` bytes are present; 0
 * if a number is beyond these. */
static uint64_t counted_size(const uint32_t *row, const uint8_t *object, uint64_t left) {
    uint64_t width = row[WIDTH], last = row[AT] + width, align = row[ALIGN] ? row[ALIGN] : 1, per = row[PER] ? row[PER] : 1;
    if (row[SECOND_UNIT] && last < row[SECOND] + UINT64_C(4))
        last = row[SECOND] + UINT64_C(4);
    if ((width != 1 && width != 2 && width != 4) || left < last)
        return 0;
    uint64_t number = (row[SHIFT] < 32 ? number_at(object + row[AT], row[WIDTH]) >> row[SHIFT] : 0) & row[MASK];
    uint64_t size = row[BASE] + (number + per - 1) / per * row[UNIT];
    if (row[SECOND_UNIT])
        size += (uint64_t)load32(object + row[SECOND]) * row[SECOND_UNIT];
    return (size + align - 1) / align * align;
}

/* Return the distance from an object to the next word that is the tagged address of a map. */
static uint64_t size_up_to_map(const map_table *t, uint64_t count, const uint8_t *object, uint64_t left) {
    uint64_t size = BYTES;
    for (; left - size >= BYTES; size += BYTES) {
        uint64_t word = load64(object + size);
        if (word && map_number(t, word) < count)
            break;
    }
    return size;
}

/* Append to `targets` the tagged addresses in the fields of an object, except addresses in shared
 * memory. For each, append the number of the object's map to `owners`. */
static void add_references(const uint32_t *row, const uint8_t *object, uint64_t size, uint32_t number, uint64_t *state, uint64_t *targets,
                           uint32_t *owners) {
    for (uint32_t field = 0; field < FIELDS && row[FIELD + field]; field++) {
        if (size < row[FIELD + field] + BYTES)
            return;
        uint64_t word = load64(object + row[FIELD + field]);
        if ((word & 3) != 1 || (word >= state[SHARED_START] && word < state[SHARED_END]))
            continue;
        targets[state[FOUND]] = word;
        owners[state[FOUND]++] = number;
    }
}

/* Walk over the objects from state[POSITION] to state[END], which the piece contains. Add the
 * number of objects of each map, and their bytes, to `totals`. Write at most `most` objects to
 * `starts`, `sizes` and `maps`, but no free memory. Return why the walk stopped. */
API int fl_v8_objects(const piece *p, const uint64_t *keys, const uint32_t *numbers, uint64_t mask, const uint32_t *rows, uint64_t count,
                      uint64_t *totals, uint64_t *firsts, uint64_t *state, uint64_t *targets, uint64_t *starts, uint64_t *sizes,
                      uint32_t *owners, uint32_t *maps, uint64_t room, uint64_t most) {
    const map_table table = {keys, numbers, mask};
    uint64_t at = state[POSITION], end = state[END], recent = 0, fetched = 0;
    uint32_t number = NONE;
    state[FOUND] = state[LISTED] = 0;
    if (at < p->address || end < p->address || end - p->address > p->length)
        return DAMAGED;
    for (; at < end; state[POSITION] = at) {
        const uint8_t *object = p->data + (at - p->address);
        uint64_t left = end - at;
        prefetch_on(p->data, at - p->address, FETCHED, &fetched);
        if (left < BYTES)
            return DAMAGED;
        if (room < state[FOUND] + FIELDS || state[LISTED] == most)
            return FULL;
        uint64_t word = state[MAP_WORD] = load64(object);
        if (number == NONE || word != recent)
            number = word ? map_number(&table, recent = word) : NONE;
        if (number >= count)
            return NEW_MAP;
        const uint32_t *row = rows + (size_t)number * ROW;
        uint64_t size = row[KIND] == FIXED     ? row[BASE]
                        : row[KIND] == COUNTED ? counted_size(row, object, left)
                        : row[KIND] == ASKED   ? state[GIVEN]
                                               : size_up_to_map(&table, count, object, left);
        if (row[KIND] == ASKED && !size)
            return ASK;
        state[GIVEN] = 0;
        if (!size || size % BYTES || size > left)
            return DAMAGED;
        if (row[FIELD])
            add_references(row, object, size, number, state, targets, owners);
        if (!row[IS_FREE]) {
            starts[state[LISTED]] = at;
            sizes[state[LISTED]] = size;
            maps[state[LISTED]++] = number;
        }
        if (!totals[2 * (size_t)number]++)
            firsts[number] = at;
        totals[2 * (size_t)number + 1] += size;
        at += size;
    }
    return DONE_WALKING;
}
