/* Finds the references in managed objects, and in blocks without an object, word by word.
 * ../runtimes/object_references.py describes the result. */
#include "graph.h"

#define TAGS UINT64_C(3) /* low bits of references in frames of CPython 3.14: tags */

typedef struct {
    const graph *g;
    const uint32_t *found;
    const uint8_t *offsets;
    uint64_t shift;
    words *out;
} search;

/* Add the reference of a word, `at` bytes into block `source`, if it is one. */
static int add_reference(const search *s, uint32_t source, uint64_t at, uint64_t value) {
    const graph *g = s->g;
    const blocks *b = g->b;
    if (value - g->low >= g->span)
        return DONE;
    uint64_t start = value;
    uint32_t target = block_before(b, slot_of(b, value), value, &start);
    if (target >= b->count || value - start >= size_of(b, target) || b->states[target] != IN_USE)
        return DONE;
    uint32_t number = s->found[target];
    uint64_t offset = value - start;
    if (number != NONE && (offset & ~TAGS) != (uint64_t)s->offsets[number] - s->shift)
        return DONE;
    if (is_excluded(g->patterns, g->exclusions, source, at, target, offset))
        return DONE;
    return PUSH_ALL(s->out, (uint64_t)source << 32 | (at / WORD & UINT32_MAX), target, offset);
}

/* Find the references in blocks of a piece. If `with_object`, search the blocks that contain an
 * object, otherwise the other blocks. Each reference appends three words to `out`: source << 32 |
 * number of the word, target, and the offset in the target. In a block that contains an object,
 * only references to the object's start count; references to other places of this block are left
 * out. */
API int fl_object_references(const graph *g, const piece *p, const uint32_t *found, const uint8_t *offsets, uint64_t shift, bool with_object,
                             words *out) {
    const search s = {g, found, offsets, shift, out};
    const blocks *b = g->b;
    uint64_t start = 0, end = p->address + p->length;
    for (uint32_t index = block_reaching(b, p->address, &start); index < b->count && start < end; next_block(b, &index, &start)) {
        if (b->states[index] != IN_USE || start % WORD || (found[index] != NONE) != with_object)
            continue;
        uint64_t last = start + size_of(b, index), from = start > p->address ? start : p->address;
        from += -from % WORD;
        for (uint64_t at = from; at < end && end - at >= WORD && at < last && last - at >= WORD; at += WORD)
            if (add_reference(&s, index, at - start, load(p->data + (at - p->address))))
                return NO_MEMORY;
    }
    return DONE;
}
