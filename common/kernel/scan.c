/* Streaming memory: which words refer to blocks. */
#include "graph.h"

#include <stdlib.h>

API void fl_graph_free(graph *g) {
    if (!g)
        return;
    free(g->groups);
    free(g->wides);
    free(g->edges);
    free(g->root_starts);
    free(g->root_interiors);
    free(g->interiors);
    free(g->batch);
    free(g->queue.items);
    hints_free(g->hints);
    lost_free(g->lost);
    free(g);
}

/* `kinds` has a byte a block, zeroed, and outlives the graph; so do the blocks. */
API graph *fl_graph_new(blocks *b, uint8_t *kinds) {
    graph *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    size_t groups = (size_t)b->count / GROUP + 1, bits = (size_t)b->count / 64 + 1;
    g->b = b;
    g->count = b->count;
    g->kinds = kinds;
    g->groups = aligned_alloc(64, (groups * sizeof *g->groups + 63) & ~(size_t)63);
    g->group_end = GROUP;
    g->root_starts = calloc(bits, sizeof *g->root_starts);
    g->root_interiors = calloc(bits, sizeof *g->root_interiors);
    g->batch = calloc(1, sizeof *g->batch);
    g->popcnt = has_popcnt();
    if (b->count) {
        g->low = b->lowest;
        g->span = b->floor - b->lowest;
    }
    if (!g->groups || !g->root_starts || !g->root_interiors || !g->batch) {
        fl_graph_free(g);
        return NULL;
    }
    memset(g->groups, 0, groups * sizeof *g->groups);
    for (uint32_t index = 0; index < b->count; index++)
        if (b->states[index] != IN_USE)
            *node_of(g, index) = OFF_LIMITS << KIND_SHIFT;
    return g;
}

