/* Definite and indirect blocks, by strongly connected components of the leaked blocks (Tarjan,
 * with an explicit stack). One block of a component is the leak head if no other
 * component refers to the component: the labelled block of the highest rank, else the lowest
 * block. Other blocks are counted under the lowest leak head that reaches them. */
#include "lost.h"
#include "possible.h"

#include "threads.h"

#include <stdlib.h>

#define COMPONENT 0x80000000u
enum { REFERRED = 1, LED = 2 };
enum { COLLECT, CONNECT, RANK, LEAD, HANG, FINISHED };

void lost_free(lost *l) {
    if (!l)
        return;
    free_zeros(l->bits, l->groups * sizeof *l->bits);
    free_zeros(l->ranks, l->groups * sizeof *l->ranks);
    FREE_ALL(l->indices, l->order, l->low, l->stack, l->calls.items, l->components.items, l->candidates, l->leak_heads.items,
             l->cycles.items, l->members.items, l);
}

/* Return a bit for each of 64 blocks, which is set if the block is leaked. Eight blocks are tested
 * at a time: their bytes are below 0x80, so that adding 0x7F sets the top bit of all but zeros. */
static uint64_t lost_of(const graph *g, size_t first) {
    uint64_t bits = 0;
    for (size_t index = first; index < g->count && index < first + 64;) {
        if (g->count - index >= 8) {
            /* 0: leaked */
            uint64_t bytes = eight_bytes(g->kinds + index) | eight_bytes(g->b->states + index);
            uint64_t zero = ~(bytes + UINT64_C(0x7F7F7F7F7F7F7F7F)) & UINT64_C(0x8080808080808080);
            bits |= (zero >> 7) * UINT64_C(0x0102040810204080) >> 56 << (index - first);
            index += 8;
        } else {
            bits |= (uint64_t)((g->kinds[index] == UNKNOWN) & (g->b->states[index] == IN_USE)) << (index - first);
            index++;
        }
    }
    return bits;
}

static void collect_some(void *context, unsigned thread, uint64_t first, uint64_t end) {
    graph *g = context;
    (void)thread;
    for (uint64_t group = first; group < end; group++) {
        uint64_t bits = lost_of(g, group * 64);
        if (bits) /* pages of blocks that are not leaked need not be resident */
            g->lost->bits[group] = bits;
    }
}

static int collect(graph *g, lost *l) {
    size_t groups = l->groups = (size_t)g->count / 64 + 1;
    l->bits = allocate_zeros(groups * sizeof *l->bits);
    l->ranks = allocate_zeros(groups * sizeof *l->ranks);
    if (!l->bits || !l->ranks)
        return NO_MEMORY;
    run_in_parts(g->b->threads, groups, SOME_GROUPS, collect_some, g);
    for (size_t group = 0; group < groups; group++) {
        if (l->bits[group])
            l->ranks[group] = l->count;
        l->count += (uint32_t)__builtin_popcountll(l->bits[group]);
    }
    size_t count = (size_t)l->count + 1;
    l->indices = malloc(count * sizeof *l->indices);
    l->order = calloc(count, sizeof *l->order);
    l->low = malloc(count * sizeof *l->low);
    l->stack = malloc(count * sizeof *l->stack);
    if (!l->indices || !l->order || !l->low || !l->stack)
        return NO_MEMORY;
    uint32_t place = 0;
    for (size_t group = 0; group < groups; group++)
        for (uint64_t bits = l->bits[group]; bits; bits &= bits - 1)
            l->indices[place++] = (uint32_t)(group * 64) + (uint32_t)__builtin_ctzll(bits);
    return DONE;
}

/* Places are visited in ascending order, so edges are prefetched ahead. */
INLINE void prefetch_edges(const graph *g, const lost *l, uint32_t place) {
    enum { FAR = 32, SOON = 16 };
    if (place + FAR < l->count)
        __builtin_prefetch(&g->groups[l->indices[place + FAR] / GROUP]);
    if (place + SOON < l->count) {
        uint32_t count;
        __builtin_prefetch(&g->edges[edges_of(g, l->indices[place + SOON], &count)]);
    }
}

