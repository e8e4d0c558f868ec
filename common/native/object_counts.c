/* Compares the reference counts of leaked CPython objects with the references found.
 *
 * Only leaked blocks refer to a leaked object. If an object counts more references than these
 * blocks contain, a Py_DECREF is missing. If no object under a leak head counts more references
 * than exist, and the cycle of the leak head consists of objects that the garbage collector tracks,
 * the collector will free the objects. Example: ob_refcnt is 3 and two leaked words refer to the
 * object, so the excess is 1. */
#include "lost.h"

#include <stdlib.h>

#define OBJECT_HEADER (2 * WORD) /* ob_refcnt, ob_type */
#define NO_TYPE UINT32_MAX
#define SUMS 3u
/* Reference counts of at least this value belong to immortal objects (3.12 and later). */
#define IMMORTAL (WORD == 8 ? UINT32_C(0x80000000) : UINT32_C(0x20000000))

/* Bytes from ob_ref_shared to ob_gc_bits and ob_ref_local, in free-threaded builds. */
#define GC_BITS (-5)
#define REF_LOCAL (-4)
#define FREE_THREADED 16u /* minimum number of bytes before ob_ref_shared */
#define DEFERRED 64 /* of ob_gc_bits: references on stacks are not counted */

enum { OBJECT = 1, EXCESS = 2, TRACKED = 4, REFERS_TO_ITSELF = 8 };           /* flags of a block */
enum { NOTHING, MISSING_DECREF, UNCOLLECTED, UNTRACKED_CYCLE, VERDICTS };     /* of a leak head */
/* properties of the blocks under a leak head */
enum { CYCLE_OF_OBJECTS = 1, CYCLE_UNTRACKED = 2, HAS_EXCESS = 4 };

/* Count, for every leaked block, the words in other leaked blocks that refer to its start, or to
 * its object; with `interior`, to any part of it. The graph must be classified. */
API void fl_lost_references(const graph *g, bool interior, uint32_t *counts) {
    const lost *l = g->lost;
    for (uint32_t place = 0; place < l->count; place++) {
        uint32_t count, first = edges_of(g, l->indices[place], &count);
        for (uint32_t at = 0; at < count; at++) {
            uint32_t edge = g->edges[first + at], target = edge >> INDEX_SHIFT;
            if ((interior || !(edge & INTERIOR)) && place_of(l, target) != NONE && counts[target] < UINT32_MAX)
                counts[target]++;
        }
    }
}

/* Return the number of references of a block to its own object; two low bits may be flags. */
static uint32_t own_references(const graph *g, const uint8_t *data, uint64_t size, uint32_t index, uint64_t object) {
    const exclusion *of = g->patterns ? &g->exclusions[g->patterns[index]] : NULL;
    uint32_t found = 0;
    for (uint64_t word = 0; word < size / WORD; word++) {
        bool excluded = of && (of->words | of->links) & excluded_bit(of, word);
        found += !excluded && (load(data + word * WORD) & ~UINT64_C(3)) == object;
    }
    return found;
}

typedef struct {
    uint32_t references;
    bool exact, tracked; /* exact: not immortal, and the count includes references on stacks */
} counted;

/* Read the reference count of an object; with `shift`, of an object of a free-threaded
 * interpreter (see fl_objects). `offset`: position of the count in the block's bytes `data`. */
static counted count_of(const uint8_t *data, uint64_t offset, uint64_t shift) {
    const uint8_t *at = data + offset;
    if (!shift) {
        uint32_t number = BIG && WORD == 8 ? load32(at + 4) : load32(at);
        return (counted){number, number < IMMORTAL, offset >= OBJECT_HEADER && load(at - OBJECT_HEADER)};
    }
    uint32_t local = load32(at + REF_LOCAL);
    int64_t all = (int64_t)local + ((int64_t)load(at) >> 2);
    bool exact = local != UINT32_MAX && !(at[GC_BITS] & DEFERRED) && all >= 0 && all < UINT32_MAX;
    return (counted){exact ? (uint32_t)all : 0, exact, at[GC_BITS] & 1};
}

