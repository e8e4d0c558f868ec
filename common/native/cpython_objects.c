/* CPython's objects by type. The type is the second word of an object, and each object is in its
 * own block.
 *
 * The bytes before an object in its block, such as the garbage collector's header, depend on its
 * type: an object counts only at the offset of its type. */
#include "cpython_values.h"

#include <stdlib.h>

#define HEADER (2 * WORD)      /* reference count, type */
#define COLLECTOR (2 * WORD) /* before an object: two links, the first 0 if untracked */
#define STEPS 8u               /* objects start at multiples of HEADER below STEPS * HEADER */
#define EXAMINED ((STEPS + 1) * HEADER) /* bytes of a block that are read */
#define SUMS 6u
#define FREE_THREADED 16u /* minimum number of bytes before an object's shared count */
#define IGNORED 0xFFFFFFFEu
#define SMALL (UINT64_C(1) << 20)
/* Bytes from ob_ref_shared to ob_mutex, ob_gc_bits and ob_ref_local, in free-threaded builds. */
#define MUTEX (-6)
#define GC_BITS (-5)
#define REF_LOCAL (-4)
#define MERGED 3 /* _Py_REF_MERGED */
#define LOWEST_THREAD 4096u
#define MOST_COUNTED (INT64_C(1) << 33)
#define DEFERRED (INT64_C(1) << 59)
#define LEAF 1u /* the pattern that excludes every word */
#define READY 0x80u /* in `leaves`: the word after that of the mark must be 0 */
#define LINK_FLAGS 3u
#define LOWEST_LINK 4096u

typedef struct {
    uint64_t *keys; /* 0: unused entry */
    uint32_t *numbers;
    uint64_t mask;
} index_of_types;

static uint64_t place_of(const index_of_types *types, uint64_t type) {
    uint64_t place = type * 0x9E3779B97F4A7C15u >> 20 & types->mask;
    while (types->keys[place] && types->keys[place] != type)
        place = (place + 1) & types->mask;
    return place;
}

/* Whether this word can be a reference count: it is not an address, and in its upper half only
 * the top 16 bits may be set (flags, since 3.14). */
static bool counts(const blocks *b, const range *program, uint64_t word) {
    return !(word >> 32 & 0xffff) && (word < SMALL || ((word < program->start || word >= program->end) && block_find(b, word) == NONE));
}

/* The same for an object of a free-threaded interpreter, whose shared count is at `count`.
 * References of the thread that owns the object (ob_tid) are counted separately. Without an
 * owner, the shared count is merged, or the object is immortal. The two low bits are flags, and
 * objects with deferred counting have a large number added (Include/refcount.h, object.h). */
static bool shared_counts(const uint8_t *count) {
    uint64_t owner = load(count - FREE_THREADED);
    int64_t shared = (int64_t)load(count) >> 2;
    bool owned = owner ? owner % WORD == 0 && owner >= LOWEST_THREAD : (load(count) & 3) == MERGED || load32(count + REF_LOCAL) == UINT32_MAX;
    return owned && count[MUTEX] <= 3 && (shared >= DEFERRED || (shared < MOST_COUNTED && shared > -MOST_COUNTED));
}

/* Return whether the first word of the collector's header can be its link: 0 or an address, with
 * flags in the lowest bits. The unused part of other memory may contain the rest of an object.
 * Example: the room for children in a block of an ElementTree's element. `object`: an object that
 * begins at `offset`, which is 0 without a header. */
static bool has_link(const uint8_t *object, uint64_t offset) {
    uint64_t link = offset >= COLLECTOR ? load(object - COLLECTOR) : 0;
    return link <= LINK_FLAGS || link >= LOWEST_LINK;
}

/* Return whether an object has no pointers. `left`: its bytes in the piece. `mark` and `leaf`: see
 * fl_objects. */
static bool has_no_pointers(const uint8_t *object, uint64_t left, uint64_t mark, uint8_t leaf) {
    if (leaf <= 1)
        return leaf;
    if (!mark || mark >= left || (object[mark] & leaf) != leaf)
        return false;
    return !(leaf & READY) || left < mark + 2 * WORD || !load(object + mark + WORD);
}

/* Return whether a block may be a dictionary's values. Their first words are not initialised and
 * may contain the rest of an object. The byte before the values is their offset, of which 24 and
 * 32 are beyond an object's head (PyDictValues of 3.11 and 3.12, Objects/dictobject.c:
 * new_values). The byte before it is the number of values in use. The bytes before these two are
 * the numbers of these values, which are all different. There are at most `offset` - 2 values. A
 * value is an address; where a string has its state, the lowest bits are set. */
static bool may_be_values(const uint8_t *data, uint64_t size) {
    for (uint64_t offset = 24; offset <= 32 && offset <= size; offset += 8) {
        if (data[offset - 1] != offset || (size >= offset + WORD && load(data + offset) % WORD))
            continue;
        uint64_t most = offset - 2, used = data[most], at = 0, seen = 0;
        while (at < used && used <= most && data[most - 1 - at] < most && !(seen >> data[most - 1 - at] & 1))
            seen |= UINT64_C(1) << data[most - 1 - at++];
        if (at == used)
            return true;
    }
    return false;
}

