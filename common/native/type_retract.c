/* Removes claims that follow from disputed blocks, and counts what was done.
 * ../engine/reference/type_spread.py is the same in Python. */
#include "type_spread.h"

#include <stdlib.h>

API int fl_spread_disputes(spread *s, words *found) {
    int failed = words_append(found, s->disputes.items, s->disputes.count);
    s->disputes.count = 0;
    return failed;
}

/* Returns the number of claims made so far. */
API uint64_t fl_spread_claimed(const spread *s) { return s->claimed; }

/* Returns the number of pointers followed so far. */
API uint64_t fl_spread_followed(const spread *s) { return s->followed - s->skipped; }

/* Remove all claims that come from disputed blocks, or from blocks whose claims were removed.
 * Returns the number of removed claims, or NO_MEMORY. Each chain of origins is followed up to the
 * first block without a layout or with a claim that stands, and then down again. */
API int64_t fl_spread_retract(spread *s) {
    int64_t fallen = 0;
    uint8_t *stands = calloc((size_t)s->b->count + 1, 1);
    words chain = {0};
    int failed = stands ? DONE : NO_MEMORY;
    for (uint32_t index = 0; index < s->b->count && !failed; index++) {
        uint32_t at = index;
        while (!failed && layout_of(s, at) && !stands[at] && !(s->origins[at] & ROOT_BIT)) {
            stands[at] = 1; /* this ends cycles; undone below if the claim is removed */
            failed = words_push(&chain, at);
            at = s->origins[at];
        }
        bool falls = !layout_of(s, at);
        while (chain.count) {
            uint32_t one = (uint32_t)chain.items[--chain.count];
            if (!falls)
                continue;
            set_claim(s, one, 0);
            s->origins[one] = NONE;
            if (s->limits)
                s->limits[one] = 0;
            stands[one] = 0;
            fallen++;
        }
    }
    FREE_ALL(stands, chain.items);
    return failed ? failed : fallen;
}
