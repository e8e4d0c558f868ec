/* Arrays of pointers among other data: see ../engine/pointer_runs.py. */
#include "blocks.h"

#define AHEAD 12u /* words ahead whose slots are prefetched */

typedef struct run_search {
    uint64_t low, high; /* bounds of all blocks */
    uint64_t least, gap;
    uint64_t start, last, count; /* current run: start, last pointer, number of pointers; 0: none */
} run_search;

static int end_run(run_search *s, words *found) {
    uint64_t count = s->count;
    s->count = 0;
    if (count < s->least || !count)
        return DONE;
    return PUSH_ALL(found, s->start, s->last + WORD, count);
}

/* Push three words for each run that ends in this piece: start, end, number of pointers. */
API int fl_pointer_runs(const blocks *b, const piece *p, run_search *s, words *found) {
    uint64_t address, count = piece_words(p, &address), span = s->high - s->low;
    const uint8_t *at = p->data + (address - p->address);
    for (uint64_t number = 0; number < count; number++, at += WORD, address += WORD) {
        uint64_t value = load(at);
        if (number + AHEAD < count && load(at + AHEAD * WORD) - s->low < span)
            __builtin_prefetch(slot_of(b, load(at + AHEAD * WORD)));
        if (!value)
            continue;
        if (value - s->low >= span) {
            if (end_run(s, found))
                return NO_MEMORY;
            continue;
        }
        uint32_t index = block_find(b, value);
        if (index == NONE || b->states[index] != IN_USE)
            continue;
        if (s->count && address - s->last - WORD > s->gap && end_run(s, found))
            return NO_MEMORY;
        if (!s->count)
            s->start = address;
        s->last = address;
        s->count++;
    }
    return DONE;
}