/* Compare each leaked object in the piece: set its flags, and replace the number of references
 * found in `counts` (see fl_lost_references) by the number that it counts in excess. `found` is
 * the type of each block's object (fl_objects), `offsets` the offset of the objects of a type,
 * `shift` as there. Blocks that the piece contains only partly are added to `cut`, by address. */
API int fl_compare_counts(const graph *g, const piece *p, const uint32_t *found, const uint8_t *offsets, uint64_t shift, uint8_t *flags, uint32_t *counts,
                          words *cut) {
    const blocks *b = g->b;
    uint64_t start = 0;
    for (uint32_t index = block_from(b, p->address, &start); index < b->count && start - p->address < p->length; next_block(b, &index, &start)) {
        if (found[index] == NO_TYPE || place_of(g->lost, index) == NONE || start % WORD)
            continue;
        uint64_t size = size_of(b, index), offset = offsets[found[index]];
        if (p->length - (start - p->address) < size) {
            if (words_push(cut, start))
                return NO_MEMORY;
            continue;
        }
        const uint8_t *data = p->data + (start - p->address);
        if (size < offset + OBJECT_HEADER || (shift && offset < FREE_THREADED))
            continue;
        counted its = count_of(data, offset, shift);
        uint32_t own = own_references(g, data, size, index, start + offset - shift), all = counts[index] + own;
        bool excess = its.exact && its.references > all;
        flags[index] = (uint8_t)(OBJECT | (excess ? EXCESS : 0) | (its.tracked ? TRACKED : 0) | (own ? REFERS_TO_ITSELF : 0));
        counts[index] = excess ? its.references - all : 0;
    }
    return DONE;
}

static uint8_t verdict_of(uint8_t under) {
    return under & HAS_EXCESS ? MISSING_DECREF : under & CYCLE_UNTRACKED ? UNTRACKED_CYCLE : under & CYCLE_OF_OBJECTS ? UNCOLLECTED : NOTHING;
}

/* Judge each leak head, once all objects are compared. verdicts[index] is the verdict of the
 * leaked block's leak head. sums has three words for each type: objects with an excess, their
 * excess references, uncollected objects. totals: blocks and bytes of each verdict. Afterwards
 * `counts` is 0 for blocks without an excess. */
API int fl_judge_counts(const graph *g, const uint32_t *found, const uint8_t *flags, uint32_t *counts, uint8_t *verdicts, uint64_t *sums,
                        uint64_t *totals) {
    const lost *l = g->lost;
    uint8_t *under = calloc(l->leak_heads.count + 1, sizeof *under);
    if (!under)
        return NO_MEMORY;
    for (uint32_t place = 0; place < l->count; place++) {
        uint32_t number = l->low[place];
        if (number >= l->leak_heads.count)
            continue;
        const leak_head *of = &l->leak_heads.items[number];
        uint8_t its = flags[l->indices[place]];
        bool in_cycle = l->order[place] == l->order[of->place] && (of->cycle > 1 || its & REFERS_TO_ITSELF);
        if (its & OBJECT && in_cycle)
            under[number] |= its & TRACKED ? CYCLE_OF_OBJECTS : CYCLE_UNTRACKED;
        if (its & EXCESS)
            under[number] |= HAS_EXCESS;
    }
    for (uint32_t place = 0; place < l->count; place++) {
        uint32_t number = l->low[place], index = l->indices[place], type = found[index];
        uint8_t verdict = number < l->leak_heads.count ? verdict_of(under[number]) : NOTHING;
        verdicts[index] = verdict;
        totals[2 * verdict]++;
        totals[2 * verdict + 1] += size_of(g->b, index);
        counts[index] = flags[index] & EXCESS ? counts[index] : 0;
        if (type == NO_TYPE)
            continue;
        sums[SUMS * (uint64_t)type] += counts[index] > 0;
        sums[SUMS * (uint64_t)type + 1] += counts[index];
        sums[SUMS * (uint64_t)type + 2] += verdict == UNCOLLECTED;
    }
    free(under);
    return DONE;
}
