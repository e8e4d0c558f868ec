/* The types of Go's objects, without debug information. Types are known of objects with a header,
 * and of those that an interface value refers to; they spread along the pointers in typed objects.
 * ../runtimes/go/engine.py describes the arguments. */
#include "go_types.h"

#include "blocks.h"

#include <stdlib.h>

#define ARENA (UINT64_C(64) << 20)
#define PAGE_SHIFT 13
#define ARENA_PAGES (ARENA >> PAGE_SHIFT)
#define HEADER 8u        /* bytes of a malloc header */
#define NO_HEADER 512u   /* objects up to this size have none (minSizeForMallocHeader) */
#define NOSCAN 1u        /* in a page's class: its objects have no pointers */
#define RAW 0xfeu        /* class of a page of stacks */
#define NOTHING 0xffu    /* class of a page of no span in use */
#define ANY 2u           /* in `pointers`: objects with and without pointers, of any size */
#define SEEDED 64u
#define WAITING 128u
#define AHEAD 32u /* objects of the queue whose contents are fetched */
#define TINY 5u          /* class of 16 bytes without pointers: slots that small objects share */

enum { POINTER, SLICE, TEXT, INTERFACE, DIRECTORY, SECOND, INSIDE, TAGGED, UNTAGGED };

/* An object whose type will be set. Up to WAITING objects wait, so that the processor fetches the
 * memory of one object while others are examined. Their types are set in order. */
typedef struct {
    uint64_t address, bytes, start;
    uint32_t value, index;
} pending;

typedef struct {
    const blocks *b;
    piece_reader memory;
    const go_types *known;
    uint64_t *keys; /* hash table of known->addresses; 0: unused entry */
    uint32_t *places;
    uint64_t mask, low, high;
    uint8_t *types; /* elements of `width` bytes: see type_number */
    uint64_t width;
    uint64_t *queue, *state;
    pending waiting[WAITING];
    unsigned waiting_count;
    bool popcnt;
} search;

/* An object: its block, where its contents begin, their bytes, the bytes of its header, and the
 * class of its page. */
typedef struct {
    uint32_t index;
    uint64_t begin, room, header;
    uint8_t class;
} object;

/* Arenas are mostly adjacent. Then the distance from the first arena, divided by ARENA, is the
 * number of an arena. */
INLINE uint8_t class_of(const go_types *known, uint64_t address) {
    if (!known->arena_count || address < known->arenas[0])
        return NOTHING;
    uint64_t number = (address - known->arenas[0]) / ARENA;
    if (number >= known->arena_count || address - known->arenas[number] >= ARENA) {
        uint64_t after = 0;
        BISECT(after, known->arena_count, middle, known->arenas[middle] <= address)
        number = after - 1;
        if (address - known->arenas[number] >= ARENA)
            return NOTHING;
    }
    return known->classes[number * ARENA_PAGES + ((address - known->arenas[number]) >> PAGE_SHIFT)];
}

/* Find the object that contains `address`, in block `index` from `start` on; false if it does not
 * contain it. */
INLINE bool object_in(const search *s, uint64_t address, uint32_t index, uint64_t start, object *found) {
    found->class = class_of(s->known, address);
    found->index = index;
    if (found->class >= RAW || index == NONE || address < start || address - start >= size_of(s->b, index) || s->b->states[index] != IN_USE)
        return false;
    found->room = size_of(s->b, found->index);
    found->header = s->known->has_headers && found->class > NOSCAN && !(found->class & NOSCAN) && found->room > NO_HEADER ? HEADER : 0;
    found->begin = start + found->header;
    found->room -= found->header;
    return true;
}

INLINE bool find_object(const search *s, uint64_t address, object *found) {
    uint64_t start = 0;
    uint32_t index = block_before(s->b, slot_of(s->b, address), address, &start);
    return object_in(s, address, index, start, found);
}

static bool read_word(search *s, uint64_t address, uint64_t *value) {
    const uint8_t *data = memory_near(&s->memory, address, 8);
    if (data)
        *value = load64(data);
    return data != NULL;
}

INLINE uint8_t *place_of_type(const search *s, uint32_t index) { return s->types + index * s->width; }

/* Return the type value of a block's object, or NONE. */
INLINE uint32_t type_of(const search *s, uint32_t index) { return type_number(s->types, s->width, index); }

