/* Adds references to a marked graph, and restarts marking. */
#include "visit.h"

#include "lost.h"

#include <stdlib.h>

typedef struct {
    uint32_t *edges;
    uint64_t count;
    const uint64_t *references; /* source << 32 | target, by source */
    uint64_t at, reference_count;
} connecting;

/* Copy a block's edges, and add the new ones at the end. */
static void connect_block(graph *g, connecting *c, uint32_t index, uint32_t first, uint32_t count) {
    uint64_t begin = c->count;
    memcpy(c->edges + c->count, g->edges + first, count * sizeof *c->edges);
    c->count += count;
    for (; c->at < c->reference_count && c->references[c->at] >> 32 == index; c->at++)
        c->edges[c->count++] = (uint32_t)c->references[c->at] << INDEX_SHIFT;
    for (uint64_t at = begin; at < c->count; at++)
        c->edges[at] = (c->edges[at] & ~LAST) | (at + 1 == c->count ? LAST : 0);
    g->degrees[index % GROUP] = (uint32_t)(c->count - begin);
    *node_of(g, index) &= (uint8_t)~COUNT_MASK;
}

static int connect_all(graph *g, connecting *c) {
    for (uint32_t group = 0; group * (uint64_t)GROUP < g->count; group++) {
        uint32_t begin = group * GROUP, end = g->count - begin < GROUP ? g->count : begin + GROUP;
        uint32_t firsts[GROUP], counts[GROUP];
        for (uint32_t index = begin; index < end; index++)
            firsts[index - begin] = edges_of(g, index, &counts[index - begin]);
        g->group = group;
        g->group_base = c->count;
        for (uint32_t index = begin; index < end; index++)
            connect_block(g, c, index, firsts[index - begin], counts[index - begin]);
        g->edge_count = c->count;
        if (next_group(g, begin + GROUP))
            return NO_MEMORY;
    }
    return DONE;
}

/* Keep one bit for each block that is reachable now, and clear all kinds. */
static int forget_kinds(graph *g) {
    if (!(g->reached = calloc((size_t)g->count / 64 + 1, sizeof *g->reached)))
        return NO_MEMORY;
    for (uint32_t index = 0; index < g->count; index++) {
        uint8_t *node = node_of(g, index), kind = *node >> KIND_SHIFT;
        if (kind == REACHABLE)
            set_bit(g->reached, index);
        if (kind != OFF_LIMITS)
            *node &= COUNT_MASK;
    }
    memset(g->kinds, UNKNOWN, g->count);
    return DONE;
}

/* Number the edges of recorded interior references from the first edge of their source on
 * (`from_first`), or as in `inner`. The first number does not change when edges are added. */
static void renumber_interiors(graph *g, bool from_first) {
    for (uint64_t at = 0; at < g->inners.count; at++) {
        inner *item = &g->inners.items[at];
        uint32_t count, first = item->source == NONE ? 0 : edges_of(g, item->source, &count);
        item->place += from_first ? 0 - first : first;
    }
}

/* Add references (source << 32 | target, by source; source NONE: from a root) to a graph that is
 * marked, and possibly classified. Reachable blocks stay reachable, and accepted interior
 * references stay start references; the other blocks are marked and classified again. */
API int fl_graph_connect(graph *g, const uint64_t *references, uint64_t count) {
    if (g->edge_count + count > MAX_EDGES)
        return TOO_MANY_EDGES;
    connecting c = {malloc((g->edge_count + count) * sizeof *c.edges), 1, references, 0, count};
    if (!c.edges)
        return NO_MEMORY;
    c.edges[0] = g->edges[0];
    renumber_interiors(g, true);
    if (connect_all(g, &c) || forget_kinds(g)) {
        free(c.edges);
        return NO_MEMORY;
    }
    if (g->count / GROUP >= g->group)
        g->groups[g->count / GROUP].base = (uint32_t)c.count;
    for (; c.at < count; c.at++)
        set_bit(g->root_starts, (uint32_t)references[c.at]);
    free(g->edges);
    g->edges = c.edges;
    g->edge_count = g->edge_capacity = c.count;
    renumber_interiors(g, false);
    lost_free(g->lost);
    g->lost = NULL;
    possible_free(g->possible);
    g->possible = NULL;
    DROP(g->promoted);
    drop_bits(g, &g->interiors);
    g->phase = STARTS;
    g->seed = 0;
    return (g->interiors = allocate_zeros(bit_bytes(g))) ? DONE : NO_MEMORY;
}