/* The group is complete: keep its degrees, and let the groups up to that of `index` begin where it ends. */
static int next_group(graph *g, uint32_t index) {
    uint32_t most = 0, base = (uint32_t)g->group_base;
    for (unsigned at = 0; at < GROUP; at++)
        most = g->degrees[at] > most ? g->degrees[at] : most;
    if (most > COUNT_MASK) {
        wide *wides = grown(g->wides, g->wide_count, &g->wide_capacity, sizeof *wides);
        if (!wides)
            return NO_MEMORY;
        g->wides = wides;
        uint32_t *offsets = wides[g->wide_count].offsets, offset = base;
        for (unsigned at = 0; at < GROUP; at++) {
            offsets[at] = offset;
            offset += g->degrees[at];
        }
        offsets[GROUP] = offset;
        base = WIDE | (uint32_t)g->wide_count++;
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
    if (next_group(g, g->count))
        return NO_MEMORY;
    if (g->count / GROUP >= g->group)
        g->groups[g->count / GROUP].base = (uint32_t)g->edge_count;
    uint32_t *edges = g->edge_count ? realloc(g->edges, (size_t)g->edge_count * sizeof *edges) : NULL;
    if (edges)
        g->edges = edges, g->edge_capacity = g->edge_count;
    if (g->hints)
        hints_settle(g);
    free(g->batch);
    g->batch = NULL;
    return DONE;
}

/* Find the blocks that the candidates may point into; three passes, so that cache misses overlap. */
INLINE void resolve(const graph *g, batch *c) {
    const blocks *b = g->b;
    for (uint32_t at = 0; at < c->count; at++) {
        c->slots[at] = slot_of(b, c->values[at]);
        __builtin_prefetch(c->slots[at]);
    }
    for (uint32_t at = 0; at < c->count; at++) {
        uint32_t index = block_before(b, c->slots[at], c->values[at], &c->starts[at]);
        c->indices[at] = index;
        if (index != NONE && c->starts[at] != c->values[at])
            __builtin_prefetch(b->sizes + index);
    }
}

POPCNT static void resolve_popcnt(const graph *g, batch *c) { resolve(g, c); }
static void resolve_plain(const graph *g, batch *c) { resolve(g, c); }

/* A candidate's edge, or NONE if it refers to no block. Whether that is in use is not looked up here: it would cost a miss. */
INLINE uint32_t edge_of(const blocks *b, const batch *c, uint32_t at) {
    uint32_t index = c->indices[at];
    if (index == NONE)
        return NONE;
    uint64_t offset = c->values[at] - c->starts[at];
    if (!offset)
        return index << 1;
    return offset < size_of(b, index) ? index << 1 | 1 : NONE;
}

static void resolve_batch(const graph *g) {
    if (g->popcnt)
        resolve_popcnt(g, g->batch);
    else
        resolve_plain(g, g->batch);
}

/* Turn the candidates into edges of their sources. */
static int record_edges(graph *g) {
    batch *c = g->batch;
    resolve_batch(g);
    while (g->edge_capacity < g->edge_count + BATCH) {
        uint32_t *edges = grown(g->edges, g->edge_capacity, &g->edge_capacity, sizeof *edges);
        if (!edges)
            return NO_MEMORY;
        g->edges = edges;
    }
    uint32_t at = 0;
    for (uint32_t run = 0; run < c->runs; run++) {
        uint32_t source = c->sources[run];
        if (source >= g->group_end && next_group(g, source))
            return NO_MEMORY;
        uint64_t before = g->edge_count;
        for (; at < c->ends[run]; at++) {
            uint32_t edge = edge_of(g->b, c, at);
            if (edge == NONE || edge >> 1 == source)
                continue;
            if (edge & 1 && g->hints && hints_edge(g, g->edge_count, edge >> 1, c->values[at]))
                return NO_MEMORY;
            g->edges[g->edge_count++] = edge;
        }
        g->degrees[source - (g->group_end - GROUP)] += (uint32_t)(g->edge_count - before);
    }
    c->count = c->runs = 0;
    return g->edge_count > MAX_EDGES ? TOO_MANY : DONE;
}

static int record_roots(graph *g) {
    batch *c = g->batch;
    resolve_batch(g);
    for (uint32_t at = 0; at < c->count; at++) {
        uint32_t edge = edge_of(g->b, c, at);
        if (edge == NONE)
            continue;
        set_bit(edge & 1 ? g->root_interiors : g->root_starts, edge >> 1);
        if (edge & 1 && g->hints && hints_root(g, edge >> 1, c->values[at]))
            return NO_MEMORY;
    }
    c->count = 0;
    return DONE;
}

/* Keep those of `count` words (no more than the batch has room for) that lie between the lowest and the highest block. */
INLINE void filter(graph *g, const uint8_t *data, uint32_t count) {
    uint64_t *values = g->batch->values, low = g->low, span = g->span;
    uint32_t kept = g->batch->count;
    for (uint32_t at = 0; at < count; at++) {
        uint64_t value = load(data + (size_t)at * WORD);
        values[kept] = value;
        kept += value - low < span;
    }
    g->batch->count = kept;
}

#define CHUNK 256u  /* words filtered between two looks at the batch's room */
#define AHEAD 2048u /* bytes */

/* The words of one block, or the part of them that the piece has. */
INLINE int scan_words(graph *g, uint32_t source, const uint8_t *data, uint64_t count) {
    batch *c = g->batch;
    while (count) {
        uint32_t some = count < CHUNK ? (uint32_t)count : CHUNK;
        prefetch_ahead(data, AHEAD, some * WORD);
        if (c->count + some >= BATCH) {
            int failed = record_edges(g);
            if (failed)
                return failed;
        }
        uint32_t before = c->count;
        filter(g, data, some);
        if (c->count != before) {
            c->sources[c->runs] = source;
            c->ends[c->runs++] = c->count;
        }
        data += (size_t)some * WORD;
        count -= some;
    }
    return DONE;
}

/* The part of a block that lies in the words [base, end), which stand at `data`. */
INLINE int scan_block(graph *g, uint32_t index, uint64_t start, const uint8_t *data, uint64_t base, uint64_t end) {
    if (g->b->states[index] != IN_USE || start > UINT64_MAX - WORD)
        return DONE;
    uint64_t from = (start + WORD - 1) & -(uint64_t)WORD, to = start + size_of(g->b, index);
    from = from > base ? from : base;
    to = to - 1 < end - 1 ? to : end;
    return from < to ? scan_words(g, index, data + (from - base), (to - from) / WORD) : DONE;
}

API int fl_scan_blocks(graph *g, const piece *p) {
    blocks *b = g->b;
    if (p->address < g->scanned)
        return DISORDER;
    g->scanned = p->length < UINT64_MAX - p->address ? p->address + p->length : UINT64_MAX;
    if (g->hints && hints_facts(g, p))
        return NO_MEMORY;
    uint64_t base, count = piece_words(p, &base);
    if (!count || !b->count)
        return DONE;
    uint64_t end = base + count * WORD; /* 0 where the piece ends the address space */
    const uint8_t *data = p->data + (base - p->address);
    uint32_t index = block_at_or_after(b, base);
    if (index) { /* the block before may reach into the piece */
        int failed = scan_block(g, index - 1, block_address(b, index - 1), data, base, end);
        if (failed)
            return failed;
    }
    const slot *s = NULL;
    for (uint64_t at = slot_base(b, base); index < b->count && at - slot_base(b, base) < count * WORD + (base - slot_base(b, base));) {
        s = s && at & ((UINT64_C(1) << b->table_shift) - 1) ? s + 1 : slot_of(b, at);
        for (uint64_t bits = s ? s->bits : 0; bits; bits &= bits - 1) {
            uint64_t start = lowest_start(b, at, bits);
            if (start < base)
                continue;
            if (start - base >= count * WORD)
                break;
            int failed = scan_block(g, index++, start, data, base, end);
            if (failed)
                return failed;
        }
        at += UINT64_C(1) << b->slot_shift;
        if (!at)
            break;
    }
    return record_edges(g);
}

static int scan_root_words(graph *g, const uint8_t *data, uint64_t count) {
    while (count) {
        uint32_t some = count < CHUNK ? (uint32_t)count : CHUNK;
        if (g->batch->count + some >= BATCH && record_roots(g))
            return NO_MEMORY;
        filter(g, data, some);
        data += (size_t)some * WORD;
        count -= some;
    }
    return record_roots(g);
}

API int fl_scan_roots(graph *g, const piece *p) {
    uint64_t base, count = piece_words(p, &base);
    return scan_root_words(g, count ? p->data + (base - p->address) : NULL, count);
}

API int fl_root_words(graph *g, const uint64_t *values, uint64_t count) {
    return scan_root_words(g, (const uint8_t *)values, count);
}