/* Only objects of types with pointers are followed. */
static void record(search *s, const object *o, uint32_t value) {
    uint16_t narrow = (uint16_t)value;
    if (s->width == sizeof narrow)
        memcpy(place_of_type(s, o->index), &narrow, sizeof narrow);
    else
        memcpy(place_of_type(s, o->index), &value, sizeof value);
    if (s->known->first[value >> 1] < s->known->first[(value >> 1) + 1])
        s->queue[s->state[2]++] = o->begin;
}

/* Return the type of the object that contains a value of type `value` at `address`: `value`, or a
 * type of which the value is a part. The first slots of a type describe of which types it is a
 * part. */
static uint32_t enclosing(search *s, const object *o, uint64_t address, uint32_t value) {
    const go_types *known = s->known;
    for (uint32_t at = known->first[value >> 1]; at < known->first[(value >> 1) + 1] && known->kinds[at] >= INSIDE; at++) {
        if (address - o->begin != known->offsets[at] || known->targets[at] >> 1 >= known->numbers)
            continue;
        const uint8_t *tag = known->kinds[at] != INSIDE ? memory_near(&s->memory, o->begin, 1) : NULL;
        if (known->kinds[at] == INSIDE || (tag && (known->kinds[at] == TAGGED) == (*tag != 0)))
            return known->targets[at];
    }
    return value;
}

/* Set the type of an object, unless its type is known, or the object cannot have this type. */
INLINE void give(search *s, const pending *one) {
    const go_types *known = s->known;
    uint64_t address = one->address, bytes = one->bytes;
    object o;
    if (!object_in(s, address, one->index, one->start, &o) || type_of(s, o.index) != NONE)
        return;
    uint32_t value = enclosing(s, &o, address, one->value), number = value >> 1;
    uint64_t size = known->sizes[number];
    if (value != one->value)
        address = o.begin, bytes = 0;
    bool array = value & 1;
    if (known->pointers[number] != ANY && (known->pointers[number] != 0) == (o.class & NOSCAN))
        return;
    /* The value is a slice without the first elements of its array, a part of a text, or a part of
     * a slot that several objects share. */
    if (address != o.begin) {
        if ((array || o.class == TINY) && address > o.begin && (address - o.begin) % size == 0 && size <= o.room)
            record(s, &o, value);
        return;
    }
    if (!array)
        bytes = size;
    bool is_small = bytes && known->pointers[number] != ANY && o.class != TINY && bytes + o.header <= known->below[o.class >> 1];
    if (size && size <= o.room && bytes <= o.room && !is_small)
        record(s, &o, value);
}

INLINE void serve_waiting_as(search *s) {
    for (unsigned at = 0; at < s->waiting_count; at++) {
        pending *one = &s->waiting[at];
        one->start = 0;
        one->index = block_before(s->b, slot_of(s->b, one->address), one->address, &one->start);
        if (one->index != NONE) {
            __builtin_prefetch(place_of_type(s, one->index));
            prefetch_size(s->b, one->index);
            __builtin_prefetch(&s->b->states[one->index]);
        }
    }
    for (unsigned at = 0; at < s->waiting_count; at++)
        give(s, &s->waiting[at]);
    s->waiting_count = 0;
}

static void serve_waiting_plain(search *s) { serve_waiting_as(s); }
POPCNT static void serve_waiting_popcnt(search *s) { serve_waiting_as(s); }
static void serve_waiting(search *s) { (s->popcnt ? serve_waiting_popcnt : serve_waiting_plain)(s); }

/* Give the object at `address` a type. `value`: the number of the type * 2, + 1 for an array of
 * this type. `bytes`: the minimum size of the object; 0 if unknown. */
static void assign(search *s, uint64_t address, uint32_t value, uint64_t bytes) {
    if (value >> 1 >= s->known->numbers || !s->known->sizes[value >> 1] || class_of(s->known, address) >= RAW)
        return;
    const slot *place = slot_of(s->b, address);
    if (place)
        __builtin_prefetch(place);
    s->waiting[s->waiting_count++] = (pending){address, bytes, 0, value, NONE};
    if (s->waiting_count == WAITING)
        serve_waiting(s);
}

static uint64_t place_of(const search *s, uint64_t address) {
    uint64_t place = address * 0x9E3779B97F4A7C15u >> 20 & s->mask;
    while (s->keys[place] && s->keys[place] != address)
        place = (place + 1) & s->mask;
    return place;
}

