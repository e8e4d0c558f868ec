/* Possible blocks to whose interior a root or a reachable block refers are heads. The other
 * possible blocks are counted under the lowest head that reaches them: one stray number may lead
 * to a hundred thousand blocks. */
#include "possible.h"

#include <stdlib.h>

enum { COLLECT_HEADS, COUNT_BELOW, HEADS_FOUND };

void possible_free(possible_heads *p) {
    if (p)
        FREE_ALL(p->heads.items, p->stack.items, p->seen, p);
}

static int collect_heads(graph *g, possible_heads *p) {
    uint64_t all = 0;
    for (uint32_t index = 0; index < g->count; index++)
        all += g->kinds[index] == POSSIBLE;
    for (size_t group = 0; all && group <= g->count / 64; group++)
        for (uint64_t bits = g->root_interiors[group] | g->interiors[group]; bits; bits &= bits - 1) {
            uint32_t index = (uint32_t)(group * 64) + (uint32_t)__builtin_ctzll(bits);
            if (g->kinds[index] == POSSIBLE && PUSH(p->heads, (head){index, 0, 0}))
                return NO_MEMORY;
        }
    p->flat = p->heads.count == all;
    if (!p->flat && !(p->seen = calloc((size_t)g->count / 64 + 1, sizeof *p->seen)))
        return NO_MEMORY;
    for (uint64_t at = 0; !p->flat && at < p->heads.count; at++)
        set_bit(p->seen, p->heads.items[at].index);
    return DONE;
}

static int count_below(graph *g, possible_heads *p, int64_t *budget) {
    for (; p->at < p->heads.count || p->stack.count; p->at += !p->stack.count) {
        head *from = &p->heads.items[p->at];
        if (!p->stack.count && words_push(&p->stack, from->index))
            return NO_MEMORY;
        while (p->stack.count) {
            if (--*budget < 0)
                return 1;
            uint32_t count, first = edges_of(g, (uint32_t)p->stack.items[--p->stack.count], &count);
            for (uint32_t at = first; at < first + count; at++) {
                uint32_t target = g->edges[at] >> INDEX_SHIFT;
                if (g->kinds[target] != POSSIBLE || bit(p->seen, target))
                    continue;
                set_bit(p->seen, target);
                from->hanging++;
                from->bytes += size_of(g->b, target);
                if (words_push(&p->stack, target))
                    return NO_MEMORY;
            }
        }
    }
    return DONE;
}

/* Find the heads. Call this function after marking. Returns 1 if work is left. */
int find_heads(graph *g, int64_t budget) {
    possible_heads *p = g->possible;
    if (!p && !(p = g->possible = calloc(1, sizeof *p)))
        return NO_MEMORY;
    int failed = DONE;
    if (p->phase == COLLECT_HEADS) {
        if ((failed = collect_heads(g, p)))
            return failed;
        p->phase = COUNT_BELOW;
    }
    if (p->phase == COUNT_BELOW) {
        if (!p->flat && (failed = count_below(g, p, &budget)))
            return failed;
        p->phase = HEADS_FOUND;
        DROP(p->seen);
        DROP(p->stack.items);
        drop_bits(g, &g->interiors);
    }
    return DONE;
}

const head *head_of(const graph *g, uint32_t index) {
    const possible_heads *p = g->possible;
    uint64_t at = 0;
    BISECT(at, p->heads.count, middle, p->heads.items[middle].index < index)
    return at < p->heads.count && p->heads.items[at].index == index ? &p->heads.items[at] : NULL;
}

/* Return the heads' indices, ascending. Returns false, and no indices, if every possible block
 * is a head. */
API int fl_heads(const graph *g, words *found) {
    if (g->possible->flat)
        return 0;
    for (uint64_t at = 0; at < g->possible->heads.count; at++)
        if (words_push(found, g->possible->heads.items[at].index))
            return NO_MEMORY;
    return 1;
}
