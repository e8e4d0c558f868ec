/* Finds structures of GLib that have no type in memory: arrays, hash tables, strings and others. A
 * structure is recognised by its own words, and by the blocks that they refer to.
 *
 * Sources: glib/ghash.c, gtree.c, garray.c, gstring.h, gqueue.h, gerror.h, gsequence.c,
 * gdatetime.c, gbytes.c, gmain.h, giochannel.h, giounix.c, gobject/gclosure.c of GLib 2.50 to 2.84,
 * for 64-bit targets. */
#include "blocks.h"

enum { TABLE = 1, TREE, POINTERS, PLAIN_POINTERS, ARRAY, BYTE_ARRAY, SEQUENCE, ERROR, DATE, BYTES, SOURCE, STRING, QUEUE, CLOSURE, PLAIN_CLOSURE, PART, CHANNEL };

#define ROUNDING 24u /* a block has at most this many bytes more than the structure in it */
#define LEAST_ROOM 24u /* least usable size of a block of glibc */
#define UNSPLIT 32u    /* glibc rounds a request up, and does not split off a rest of 16 bytes */
#define LEAST 16u          /* fewest bytes of a block that may contain a structure */
#define SOURCE_BYTES 96u   /* fewest bytes of a GSource, to which programs add members */
#define CLOSURE_BYTES 64u  /* bytes of a GRealClosure, to which other closures add members */
#define CHANNEL_BYTES 120u /* bytes of a GIOUnixChannel */
#define MOST_BYTES 512u    /* most bytes of a block that may contain a structure */
#define MOST_REFERENCES (1u << 24)
#define MOST_ELEMENT (1u << 20)
#define DAY UINT64_C(86400000000) /* microseconds of a day */
#define LAST_DAY 3652059u         /* number of the last day of the year 9999 */
#define MOST_INLINE 128u          /* most bytes of data in a GBytes that contains its data */

typedef struct {
    const blocks *b;
    const piece *p; /* contains the block */
    const range *code;
    uint32_t ranges, quarks;
    const uint8_t *data;
    uint64_t start, size;
    uint64_t first, second; /* what the caller must examine; see runtimes/glib/structures.py */
} candidate;

static uint64_t word_at_offset(const candidate *c, unsigned offset) { return load(c->data + offset); }
static uint32_t half_at(const candidate *c, unsigned offset) { return load32(c->data + offset); }
static bool fits(const candidate *c, unsigned bytes) { return c->size >= bytes && c->size <= bytes + ROUNDING; }

/* The usable size of the block in use that starts at an address; 0 if there is none. */
static uint64_t room_at(const candidate *c, uint64_t address) {
    uint64_t start = 0;
    if (!address || address % 8)
        return 0;
    uint32_t index = block_before(c->b, slot_of(c->b, address), address, &start);
    return index != NONE && start == address && c->b->states[index] == IN_USE ? size_of(c->b, index) : 0;
}

/* Whether the block at an address can be the result of a request of `bytes`. */
static bool is_request(const candidate *c, uint64_t address, uint64_t bytes) {
    uint64_t room = bytes ? room_at(c, address) : 0, least = bytes < LEAST_ROOM ? LEAST_ROOM : bytes;
    return bytes && room >= bytes && room <= least + bytes / 4 + UNSPLIT;
}

static bool is_code(const candidate *c, uint64_t address) { return in_ranges(c->code, c->ranges, address); }
static bool may_be_code(const candidate *c, uint64_t address) { return !address || is_code(c, address); }
static bool is_count(uint32_t references) { return references && references < MOST_REFERENCES; }
static bool is_power(uint64_t number) { return number && !(number & (number - 1)); }

/* Since 2.62, `size` has 8 bytes; before, it has 4. */
static bool is_table(const candidate *c, bool recent) {
    uint64_t slots = recent ? word_at_offset(c, 0) : half_at(c, 0);
    unsigned counts = recent ? 12 : 8, arrays = recent ? 32 : 24;
    uint32_t mask = half_at(c, counts), entries = half_at(c, counts + 4), occupied = half_at(c, counts + 8);
    if (slots < 8 || !is_power(slots) || mask != slots - 1 || entries > occupied || occupied > slots)
        return false;
    if (!is_code(c, word_at_offset(c, arrays + 24)) || !may_be_code(c, word_at_offset(c, arrays + 32)) || !is_count(half_at(c, arrays + 40)))
        return false;
    for (unsigned at = 0; at < 24; at += 8)
        if (room_at(c, word_at_offset(c, arrays + at)) < 4 * slots)
            return false;
    return true;
}

static bool is_tree(candidate *c) {
    if (!half_at(c, 40) || !is_count(half_at(c, 44)) || !is_code(c, word_at_offset(c, 8)))
        return false;
    c->first = word_at_offset(c, 0);
    return may_be_code(c, word_at_offset(c, 16)) && may_be_code(c, word_at_offset(c, 24)) && room_at(c, c->first) >= 40;
}

