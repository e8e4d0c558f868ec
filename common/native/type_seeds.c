/* Claims blocks whose types are known before types spread.
 * ../engine/reference/type_spread.py is the same in Python. */
#include "type_spread.h"

/* Claim a block. Returns 1 if it was claimed, 0 if it has a type or is not in use. */
API int fl_spread_seed(spread *s, uint32_t index, uint32_t claim, bool inferred, uint32_t origin) {
    if (index >= s->b->count || (claim & LAYOUT_MASK) + 1 >= s->bounds.count)
        return DISORDER;
    if (s->claims[index] || s->b->states[index] != IN_USE)
        return 0;
    return claim_block(s, index, block_address(s->b, index), claim, inferred, origin) ? NO_MEMORY : 1;
}

/* Claim the blocks of a list that are untyped and in use. */
API int fl_spread_seed_all(spread *s, const uint32_t *indices, uint64_t count, uint32_t claim) {
    int made = DONE;
    for (uint64_t at = 0; at < count && made >= 0; at++)
        made = fl_spread_seed(s, indices[at], claim, true, NONE);
    return made < 0 ? made : DONE;
}

API int fl_spread_seed_words(spread *s, const uint64_t *sought, const uint32_t *layouts, const uint64_t *least, uint64_t count, uint32_t level) {
    uint64_t start = s->b->lowest;
    if (!s->b->count || !count)
        return DONE;
    for (uint32_t index = 0;;) {
        const uint8_t *at = NULL;
        if (!s->claims[index] && s->b->states[index] == IN_USE && size_of(s->b, index) >= WORD && start % WORD == 0)
            at = word_at(s->pieces, s->piece_count, start);
        uint64_t value = at ? load(at) : 0, found = 0;
        if (value >= sought[0] && value <= sought[count - 1]) {
            BISECT(found, count, middle, sought[middle] < value)
            if (found < count && sought[found] == value && size_of(s->b, index) >= least[found] &&
                claim_block(s, index, start, layouts[found] | level << LEVEL_SHIFT, false, NONE))
                return NO_MEMORY;
        }
        if (!next_block(s->b, &index, &start))
            return DONE;
    }
}
