/* The parts of blocks that are certain although the types of the blocks are inferred.
 *
 * Example: a pointer to `struct item` refers to a block of 40 bytes, which may be a `struct item`
 * or a `struct special` that begins with an item. The type of the block is inferred. The pointers
 * of the item are as certain as the pointer to it. ../engine/reference/type_parts.py is the same in
 * Python. */
#include "type_spread.h"

#include <stdlib.h>

static bool has_part(const spread *s, uint32_t index) { return s->parts && s->parts[index]; }

int note_part(spread *s, uint32_t decided, const followed *p) {
    bool is_inferred = s->claims[p->index] & INFERRED;
    if (!s->decisions.items[decided].part_size || !p->certain || p->doubtful || !is_inferred)
        return DONE;
    if (!s->parts && !(s->parts = calloc((size_t)s->b->count + 1, sizeof *s->parts)))
        return NO_MEMORY;
    s->parts[p->index] = decided + 1;
    return DONE;
}

/* Whether a layout is one of those that a decision chooses from. */
static bool is_option(const spread *s, const decision *d, uint32_t layout) {
    for (uint32_t at = d->first; at < d->last; at++)
        if ((s->options.items[at].claim & LAYOUT_MASK) == layout)
            return true;
    return false;
}

/* If the pointer determines the type of the block, and the block already has this type, the type
 * becomes certain. If the pointer determines a part of the block, this part does. The pointers of
 * the block are then followed again. A block with a part keeps its origin: the new owner may have
 * its type from the block. */
int follow_to_inferred(spread *s, const followed *p, uint32_t answer) {
    uint32_t layout = layout_of(s, p->index), before = s->origins[p->index];
    bool had_part = has_part(s, p->index);
    if (answer & DECISION) {
        uint32_t decided = answer & LAYOUT_MASK;
        const decision *d = &s->decisions.items[decided];
        if (!d->part_size || had_part || !is_option(s, d, layout))
            return note_pointer(s, p);
        s->origins[p->index] = p->owner;
        return note_part(s, decided, p) || words_push(&s->queue, p->start) ? NO_MEMORY : DONE;
    }
    if (level_of(answer) >= LEVEL_BASE || (answer & LAYOUT_MASK) != layout)
        return DONE;
    if (claim_target(s, p, answer))
        return NO_MEMORY;
    if (had_part)
        s->origins[p->index] = before;
    return DONE;
}

/* Set the certain part of the owner whose visit begins. */
void begin_part(spread *s) {
    s->part = s->part_size = 0;
    if (s->owner < ROOT_BIT && !s->certain && has_part(s, s->owner)) {
        const decision *d = &s->decisions.items[s->parts[s->owner] - 1];
        s->part = d->part;
        s->part_size = d->part_size;
    }
}

/* Write the certain part of each block: 1 + the number of its decision; 0: none. */
API void fl_spread_parts(const spread *s, uint32_t *parts) {
    for (uint32_t index = 0; index < s->b->count; index++)
        parts[index] = s->parts && s->claims[index] & INFERRED ? s->parts[index] : 0;
}

/* Return whether any block has a certain part. */
API int fl_spread_has_parts(const spread *s) { return s->parts != NULL; }