static unsigned pointers_kind(const candidate *c) {
    uint32_t length = half_at(c, 8), places = half_at(c, 12);
    if (length > places || !is_count(half_at(c, 16)) || !may_be_code(c, word_at_offset(c, 24)) ||
        !is_request(c, word_at_offset(c, 0), 8 * (uint64_t)places))
        return 0;
    return word_at_offset(c, 24) ? POINTERS : PLAIN_POINTERS;
}

/* The capacity is a number of elements since 2.63, and of bytes before. The requested bytes are a
 * power of two, of which less than one element is unused. */
static unsigned array_kind(const candidate *c) {
    uint64_t data = word_at_offset(c, 0), places = half_at(c, 12), element = half_at(c, 16), length = half_at(c, 8), bytes = 16;
    if (!element || element > MOST_ELEMENT || !is_count(half_at(c, 24)) || !may_be_code(c, word_at_offset(c, 32)))
        return 0;
    while (bytes < places * element)
        bytes *= 2;
    bool elements = length <= places && bytes / element == places && is_request(c, data, bytes);
    if (!elements && !(is_power(places) && places >= 16 && length * element <= places && is_request(c, data, places)))
        return 0;
    return element == 1 ? BYTE_ARRAY : ARRAY;
}

static bool is_sequence(candidate *c) {
    c->first = word_at_offset(c, 0);
    return word_at_offset(c, 24) == c->start && may_be_code(c, word_at_offset(c, 8)) && room_at(c, c->first) >= 40;
}

static bool is_date(candidate *c) {
    uint32_t days = half_at(c, 20);
    c->first = word_at_offset(c, 8);
    return word_at_offset(c, 0) < DAY && days && days <= LAST_DAY && is_count(half_at(c, 24)) && room_at(c, c->first) >= 32;
}

static bool is_bytes(const candidate *c) {
    uint64_t data = word_at_offset(c, 0), bytes = word_at_offset(c, 8);
    return is_count(half_at(c, 16)) && word_at_offset(c, 32) == data && is_code(c, word_at_offset(c, 24)) && is_request(c, data, bytes);
}

/* A GBytes with a part of the data of another one refers to that one, which it releases. */
static bool is_part(candidate *c) {
    c->first = word_at_offset(c, 32);
    c->second = word_at_offset(c, 0);
    return is_count(half_at(c, 16)) && is_code(c, word_at_offset(c, 24)) && c->second && c->second != c->first && word_at_offset(c, 8) &&
           room_at(c, c->first) >= 40;
}

/* Since 2.82, a short GBytes contains its data. */
static bool is_inline_bytes(const candidate *c) {
    uint64_t offset = word_at_offset(c, 0) - c->start, bytes = word_at_offset(c, 8);
    if ((offset != 40 && offset != 48) || !bytes || bytes > c->size - offset || c->size - offset - bytes > ROUNDING)
        return false;
    return is_count(half_at(c, 16)) && !word_at_offset(c, 24) && !word_at_offset(c, 32);
}

static bool is_source(candidate *c) {
    uint64_t callback = word_at_offset(c, 8), functions = word_at_offset(c, 16), next = word_at_offset(c, 72);
    if (!is_count(half_at(c, 24)) || !functions || functions % 8 || callback % 8 || room_at(c, functions) || room_at(c, callback))
        return false;
    c->first = functions;
    return room_at(c, word_at_offset(c, 88)) >= 16 && (!next || room_at(c, next) >= SOURCE_BYTES);
}

/* Return the number of notifiers of a GClosure whose first 32 bits are `head`. */
static uint32_t count_notifiers(uint32_t head) {
    return (head >> 16 & 1) * 2 + (head >> 17 & 3) + (head >> 19 & 0xFF);
}

/* The GClosure is at offset 32. Its first word has the numbers of references and of notifiers. */
static bool is_closure(candidate *c) {
    uint64_t meta = word_at_offset(c, 0), list = word_at_offset(c, 24), notifiers = word_at_offset(c, 56);
    uint32_t head = half_at(c, 32), count = count_notifiers(head);
    c->first = word_at_offset(c, 40);
    c->second = list ? list : meta;
    if (!(head & 0x7FFF) || !is_code(c, c->first) || !may_be_code(c, meta) || !may_be_code(c, list) || !may_be_code(c, word_at_offset(c, 16)))
        return false;
    return (!notifiers && !count) || room_at(c, notifiers) >= 16 * (uint64_t)(count ? count : 1);
}

/* A GCClosure that was not connected to a signal has no marshallers. It has notifiers if it frees
 * its data or watches an object. */