static int enter(graph *g, lost *l, uint32_t place) {
    uint32_t count, first = edges_of(g, l->indices[place], &count);
    if (PUSH(l->calls, (call){place, first, first + count}))
        return NO_MEMORY;
    l->order[place] = l->low[place] = ++l->next_order;
    l->stack[l->stacked++] = place;
    return DONE;
}

static int leave(lost *l) {
    uint32_t place = l->calls.items[--l->calls.count].place, member;
    if (l->calls.count) {
        uint32_t caller = l->calls.items[l->calls.count - 1].place;
        if (l->low[place] < l->low[caller])
            l->low[caller] = l->low[place];
    }
    if (l->low[place] != l->order[place])
        return DONE;
    component made = {0, l->calls.count ? REFERRED : 0}; /* REFERRED if a caller refers to it */
    do {
        member = l->stack[--l->stacked];
        l->order[member] = COMPONENT | (uint32_t)l->components.count;
        made.members++;
    } while (member != place);
    return PUSH(l->components, made);
}

/* Each phase returns 1 if the budget is used up and work is left. */
static int connect(graph *g, lost *l, int64_t *budget) {
    for (;;) {
        if (!l->calls.count) {
            for (; l->at < l->count && l->order[l->at]; l->at++)
                prefetch_edges(g, l, l->at);
            if (l->at == l->count)
                return DONE;
            prefetch_edges(g, l, l->at);
            if (enter(g, l, l->at))
                return NO_MEMORY;
        }
        while (l->calls.count) {
            if (--*budget < 0)
                return 1;
            call *top = &l->calls.items[l->calls.count - 1];
            uint32_t deeper = NONE;
            while (top->next < top->end && deeper == NONE) {
                uint32_t target = place_of(l, g->edges[top->next++] >> INDEX_SHIFT);
                if (target == NONE)
                    continue;
                if (!l->order[target])
                    deeper = target;
                else if (l->order[target] & COMPONENT)
                    l->components.items[l->order[target] & ~COMPONENT].flags = REFERRED;
                else if (l->order[target] < l->low[top->place])
                    l->low[top->place] = l->order[target];
            }
            if (deeper == NONE ? leave(l) : enter(g, l, deeper))
                return NO_MEMORY;
        }
    }
}

/* Find, in each component, the labelled block with the highest rank; the lowest of several. */
static int rank(graph *g, lost *l, int64_t *budget) {
    if (!g->labels)
        return DONE;
    if (!l->candidates && !(l->candidates = calloc(l->components.count + 1, sizeof *l->candidates)))
        return NO_MEMORY;
    for (; l->at < l->count; l->at++) {
        if (--*budget < 0)
            return 1;
        uint32_t label = label_of(g, l->indices[l->at]);
        candidate *best = &l->candidates[l->order[l->at] & ~COMPONENT];
        if (label != NONE && g->label_ranks[label] > best->rank)
            *best = (candidate){l->at, g->label_ranks[label]};
    }
    return DONE;
}

/* Find the leak heads. Places ascend, so the first block of a component is its lowest. */
static int lead(graph *g, lost *l, int64_t *budget) {
    for (; l->at < l->count; l->at++) {
        if (--*budget < 0)
            return 1;
        uint32_t number = l->order[l->at] & ~COMPONENT;
        component *own = &l->components.items[number];
        bool labelled = l->candidates && l->candidates[number].rank, heads = !(own->flags & REFERRED);
        bool leads = heads && (labelled ? l->candidates[number].place == l->at : !(own->flags & LED));
        l->low[l->at] = leads ? (uint32_t)l->leak_heads.count : NONE;
        if (leads && PUSH(l->leak_heads, (leak_head){l->at, own->members, 0, 0}))
            return NO_MEMORY;
        if (heads && !labelled && (leads ? own->members > 1 : true)) {
            if (leads) {
                own->members = (uint32_t)l->cycles.count;
                if (PUSH(l->cycles, (cycle){(uint32_t)l->leak_heads.count - 1, l->at, 0, 0}))
                    return NO_MEMORY;
            }
            if (PUSH(l->members, (cycle_member){l->at, own->members, 0}))
                return NO_MEMORY;
        }
        own->flags |= LED; /* its other blocks are not leak heads */
        g->kinds[l->indices[l->at]] = leads ? DEFINITE : INDIRECT;
    }
    return DONE;
}