/* Count the objects in the blocks in use that start in the piece. types[i] is the address of type
 * number i, whose objects begin offsets[i] bytes after the start of their blocks. found[index]
 * becomes the number of the type of the object in a block. sums[SUMS * i] and the next sums are the
 * objects of a type, their bytes, and those that the collector tracks. Objects without references
 * (kept for reuse) are only in the fourth sum. The fifth and sixth sums are the marked objects and
 * their bytes: marks[i] is the offset in the object of the byte whose two low bits mark it, or 0.
 * merged[index] becomes the number of the type, too, or IGNORED if the object has no pointers.
 * leaves[i] is 1 if no object of the type has pointers; else the bits that are all set in the mark
 * byte of objects without pointers; or 0. With READY among these bits, the word after that of the
 * mark byte must be 0. patterns[index] (see fl_graph_exclude_words) becomes LEAF
 * for an object without pointers, else lives[i]; 0 if there is doubt. The addresses of blocks that
 * the piece cuts off are appended to `cut`.
 *
 * The values of a dictionary are not an object, even if the first one is a type: see are_values.
 *
 * `shift`: 0, or the bytes of an object before its shared count of references, in a free-threaded
 * interpreter. offsets[i] and marks[i] are then those of that count, which is before the type. */
API int fl_objects(const blocks *b, const piece *p, const uint64_t *types, const uint8_t *offsets, const uint8_t *marks, const uint8_t *leaves,
                   const uint8_t *lives, uint64_t count, uint64_t shift, const range *program, uint32_t *found, uint32_t *merged,
                   uint8_t *patterns, uint64_t *sums, words *cut) {
    index_of_types known = {NULL, NULL, 63};
    unsigned steps = 0; /* a bit for each step at which objects of some type start */
    int code = NO_MEMORY;
    while (known.mask < 2 * count)
        known.mask = known.mask * 2 + 1;
    known.keys = calloc((size_t)known.mask + 1, sizeof *known.keys);
    known.numbers = calloc((size_t)known.mask + 1, sizeof *known.numbers);
    if (!known.keys || !known.numbers)
        goto end;
    for (uint64_t at = 0; at < count; at++) {
        uint64_t place = place_of(&known, types[at]);
        known.keys[place] = types[at];
        known.numbers[place] = (uint32_t)at;
        if (offsets[at] % HEADER == 0 && offsets[at] / HEADER < STEPS)
            steps |= 1u << offsets[at] / HEADER;
    }
    code = DONE;
    uint64_t start = 0;
    for (uint32_t index = block_from(b, p->address, &start); index < b->count && start - p->address < p->length; next_block(b, &index, &start)) {
        uint64_t size = size_of(b, index), left = p->length - (start - p->address);
        if (b->states[index] != IN_USE || start % WORD)
            continue;
        if (left < size && left < EXAMINED) {
            if (words_push(cut, start)) {
                code = NO_MEMORY;
                break;
            }
            continue;
        }
        const uint8_t *data = p->data + (start - p->address);
        for (unsigned step = 0; steps >> step; step++) {
            uint64_t offset = step * HEADER;
            if (!(steps >> step & 1) || size < offset + HEADER)
                continue;
            uint64_t type = load(data + offset + WORD);
            uint64_t place = type ? place_of(&known, type) : 0;
            if (!type || !known.keys[place] || offsets[known.numbers[place]] != offset)
                continue;
            const uint8_t *object = data + offset;
            if (!shift && !offset && are_values(data, size < EXAMINED ? size : EXAMINED, size))
                break;
            if (shift ? offset < FREE_THREADED || !shared_counts(object) : !counts(b, program, load(object)) || !has_link(object, offset))
                continue;
            bool live = shift ? load32(object + REF_LOCAL) || load(object) >> 2 : load(object) != 0;
            uint32_t number = known.numbers[place];
            uint64_t *sum = sums + SUMS * (uint64_t)number, mark = marks[number];
            if (live) {
                uint64_t rest = (left < size ? left : size) - offset;
                uint8_t state = mark && mark < rest ? object[mark] : 0;
                bool is_leaf = has_no_pointers(object, rest, mark, leaves[number]);
                found[index] = number;
                merged[index] = is_leaf ? IGNORED : number;
                patterns[index] = offset == 0 && may_be_values(data, size) ? 0 : is_leaf ? LEAF : lives[number];
                sum[0]++;
                sum[1] += size;
                sum[2] += shift ? object[GC_BITS] & 1 : offset >= COLLECTOR && load(object - COLLECTOR);
                if (state & 3) {
                    sum[4]++;
                    sum[5] += size;
                }
            } else {
                sum[3]++;
            }
            break;
        }
    }
end:
    FREE_ALL(known.keys, known.numbers);
    return code;
}

/* Write to `out` the starts of the blocks in the piece with objects that a free-threaded
 * interpreter made immortal. `found` and `offsets`: see fl_objects. A block is omitted if the
 * piece ends inside its object's head: no small block of CPython's mimalloc crosses a multiple
 * of 64 KiB, where pieces end. */
API int fl_immortal_objects(const blocks *b, const piece *p, const uint32_t *found, const uint8_t *offsets, words *out) {
    uint64_t start = 0;
    for (uint32_t index = block_from(b, p->address, &start); index < b->count && start - p->address < p->length; next_block(b, &index, &start)) {
        uint64_t left = p->length - (start - p->address);
        if (found[index] == UINT32_MAX || start % WORD)
            continue;
        uint64_t offset = offsets[found[index]];
        if (offset < FREE_THREADED || left < offset + HEADER)
            continue;
        if (load32(p->data + (start - p->address) + offset + REF_LOCAL) == UINT32_MAX && words_push(out, start))
            return NO_MEMORY;
    }
    return DONE;
}