static bool is_plain_closure(candidate *c) {
    uint32_t head = half_at(c, 32), count = count_notifiers(head);
    c->first = word_at_offset(c, 56);
    c->second = word_at_offset(c, 48);
    for (unsigned at = 0; at < 48; at += 8)
        if (at != 32 && word_at_offset(c, at))
            return false;
    return (head & 0x7FFF) && count && c->second && is_code(c, word_at_offset(c, 64)) && room_at(c, c->first) >= 16 * (uint64_t)count;
}

static bool is_channel(candidate *c) {
    uint64_t encoding = word_at_offset(c, 16), functions = word_at_offset(c, 8), bytes = word_at_offset(c, 56);
    c->first = functions;
    return is_count(half_at(c, 0)) && functions && functions % 8 == 0 && !room_at(c, functions) && (!encoding || room_at(c, encoding)) &&
           bytes && bytes <= MOST_ELEMENT;
}

static bool is_string(candidate *c) {
    uint64_t text = word_at_offset(c, 0), length = word_at_offset(c, 8), places = word_at_offset(c, 16);
    c->first = text + length;
    return is_power(places) && length < places && is_request(c, text, places);
}

/* Whether the word at an address is 0, or unknown because it is not in the piece. */
static bool may_be_zero(const candidate *c, uint64_t address) {
    const uint8_t *data = bytes_in(c->p, address, 8);
    return !data || !load(data);
}

/* Many nodes of trees look like a GQueue. The first node of a queue has no previous node, and the
 * last one no next node. */
static bool is_queue(candidate *c) {
    uint64_t length = half_at(c, 16), room;
    c->first = word_at_offset(c, 0);
    c->second = word_at_offset(c, 8);
    if (!length || (length == 1) != (c->first == c->second) || (c->first | c->second) % 8)
        return false;
    if (!may_be_zero(c, c->first + 16) || !may_be_zero(c, c->second + 8))
        return false;
    room = room_at(c, c->first);
    return room >= 24 && room <= 24 + ROUNDING && room_at(c, c->second) == room;
}

static bool is_error(candidate *c) {
    c->first = half_at(c, 0);
    c->second = word_at_offset(c, 8);
    return c->first && c->first < c->quarks && room_at(c, c->second);
}

/* Return the kind of the structure in a block, or 0. */
static unsigned kind_of(candidate *c) {
    unsigned kind = 0;
    if (c->size >= 48 && c->size <= MOST_INLINE + ROUNDING && is_inline_bytes(c))
        return BYTES;
    if (fits(c, 88) && is_table(c, false))
        return TABLE;
    if (fits(c, 96) && is_table(c, true))
        return TABLE;
    if (c->size >= CLOSURE_BYTES && is_closure(c))
        return CLOSURE;
    if (fits(c, 72) && is_plain_closure(c))
        return PLAIN_CLOSURE;
    if (c->size >= SOURCE_BYTES && is_source(c))
        return SOURCE;
    if (c->size >= SOURCE_BYTES)
        return fits(c, CHANNEL_BYTES) && is_channel(c) ? CHANNEL : 0;
    if (fits(c, 48) && is_tree(c))
        return TREE;
    if (fits(c, 40) && (kind = is_bytes(c) ? BYTES : is_part(c) ? PART : array_kind(c)))
        return kind;
    if (fits(c, 32) && (kind = is_sequence(c) ? SEQUENCE : is_date(c) ? DATE : pointers_kind(c)))
        return kind;
    if (fits(c, 24) && (kind = is_queue(c) ? QUEUE : is_string(c) ? STRING : 0))
        return kind;
    return fits(c, 16) && is_error(c) ? ERROR : 0;
}

/* Append three words for each structure whose block begins in the piece: the index of its block
 * << 8 | its kind, and two words that depend on the kind. `code`: executable memory, sorted and
 * disjoint. `quarks`: more than the greatest quark. */
API int fl_glib_structures(const blocks *b, const piece *p, const range *code, uint32_t ranges, uint32_t quarks, words *found) {
    candidate c = {b, p, code, ranges, quarks, NULL, 0, 0, 0, 0};
    if (WORD != 8)
        return DONE;
    for (uint32_t index = block_from(b, p->address, &c.start); index != NONE && index < b->count && c.start < p->address + p->length;) {
        c.size = size_of(b, index);
        if (b->states[index] == IN_USE && c.size >= LEAST && c.size <= MOST_BYTES &&
            (c.data = bytes_in(p, c.start, c.size))) {
            c.first = c.second = 0;
            unsigned kind = kind_of(&c);
            if (kind && (words_push(found, (uint64_t)index << 8 | kind) || words_push(found, c.first) || words_push(found, c.second)))
                return NO_MEMORY;
        }
        if (!next_block(b, &index, &c.start))
            break;
    }
    return DONE;
}
