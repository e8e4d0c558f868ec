/* Construction of the reference graph: edges come in the order of their sources. */
#include "scan.h"

#include "threads.h"

#include <stdlib.h>

API void fl_graph_free(graph *g) {
    heuristics_free(g->heuristics);
    interiors_free(g);
    lost_free(g->lost);
    possible_free(g->possible);
    scan_free(g->scan);
    drop_bits(g, &g->root_starts);
    drop_bits(g, &g->root_interiors);
    drop_bits(g, &g->interiors);
    FREE_ALL(g->groups, g->wides.items, g->edges, g->queue.items, g->promoted, g->reached, g);
}

static void begin_groups(void *context, unsigned thread, uint64_t first, uint64_t end) {
    graph *g = context;
    (void)thread;
    for (uint64_t group = first; group < end; group++) {
        g->groups[group] = (group_of_nodes){0};
        for (uint64_t at = 0, index = group * GROUP; at < GROUP && index < g->count; at++, index++)
            g->groups[group].nodes[at] = g->b->states[index] != IN_USE ? OFF_LIMITS << KIND_SHIFT : 0;
    }
}

/* `kinds`: a zeroed byte for each block; it and the blocks must outlive the graph. */
API graph *fl_graph_new(blocks *b, uint8_t *kinds) {
    graph *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    size_t groups = (size_t)b->count / GROUP + 1;
    g->b = b;
    g->count = b->count;
    g->kinds = kinds;
    g->groups = aligned_alloc(64, (groups * sizeof *g->groups + 63) & ~(size_t)63);
    g->group_end = GROUP;
    g->root_starts = allocate_zeros(bit_bytes(g));
    g->root_interiors = allocate_zeros(bit_bytes(g));
    /* memory is allocated only for edges that are used */
    g->edge_capacity = 2 * (uint64_t)b->count + STRETCH;
    if (!(g->edges = malloc(g->edge_capacity * sizeof *g->edges))) {
        g->edge_capacity = 0; /* address space is limited: reserve only as much as the edges need */
        (void)grow(&g->edges, 0, &g->edge_capacity, sizeof *g->edges);
    }
    g->edge_count = 1;
    g->last_source = NONE;
    if (b->count) {
        g->low = b->lowest;
        g->span = b->floor - b->lowest;
    }
    if (!g->edges || !g->groups || !g->root_starts || !g->root_interiors) {
        fl_graph_free(g);
        return NULL;
    }
    run_in_parts(b->threads, groups, SOME_GROUPS, begin_groups, g);
    g->group_base = g->edge_count;
    g->edges[0] = 0;
    return g;
}

/* Store the degrees of a complete group; the groups up to that of `index` start where it ends. */
int next_group(graph *g, uint32_t index) {
    uint32_t most = 0, base = (uint32_t)g->group_base;
    for (unsigned at = 0; at < GROUP; at++)
        most = g->degrees[at] > most ? g->degrees[at] : most;
    if (most > COUNT_MASK) {
        wide explicit = {{base}};
        for (unsigned at = 0; at < GROUP; at++)
            explicit.offsets[at + 1] = explicit.offsets[at] + g->degrees[at];
        base = WIDE | (uint32_t)g->wides.count;
        if (PUSH(g->wides, explicit))
            return NO_MEMORY;
    } else {
        for (unsigned at = 0; at < GROUP; at++)
            g->groups[g->group].nodes[at] |= (uint8_t)g->degrees[at];
    }
    g->groups[g->group].base = base;
    memset(g->degrees, 0, sizeof g->degrees);
    while (++g->group < index / GROUP)
        g->groups[g->group].base = (uint32_t)g->edge_count;
    g->group_end = (g->group + 1) * GROUP;
    g->group_base = g->edge_count;
    return DONE;
}

int graph_settle(graph *g) {
    g->edges[g->edge_count - 1] |= LAST;
    if (next_group(g, g->count))
        return NO_MEMORY;
    if (g->count / GROUP >= g->group)
        g->groups[g->count / GROUP].base = (uint32_t)g->edge_count;
    uint32_t *edges = realloc(g->edges, (size_t)g->edge_count * sizeof *edges);
    if (edges)
        g->edges = edges, g->edge_capacity = g->edge_count;
    if (g->heuristics)
        heuristics_settle(g);
    scan_free(g->scan);
    g->scan = NULL;
    return DONE;
}