/* Return the place of a type's or itab's address in known->addresses, or NONE. */
static uint32_t known_place(const search *s, uint64_t address) {
    if (address < s->low || address > s->high || address % 8)
        return NONE;
    uint64_t place = place_of(s, address);
    return s->keys[place] ? s->places[place] : NONE;
}

/* Follow an interface value: its first word is a type or an itab, its second the data. */
static void follow_interface(search *s, uint64_t type, uint64_t data) {
    uint32_t place = data ? known_place(s, type) : NONE;
    if (place != NONE && s->known->pointees[place] != NONE)
        assign(s, data, s->known->pointees[place], 0);
}

/* Seed from the interface values in [from, to) of a piece. */
static void seed_words(search *s, const piece *p, uint64_t from, uint64_t to, bool in_objects) {
    for (uint64_t at = from; at + 16 <= to; at += 8) {
        uint64_t word = load64(p->data + (at - p->address));
        if (word < s->low || word > s->high || known_place(s, word) == NONE)
            continue;
        uint32_t index = in_objects ? block_find(s->b, at) : 0;
        if (!in_objects || (index != NONE && s->b->states[index] == IN_USE))
            follow_interface(s, word, load64(p->data + (at - p->address) + 8));
    }
}

/* Seed from the headers of the objects that begin in a piece. All objects of a page have the same
 * size, so pages of small objects, which have no headers, are skipped. */
static void seed_headers(search *s, const piece *p) {
    uint64_t start = 0;
    uint32_t index = block_from(s->b, p->address, &start);
    while (index < s->b->count && start - p->address < p->length) {
        object o;
        if (size_of(s->b, index) <= NO_HEADER) {
            index = block_from(s->b, ((start >> PAGE_SHIFT) + 1) << PAGE_SHIFT, &start);
            continue;
        }
        if (p->length - (start - p->address) >= HEADER && find_object(s, start, &o) && o.header) {
            uint32_t place = known_place(s, load64(p->data + (start - p->address)));
            uint32_t number = place != NONE ? s->known->elements[place] : NONE;
            if (type_of(s, o.index) == NONE && number < s->known->numbers && s->known->sizes[number] && s->known->sizes[number] <= o.room)
                record(s, &o, number << 1 | (o.room / s->known->sizes[number] > 1));
        }
        if (!next_block(s->b, &index, &start))
            break;
    }
}

static void seed(search *s, const piece *p) {
    uint64_t end = p->address + p->length, at = (p->address + 7) & ~UINT64_C(7);
    if (s->known->has_headers)
        seed_headers(s, p);
    while (at < end) {
        uint64_t after = 0;
        BISECT(after, s->known->arena_count, middle, s->known->arenas[middle] <= at)
        bool inside = after && at - s->known->arenas[after - 1] < ARENA;
        /* up to the end of the page, or up to the next arena */
        uint64_t next = inside ? ((at >> PAGE_SHIFT) + 1) << PAGE_SHIFT : after < s->known->arena_count ? s->known->arenas[after] : end;
        uint64_t stop = next < end ? next : end, overlap = end - stop < 8 ? end - stop : 8;
        uint8_t class = inside ? class_of(s->known, at) : RAW;
        if (class == RAW || (class != NOTHING && !(class & NOSCAN)))
            seed_words(s, p, at, stop + overlap, class != RAW);
        at = stop;
    }
}

/* Follow the pointers of one value of a type. */
static void follow(search *s, uint32_t number, uint64_t begin) {
    const go_types *known = s->known;
    for (uint32_t at = known->first[number]; at < known->first[number + 1]; at++) {
        uint64_t place = begin + known->offsets[at], word = 0, second = 0;
        uint32_t target = known->targets[at];
        if (known->kinds[at] >= SECOND || !read_word(s, place, &word) || !word)
            continue;
        switch (known->kinds[at]) {
        case POINTER:
            assign(s, word, target, 0);
            break;
        case TEXT:
            assign(s, word, target | 1, 0);
            break;
        case SLICE: /* pointer, length, capacity */
            if (read_word(s, place + 16, &second) && second && target >> 1 < known->numbers && known->sizes[target >> 1] &&
                second <= (UINT64_C(1) << 47) / known->sizes[target >> 1])
                assign(s, word, target | 1, second * known->sizes[target >> 1]);
            break;
        case INTERFACE:
            if (read_word(s, place + 8, &second))
                follow_interface(s, word, second);
            break;
        case DIRECTORY: /* of a map: the only group, or with a length the tables */
            if (read_word(s, place + 8, &second))
                assign(s, word, second ? known->targets[at + 1] : target, 0);
            break;
        default:
            break;
        }
    }
}

