/* Queues typed memory whose pointers have to be followed again.
 * ../engine/reference/type_spread.py is the same in Python. */
#include "type_spread.h"

#include <stdlib.h>

static bool has_reference(const spread *s, uint32_t layout, const uint8_t *wanted) {
    for (uint32_t group = s->bounds.items[layout]; group < s->bounds.items[layout + 1]; group++)
        for (uint32_t at = s->groups.items[group].first; at < s->groups.items[group].last; at++)
            if (!wanted || wanted[s->slots.items[at].reference])
                return true;
    return false;
}

/* Of SAMPLE blocks from `first` on, add the blocks whose layouts are wanted to `queue`. Addresses
 * are computed only if there is such a block, because most revisits want few layouts. */
static int queue_blocks(spread *s, const uint8_t *has, uint32_t first, words *queue) {
    uint32_t end = s->b->count - first < SAMPLE ? s->b->count : first + SAMPLE, last = first;
    for (uint32_t index = first; index < end; index++)
        if (has[layout_of(s, index)])
            last = index + 1;
    uint64_t start = last > first ? s->b->samples.items[first / SAMPLE] : 0;
    for (uint32_t index = first; index < last;) {
        if (has[layout_of(s, index)] && words_push(queue, start))
            return NO_MEMORY;
        if (!next_block(s->b, &index, &start))
            break;
    }
    return DONE;
}

/* Give typed blocks another layout, and queue them. Their claims are as certain as before. */
API int fl_spread_relabel(spread *s, const uint32_t *indices, uint64_t count, uint32_t layout) {
    if ((uint64_t)layout + 1 >= s->bounds.count)
        return DISORDER;
    for (uint64_t at = 0; at < count; at++) {
        uint32_t index = indices[at];
        if (index >= s->b->count || !layout_of(s, index))
            continue;
        set_claim(s, index, (s->claims[index] & ~LAYOUT_MASK) | layout);
        s->claimed++;
        if (words_push(&s->queue, block_address(s->b, index)))
            return NO_MEMORY;
    }
    return DONE;
}

API int fl_spread_revisit(spread *s, const uint32_t *references, uint64_t count) {
    uint64_t layouts = s->bounds.count - 1, wanted_blocks = 0;
    uint8_t *wanted = calloc((size_t)s->highest + 1, 1), *has = calloc(layouts, 1);
    int failed = wanted && has ? DONE : NO_MEMORY;
    for (uint64_t at = 0; at < count && !failed; at++)
        if (references[at] <= s->highest)
            wanted[references[at]] = 1;
    for (uint32_t layout = 0; layout < layouts && !failed; layout++)
        has[layout] = has_reference(s, layout, count ? wanted : NULL);
    for (uint32_t layout = 0; layout < layouts && !failed; layout++)
        wanted_blocks += has[layout] ? s->counts.items[layout] : 0;
    for (uint64_t at = 0; at < s->roots.count && !failed; at++)
        if (has[s->roots.items[at].layout])
            failed = words_push(&s->queue, QUEUED_ROOT | at << 1);
    for (uint32_t first = 0; first < s->b->count && wanted_blocks && !failed; first += SAMPLE)
        failed = queue_blocks(s, has, first, &s->queue);
    FREE_ALL(wanted, has);
    return failed;
}

/* Queue the doubtful elements of blocks that were not visited before: elements of arrays that the
 * smallest request for a block of this size has no room for. Their pointers may be stale words.
 * They claim only untyped blocks whose content does not contradict the claim, and never contradict
 * the claims of other pointers. */
API int fl_spread_doubtful(spread *s) {
    words *queue = &s->doubtful_blocks;
    queue->count -= s->doubtful_head;
    if (queue->count && s->doubtful_head)
        memmove(queue->items, queue->items + s->doubtful_head, queue->count * sizeof *queue->items);
    s->doubtful_head = 0;
    uint64_t layouts = s->bounds.count - 1;
    uint8_t *has = s->doubts ? NULL : calloc(layouts, 1);
    int failed = s->doubts || has ? DONE : NO_MEMORY;
    for (uint32_t layout = 0; has && layout < layouts; layout++)
        for (uint32_t group = s->bounds.items[layout]; group < s->bounds.items[layout + 1]; group++)
            has[layout] |= !s->groups.items[group].count && s->groups.items[group].first < s->groups.items[group].last;
    for (uint32_t first = 0; has && first < s->b->count && !failed; first += SAMPLE)
        failed = queue_blocks(s, has, first, queue);
    s->doubts = !failed;
    s->doubtful_end = queue->count;
    free(has);
    return failed;
}