static int hang(graph *g, lost *l, int64_t *budget) {
    for (; l->at < l->leak_heads.count || l->stacked; l->at += !l->stacked) {
        if (!l->stacked)
            l->stack[l->stacked++] = l->leak_heads.items[l->at].place;
        leak_head *from = &l->leak_heads.items[l->at];
        while (l->stacked) {
            if (--*budget < 0)
                return 1;
            uint32_t count, first = edges_of(g, l->indices[l->stack[--l->stacked]], &count);
            for (uint32_t at = 0; at < count; at++) {
                uint32_t index = g->edges[first + at] >> INDEX_SHIFT, place = place_of(l, index);
                if (place == NONE || l->low[place] != NONE)
                    continue;
                l->low[place] = l->at;
                from->hanging++;
                from->bytes += size_of(g->b, index);
                l->stack[l->stacked++] = place;
            }
        }
    }
    return DONE;
}

INLINE int classify(graph *g, int64_t budget) {
    interiors_free(g);
    if (!g->lost && !(g->lost = calloc(1, sizeof *g->lost)))
        return NO_MEMORY;
    lost *l = g->lost;
    for (; l->phase < FINISHED; l->phase++, l->at = 0) {
        int more = l->phase == COLLECT   ? collect(g, l)
                   : l->phase == CONNECT ? connect(g, l, &budget)
                   : l->phase == RANK    ? rank(g, l, &budget)
                   : l->phase == LEAD    ? lead(g, l, &budget)
                                         : hang(g, l, &budget);
        if (more)
            return more;
    }
    DROP(l->stack);
    DROP(l->calls.items);
    DROP(l->components.items);
    DROP(l->candidates);
    return 0;
}

/* Classify leaked blocks. Returns 1 if work is left. */
API int fl_classify(graph *g, int64_t budget) {
    int more = classify(g, budget);
    return more ? more : find_heads(g, budget);
}

static const leak_head *leak_head_of(const graph *g, uint32_t index) {
    uint32_t place = place_of(g->lost, index);
    return place == NONE ? NULL : &g->lost->leak_heads.items[g->lost->low[place]];
}

API uint32_t fl_leak_head(const graph *g, uint32_t index) {
    const leak_head *found = leak_head_of(g, index);
    return found ? g->lost->indices[found->place] : NONE;
}

/* For the blocks [first, last), return the leak head of each definite or indirect block, else
 * NONE. */
API void fl_leak_heads(const graph *g, uint32_t first, uint32_t last, uint32_t *leak_heads) {
    for (uint32_t index = first; index < last; index++)
        leak_heads[index - first] = g->kinds[index] >= DEFINITE ? fl_leak_head(g, index) : NONE;
}

API uint32_t fl_cycle(const graph *g, uint32_t index) {
    const leak_head *found = leak_head_of(g, index);
    return found && g->lost->indices[found->place] == index ? found->cycle : 1;
}

API void fl_hanging(const graph *g, uint32_t index, uint32_t *count, uint64_t *bytes) {
    const leak_head *found = leak_head_of(g, index);
    bool leads = found && g->lost->indices[found->place] == index;
    const head *own = g->kinds[index] == POSSIBLE && !g->possible->flat ? head_of(g, index) : NULL;
    if (own) {
        *count = own->hanging;
        *bytes = own->bytes;
        return;
    }
    *count = leads ? found->hanging : 0;
    *bytes = leads ? found->bytes : 0;
}
