/* Walks the objects of a Java heap. ../runtimes/jvm/engine.py describes the arguments. */
#include "java_objects.h"

#define FETCHED 1024u /* The walk prefetches this number of bytes ahead. */

enum { DONE_WALKING = 0, FULL = 1, NEW_CLASS = 2, CUT = 3, DAMAGED = 4, MOVED_HEADER = 5 };
enum { POSITION = 0, END = 1, LIMIT = 2, FOUND = 3, CLASS_WORD = 4, STEP = 5, CHUNK = 6, MOVED = 7 };

/* Lowest bits of the first word of a moved object. The other bits are its new address. */
#define MOVED_BITS 3u

#define FREE_MASK 0x87u /* bits of the first word of a free chunk of CMS, and their values */
#define FREE_BITS 0x81u
#define FREE_SHIFT 8u /* of the size in words */

static uint32_t class_number(const java_heap *h, uint64_t word) {
    unsigned bits = (unsigned)__builtin_popcountll(h->mask);
    uint64_t at = bits ? (word * 0x9E3779B97F4A7C15u) >> (64 - bits) : 0;
    for (uint64_t tried = 0; tried <= h->mask && h->keys[at]; tried++, at = (at + 1) & h->mask)
        if (h->keys[at] == word)
            return h->numbers[at];
    return NONE;
}

/* Return the size of an object that contains `held` words of a stack. A bitmap follows these, with
 * a bit for each place where a reference can be. */
static uint64_t chunk_size(const java_heap *h, const uint32_t *class, uint32_t held) {
    uint64_t bits = (uint64_t)held * (WORD / h->oop_bytes);
    return held > INT32_MAX ? 0 : class[1] + (held + (bits + 8 * WORD - 1) / (8 * WORD)) * WORD;
}

/* Return the size of an object before it is rounded up; 0 if its header is damaged. */
static uint64_t object_size(const java_heap *h, const uint32_t *class, const uint8_t *object, uint64_t present) {
    if (class[0] == JAVA_FIXED)
        return class[2] ? chunk_size(h, class, load32(object + class[2])) : class[1];
    if (class[0] == JAVA_MIRROR)
        return class[1] + UINT64_C(4) <= present ? (uint64_t)load32(object + class[1]) * WORD : 0;
    uint32_t length = load32(object + h->length_at);
    return length > INT32_MAX || class[2] > 3 ? 0 : class[1] + ((uint64_t)length << class[2]);
}

/* Return how many bytes from an object's start on are needed to determine its size. */
static uint64_t header_bytes(const java_heap *h, const uint32_t *class) {
    uint64_t end = h->klass_at + h->klass_bytes;
    uint64_t last = class[0] == JAVA_FIXED ? class[2] : class[0] == JAVA_MIRROR ? class[1] : h->length_at;
    return last && last + 4 > end ? last + 4 : end;
}

/* Return whether the memory at `at` is a free chunk of CMS, not an object. With compressed
 * references, the first word of a chunk contains the mark and the size. Without them, the first
 * word is the size, and the lowest bit of the second word is set. */
static bool is_free_chunk(const java_heap *h, const uint8_t *at) {
    return h->oop_bytes == 4 ? (load64(at) & FREE_MASK) == FREE_BITS : (load64(at + 8) & 1) != 0;
}

/* Return the bytes of a free chunk; 0 if its size is wrong. */
static uint64_t free_chunk_size(const java_heap *h, const uint8_t *at) {
    uint64_t length = h->oop_bytes == 4 ? load64(at) >> FREE_SHIFT : load64(at);
    return length < UINT64_C(1) << 56 ? length * WORD : 0;
}

/* Write the indices of the objects whose class is marked to `indices`, and return their number.
 * `numbers` has the class of each object, `marks` a byte for each class. */
API uint64_t fl_java_select(const uint8_t *numbers, uint64_t width, uint64_t count, const uint8_t *marks, uint32_t *indices) {
    uint64_t found = 0;
    for (uint64_t at = 0; at < count; at++)
        if (marks[type_number(numbers, width, at)])
            indices[found++] = (uint32_t)at;
    return found;
}

/* Write the number of an object's class in 2 or 4 bytes. */
INLINE void put_number(uint8_t *numbers, uint64_t width, uint64_t at, uint32_t number) {
    uint16_t narrow = (uint16_t)number;
    if (width == sizeof narrow)
        memcpy(numbers + at * sizeof narrow, &narrow, sizeof narrow);
    else
        memcpy(numbers + at * sizeof number, &number, sizeof number);
}

/* Walk over the objects that start in a piece and between state[POSITION] and state[END]. Add the
 * number of objects of each class, and their bytes, to `totals`. If `moved` is not NULL, write the
 * previous and the new address of each moved object there, and do not add it. Return why the walk
 * stopped. */
API int fl_java_objects(const piece *p, const java_heap *h, uint64_t *state, uint64_t *starts, uint64_t *sizes, uint8_t *numbers,
                        uint64_t width, uint64_t room, uint64_t *totals, uint64_t *moved) {
    uint64_t top = p->length > UINT64_MAX - p->address ? UINT64_MAX : p->address + p->length, recent = 0, fetched = 0;
    uint64_t end = state[END] < top ? state[END] : top, at = state[POSITION], made = 0, chunk = state[CHUNK], gone = 0;
    uint32_t number = NONE;
    int result = DONE_WALKING;
    state[FOUND] = state[MOVED] = 0;
    if (at < p->address)
        return DAMAGED;
    while (at < end) {
        const uint8_t *object = p->data + (at - p->address);
        prefetch_on(p->data, at - p->address, FETCHED, &fetched);
        result = made == room || gone == room ? FULL : top - at < (chunk ? 16 : h->klass_at + h->klass_bytes) ? CUT : DONE_WALKING;
        if (result)
            break;
        if (chunk && is_free_chunk(h, object)) {
            uint64_t skipped = free_chunk_size(h, object);
            if (!skipped || skipped > state[LIMIT] - at) {
                result = DAMAGED;
                break;
            }
            at += skipped;
            continue;
        }
        bool is_moved = moved && (load64(object) & MOVED_BITS) == MOVED_BITS;
        if (is_moved && !h->klass_at) { /* The new address has replaced the class word. */
            result = MOVED_HEADER;
            break;
        }
        uint64_t word = (h->klass_bytes == 4 ? load32(object + h->klass_at) : load64(object + h->klass_at)) >> h->klass_shift;
        if (number == NONE || word != recent)
            number = class_number(h, recent = word);
        if (number >= h->class_count) {
            state[CLASS_WORD] = word;
            result = NEW_CLASS;
            break;
        }
        const uint32_t *class = h->classes + (size_t)number * CLASS_ROW;
        if (top - at < header_bytes(h, class)) {
            result = CUT;
            break;
        }
        uint64_t size = object_size(h, class, object, top - at);
        size = (size + h->alignment - 1) & ~(h->alignment - 1);
        if (!size || size > state[LIMIT] - at) {
            result = DAMAGED;
            break;
        }
        if (is_moved) {
            moved[2 * gone] = at;
            moved[2 * gone++ + 1] = load64(object) & ~(uint64_t)MOVED_BITS;
        } else {
            starts[made] = at;
            sizes[made] = size;
            put_number(numbers, width, made++, number);
            totals[2 * (size_t)number]++;
            totals[2 * (size_t)number + 1] += size;
        }
        uint64_t padding = state[STEP] ? -size & (state[STEP] - 1) : 0;
        at += (size < chunk ? chunk : size) + padding;
    }
    state[POSITION] = at;
    state[FOUND] = made;
    state[MOVED] = gone;
    return result;
}
