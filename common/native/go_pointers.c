/* The pointers in Go's objects, according to the bitmaps of Go's heap and the masks of types, which
 * Go's collector uses. ../runtimes/go/engine.py describes the arguments, and names the sources. */
#include "go_types.h"

#define ARENA (UINT64_C(64) << 20)
#define HEADER 8u         /* bytes of a malloc header */
#define NO_HEADER 512u    /* objects up to this size have no header; their span has a bitmap */
/* bytes of marks after the bitmap, if the last byte of the span is the span's class */
#define INLINE_MARKS 128u
#define MOST_SMALL 32768u /* larger objects have a span of their own */
#define GROUP_BYTES 512u  /* bytes of memory that 64 bits of a bitmap describe */

enum { HEADERS, BITMAP, PAIRS };

typedef struct {
    piece_reader memory;
    const go_pointers *known;
    uint64_t low, high, unknown;
    uint8_t *out;
} masking;

static void keep_word(masking *m, uint64_t address) {
    const uint8_t *data = memory_near(&m->memory, address, 8);
    if (data)
        memcpy(m->out + (address - m->low), data, 8);
}

static void keep_all(masking *m, uint64_t from, uint64_t to) {
    m->unknown++;
    for (uint64_t at = from; at < to; at += 8)
        keep_word(m, at);
}

/* Keep the words of [from, to) whose bits are set. The range is within one group. */
static void keep_group(masking *m, uint64_t from, uint64_t to, uint64_t bits) {
    const uint8_t *data = memory_near(&m->memory, from, to - from);
    uint8_t *out = m->out + (from - m->low);
    bits >>= from % GROUP_BYTES / 8;
    for (uint64_t at = 0; at < to - from; at += 8, bits >>= 1) {
        uint64_t word = data ? eight_bytes(data + at) & (0 - (bits & 1)) : 0;
        if (data)
            memcpy(out + at, &word, 8);
        else if (bits & 1)
            keep_word(m, from + at);
    }
}

/* Keep the words of [from, to) whose bits in the bitmap are set. Its first bit describes the word
 * at `origin`. */
static void keep_by_bitmap(masking *m, uint64_t from, uint64_t to, uint64_t bitmap, uint64_t origin) {
    for (uint64_t at = from, next; at < to; at = next) {
        uint64_t group = at - at % GROUP_BYTES;
        next = group + GROUP_BYTES < to ? group + GROUP_BYTES : to;
        const uint8_t *bits = memory_near(&m->memory, bitmap + (group - origin) / 64, 8);
        m->unknown += !bits;
        keep_group(m, at, next, bits ? load64(bits) : UINT64_MAX);
    }
}

/* Return the address of an arena's heapArena; 0 if there is none. */
static uint64_t entry_of(const masking *m, uint64_t address) {
    uint64_t after = 0;
    BISECT(after, m->known->arena_count, middle, m->known->arenas[middle] <= address)
    return after && address - m->known->arenas[after - 1] < ARENA ? m->known->entries[after - 1] : 0;
}

/* Up to 1.19, a byte describes four words. A low bit is set if its word is a pointer. A high bit is
 * 0 if neither its word nor any later word of the object is a pointer. The bits of these later
 * words are maintained only in large objects. */
static void keep_by_pairs(masking *m, uint64_t start, uint64_t size, uint64_t from, uint64_t to) {
    bool is_large = size > MOST_SMALL;
    uint64_t entry = entry_of(m, from);
    for (uint64_t object = from - (from - start) % size; object < to; object += size) {
        for (uint64_t at = is_large ? from : object; at < object + size && at < to; at += 8) {
            uint64_t bitmap = at - at % ARENA == from - from % ARENA ? entry : entry_of(m, at);
            const uint8_t *pair = memory_near(&m->memory, bitmap + at % ARENA / 32, 1);
            unsigned bits = pair ? *pair >> (at / 8 & 3) : 0x11;
            if (!is_large && !(bits & 0x10))
                break;
            m->unknown += !pair;
            if (bits & 1 && at >= from)
                keep_word(m, at);
        }
    }
}

/* Keep the pointers of the values of a type in [begin, end). */
static void keep_values(masking *m, uint32_t type, uint64_t begin, uint64_t end, uint64_t from, uint64_t to) {
    const go_pointers *known = m->known;
    uint64_t stride = known->strides[type], bits = known->words[type];
    const uint8_t *mask = known->bits + known->masks[type];
    if (to > end)
        to = end;
    for (uint64_t value = from > begin ? from - (from - begin) % stride : begin; value < to; value += stride)
        for (uint64_t word = value < from ? (from - value) / 8 : 0; word < bits && value + 8 * word < to; word++)
            if (mask[word / 8] >> word % 8 & 1)
                keep_word(m, value + 8 * word);
}

/* Return the number of the type at an address; NONE if it is unknown. */
static uint32_t type_at(const masking *m, uint64_t address) {
    uint64_t after = 0;
    BISECT(after, m->known->type_count, middle, m->known->addresses[middle] <= address)
    return after && m->known->addresses[after - 1] == address ? (uint32_t)(after - 1) : NONE;
}

/* The header of a slot that was never used is 0. */
static void keep_by_headers(masking *m, uint64_t start, uint64_t size, uint64_t from, uint64_t to) {
    for (uint64_t object = from - (from - start) % size; object < to; object += size) {
        const uint8_t *header = memory_near(&m->memory, object, HEADER);
        uint32_t type = header ? type_at(m, load64(header)) : NONE;
        if (type != NONE)
            keep_values(m, type, object + HEADER, object + size, from, to);
        else if (!header || load64(header))
            keep_all(m, object < from ? from : object, object + size < to ? object + size : to);
    }
}

static void keep_span(masking *m, uint64_t number, uint64_t from, uint64_t to) {
    const go_pointers *known = m->known;
    uint64_t start = known->starts[number], end = known->ends[number], size = known->sizes[number];
    if (known->form == PAIRS) {
        keep_by_pairs(m, start, size, from, to);
    } else if (known->form == BITMAP) {
        for (uint64_t next; from < to; from = next) {
            uint64_t entry = entry_of(m, from), arena = from - from % ARENA;
            next = arena + ARENA < to ? arena + ARENA : to;
            if (entry)
                keep_by_bitmap(m, from, next, entry, arena);
            else
                keep_all(m, from, next);
        }
    } else if (size > NO_HEADER) {
        if (known->classes[number])
            keep_by_headers(m, start, size, from, to);
        else if (known->large[number] != NONE)
            keep_values(m, known->large[number], start, end, from, to);
        else
            keep_all(m, from, to);
    } else {
        const uint8_t *last = memory_near(&m->memory, end - 1, 1);
        uint64_t marks = last && *last == known->classes[number] ? INLINE_MARKS : 0;
        keep_by_bitmap(m, from, to, end - marks - (end - start) / 64, start);
    }
}

/* Copy the pointers in [low, high) to `out`, which contains zeros. If it is unknown which words of
 * a part are pointers, copy all of its words. Return the number of such parts. */
API uint64_t fl_go_pointers(const piece *pieces, uint64_t count, const go_pointers *known, uint64_t low, uint64_t high, uint8_t *out) {
    masking m = {.memory = {pieces, NULL, count}, .known = known, .low = low, .high = high, .out = out};
    uint64_t after = 0;
    BISECT(after, known->span_count, middle, known->ends[middle] <= low)
    for (uint64_t at = after; at < known->span_count && known->starts[at] < high; at++)
        keep_span(&m, at, known->starts[at] < low ? low : known->starts[at], known->ends[at] < high ? known->ends[at] : high);
    return m.unknown;
}