/* Fetch what is read of an object of the queue. */
static void fetch(search *s, uint64_t number) {
    if (number >= s->state[2])
        return;
    uint64_t begin = s->queue[number];
    const piece *p = piece_holding(s->memory.pieces, s->memory.count, begin);
    const slot *place = slot_of(s->b, begin);
    if (p && begin - p->address < p->length)
        __builtin_prefetch(p->data + (begin - p->address));
    if (place)
        __builtin_prefetch(place);
}

/* Fetch what is known of the block of an object of the queue. */
INLINE void fetch_block(search *s, uint64_t number) {
    uint64_t start = 0;
    if (number >= s->state[2])
        return;
    uint32_t index = block_before(s->b, slot_of(s->b, s->queue[number]), s->queue[number], &start);
    if (index != NONE) {
        __builtin_prefetch(place_of_type(s, index));
        prefetch_size(s->b, index);
        __builtin_prefetch(&s->b->states[index]);
    }
}

INLINE void follow_object(search *s, uint64_t begin) {
    object o;
    uint32_t value = find_object(s, begin, &o) ? type_of(s, o.index) : NONE;
    if (value == NONE)
        return;
    uint32_t number = value >> 1;
    uint64_t size = s->known->sizes[number];
    if (s->known->first[number] == s->known->first[number + 1])
        return;
    for (uint64_t at = 0; at + size <= o.room; at += size) {
        follow(s, number, o.begin + at);
        if (!(value & 1))
            return;
    }
}

INLINE void follow_next_as(search *s) {
    fetch(s, s->state[1] + 2 * AHEAD);
    fetch_block(s, s->state[1] + AHEAD);
    follow_object(s, s->queue[s->state[1]++]);
}

static void follow_next_plain(search *s) { follow_next_as(s); }
POPCNT static void follow_next_popcnt(search *s) { follow_next_as(s); }

/* Follow up to `budget` objects. Reading SEEDED bytes for known types counts as one object. `state`
 * has three numbers: that of the piece to seed from next, that of the next object of the queue, and
 * the number of objects in the queue. `types` has an element of `width` bytes for each block (all
 * bits set: unknown), `queue` has room for all. */
API int fl_go_types(const blocks *b, const piece *pieces, uint64_t count, const go_types *known, uint8_t *types, uint64_t width,
                    uint64_t *queue, uint64_t *state, uint64_t budget) {
    search s = {.b = b, .known = known, .mask = 63, .types = types, .width = width, .queue = queue, .state = state, .popcnt = has_popcnt()};
    s.memory = (piece_reader){pieces, NULL, count};
    int code = NO_MEMORY;
    while (s.mask < 2 * known->count)
        s.mask = s.mask * 2 + 1;
    s.keys = calloc((size_t)s.mask + 1, sizeof *s.keys);
    s.places = calloc((size_t)s.mask + 1, sizeof *s.places);
    if (!s.keys || !s.places)
        goto end;
    for (uint64_t at = 0; at < known->count; at++) {
        uint64_t place = place_of(&s, known->addresses[at]);
        s.keys[place] = known->addresses[at];
        s.places[place] = (uint32_t)at;
    }
    if (known->count)
        s.low = known->addresses[0], s.high = known->addresses[known->count - 1];
    code = DONE;
    for (; budget && state[0] < count; state[0]++) {
        seed(&s, &pieces[state[0]]);
        serve_waiting(&s);
        budget -= budget < pieces[state[0]].length / SEEDED ? budget : pieces[state[0]].length / SEEDED;
    }
    for (; budget && state[1] < state[2]; budget--) {
        (s.popcnt ? follow_next_popcnt : follow_next_plain)(&s);
        if (state[1] == state[2])
            serve_waiting(&s);
    }
    serve_waiting(&s);
end:
    FREE_ALL(s.keys, s.places);
    return code;
}
