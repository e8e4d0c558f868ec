/* Scanning memory for words that refer to blocks. */
#include "dominators.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <stdlib.h>

#define STRETCH (1u << 20) /* words with places relative to one address */
#define SOME 256u          /* words filtered between two checks of the batch's capacity */
#define AHEAD 2048u        /* bytes */

typedef enum { EDGES, ROOTS, DOMINATOR_ROOTS } purpose;

API void fl_graph_free(graph *g) {
    heuristics_free(g->heuristics);
    interiors_free(&g->inners);
    lost_free(g->lost);
    FREE_ALL(g->groups, g->wides.items, g->edges, g->root_starts, g->root_interiors, g->interiors, g->batch, g->queue.items, g->promoted, g);
}

/* `kinds`: a zeroed byte a block; it and the blocks must outlive the graph. */
API graph *fl_graph_new(blocks *b, uint8_t *kinds) {
    graph *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    size_t groups = (size_t)b->count / GROUP + 1, bits = (size_t)b->count / 64 + 1;
    g->b = b;
    g->count = b->count;
    g->kinds = kinds;
    size_t groups_size = (groups * sizeof *g->groups + 63) & ~(size_t)63;
    g->groups = groups_size < LARGE_ARRAY ? aligned_alloc(64, groups_size) : alloc_large(groups_size);
    g->group_end = GROUP;
    g->root_starts = calloc(bits, sizeof *g->root_starts);
    g->root_interiors = calloc(bits, sizeof *g->root_interiors);
    g->batch = calloc(1, sizeof *g->batch);
    g->popcnt = has_popcnt();
    g->avx2 = has_avx2();
    g->edge_capacity = 2 * (uint64_t)b->count + BATCH; /* memory only for those used */
    if (!(g->edges = alloc_large(g->edge_capacity * sizeof *g->edges))) {
        g->edge_capacity = 0; /* address space is limited: as much as they will need */
        (void)grow(&g->edges, 0, &g->edge_capacity, sizeof *g->edges);
    }
    g->edge_count = 1;
    g->last_source = NONE;
    if (b->count) {
        g->low = b->lowest;
        g->span = b->floor - b->lowest;
    }
    if (!g->edges || !g->groups || !g->root_starts || !g->root_interiors || !g->batch) {
        fl_graph_free(g);
        return NULL;
    }
    memset(g->groups, 0, groups * sizeof *g->groups);
    for (uint32_t index = 0; index < b->count; index++)
        if (b->states[index] != IN_USE)
            *node_of(g, index) = OFF_LIMITS << KIND_SHIFT;
    g->group_base = g->edge_count;
    g->edges[0] = 0;
    return g;
}

/* Store the degrees of a complete group; the groups up to that of `index` start where it ends. */
static int next_group(graph *g, uint32_t index) {
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
    DROP(g->batch);
    return DONE;
}

/* Look up the candidates: prefetch their slots, then read them, so that cache misses overlap. */
INLINE void resolve(const graph *g, batch *c) {
    const blocks *b = g->b;
    for (uint32_t at = 0; at < c->count; at++) {
        c->values[at] = load(c->data + (size_t)c->places[at] * WORD);
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

/* A candidate's edge, or NONE. Whether to a block in use is not checked: it would cost a miss. */
INLINE uint32_t edge_of(const blocks *b, const batch *c, uint32_t at) {
    uint32_t index = c->indices[at];
    if (index == NONE)
        return NONE;
    uint64_t offset = c->values[at] - c->starts[at];
    if (!offset)
        return index << INDEX_SHIFT;
    return offset < size_of(b, index) ? index << INDEX_SHIFT | INTERIOR : NONE;
}

/* The block in use with a candidate, or NONE. Candidates ascend; `recent` is the last table. */
INLINE uint32_t source_of(const blocks *b, const batch *c, uint32_t at, table *recent) {
    uint64_t address = c->address + (uint64_t)c->places[at] * WORD, start = 0, key = address >> b->table_shift;
    if (key != recent->key) {
        recent->key = key;
        recent->slots = slot_of(b, key << b->table_shift);
    }
    const slot *s = recent->slots ? &recent->slots[(address >> b->slot_shift) & (TABLE_SLOTS - 1)] : NULL;
    uint32_t index = block_before(b, s, address, &start);
    if (index == NONE || b->states[index] != IN_USE)
        return NONE;
    uint64_t size = size_of(b, index);
    return size >= WORD && address - start <= size - WORD ? index : NONE;
}

/* Record an interior reference; the caller reserved space. */
INLINE void note(graph *g, uint32_t source, uint32_t place, uint64_t offset) {
    g->inners.items[g->inners.count++] = (inner){source, place, offset < UINT32_MAX ? (uint32_t)offset : UINT32_MAX};
}

/* Call before scanning. `links`: for each block the offset where two list links of a garbage
 * collector end, which are no references; 0: none; NO_POINTERS (255): no word is one. It must
 * outlive the scan. */
API void fl_graph_leave_out(graph *g, const uint8_t *links) { g->links = links; }

INLINE bool is_link(const graph *g, uint32_t source, uint64_t address) {
    uint64_t end = g->links ? g->links[source] : 0;
    return end == 255 || (end && address - block_address(g->b, source) - (end - 2 * WORD) < 2 * WORD);
}

INLINE int record_edges(graph *g) {
    batch *c = g->batch;
    resolve(g, c);
    if (g->noting && interiors_reserve(&g->inners, BATCH))
        return NO_MEMORY;
    while (g->edge_capacity < g->edge_count + BATCH)
        if (!grow(&g->edges, g->edge_capacity, &g->edge_capacity, sizeof *g->edges))
            return NO_MEMORY;
    uint32_t *edges = g->edges;
    uint64_t made = g->edge_count;
    uint32_t last = g->last_source;
    table recent = {~(c->address >> g->b->table_shift), NULL};
    for (uint32_t at = 0; at < c->count; at++) {
        uint32_t edge = edge_of(g->b, c, at), source = edge == NONE ? NONE : source_of(g->b, c, at, &recent);
        if (source == NONE || edge >> INDEX_SHIFT == source || is_link(g, source, c->address + (uint64_t)c->places[at] * WORD))
            continue;
        edges[made - 1] |= source != last ? LAST : 0;
        last = source;
        if (source >= g->group_end) {
            g->edge_count = made;
            if (next_group(g, source))
                return NO_MEMORY;
        }
        if (edge & INTERIOR && g->heuristics && heuristics_edge(g, made, c->starts[at], c->values[at], &edge))
            return NO_MEMORY;
        if (edge & INTERIOR && g->noting)
            note(g, source, (uint32_t)made, c->values[at] - c->starts[at]);
        edges[made++] = edge;
        g->degrees[source - (g->group_end - GROUP)]++;
    }
    g->edge_count = made;
    g->last_source = last;
    return made > MAX_EDGES ? TOO_MANY_EDGES : DONE;
}

INLINE int record_roots(graph *g) {
    batch *c = g->batch;
    resolve(g, c);
    if (g->noting && interiors_reserve(&g->inners, BATCH))
        return NO_MEMORY;
    for (uint32_t at = 0; at < c->count; at++) {
        uint32_t edge = edge_of(g->b, c, at);
        if (edge == NONE)
            continue;
        if (edge & INTERIOR && g->heuristics && heuristics_root(g, c->values[at], &edge))
            return NO_MEMORY;
        if (edge & INTERIOR && g->noting)
            note(g, NONE, edge >> INDEX_SHIFT, c->values[at] - c->starts[at]);
        set_bit(edge & INTERIOR ? g->root_interiors : g->root_starts, edge >> INDEX_SHIFT);
    }
    g->seed = 0; /* where marking has begun, it looks at the bits again */
    return DONE;
}

INLINE int record_root_edges(graph *g, dominators *d) {
    batch *c = g->batch;
    resolve(g, c);
    for (uint32_t at = 0; at < c->count; at++) {
        uint32_t edge = edge_of(g->b, c, at);
        if (edge != NONE)
            hold(d, edge >> INDEX_SHIFT, root_at(d, c->address + (uint64_t)c->places[at] * WORD));
    }
    return DONE;
}

INLINE int record_as(graph *g, purpose why, dominators *d) {
    return why == EDGES ? record_edges(g) : why == ROOTS ? record_roots(g) : record_root_edges(g, d);
}

POPCNT static int record_popcnt(graph *g, purpose why, dominators *d) { return record_as(g, why, d); }
static int record_plain(graph *g, purpose why, dominators *d) { return record_as(g, why, d); }

static int record(graph *g, purpose why, dominators *d) {
    int failed = g->popcnt ? record_popcnt(g, why, d) : record_plain(g, why, d);
    g->batch->count = 0;
    return failed;
}

/* Collect the places of those words, from `first` on, that are between the lowest and the highest
 * block. Branch-free, as values are unpredictable. */
static void filter(graph *g, const uint8_t *data, uint32_t first, uint32_t count) {
    uint64_t low = g->low, span = g->span;
    uint32_t *places = g->batch->places, kept = g->batch->count;
    for (uint32_t at = first; at < first + count; at++) {
        places[kept] = at;
        kept += load(data + (size_t)at * WORD) - low < span;
    }
    g->batch->count = kept;
}

#if defined(__x86_64__)
/* The same, four words at a time: a table of 16 cases moves the places that pass to the front. */
AVX2 static void filter_avx2(graph *g, const uint8_t *data, uint32_t first, uint32_t count) {
    static const uint32_t fronts[16][4] = {
        {0, 0, 0, 0}, {0, 0, 0, 0}, {1, 0, 0, 0}, {0, 1, 0, 0}, {2, 0, 0, 0}, {0, 2, 0, 0}, {1, 2, 0, 0}, {0, 1, 2, 0},
        {3, 0, 0, 0}, {0, 3, 0, 0}, {1, 3, 0, 0}, {0, 1, 3, 0}, {2, 3, 0, 0}, {0, 2, 3, 0}, {1, 2, 3, 0}, {0, 1, 2, 3},
    };
    const __m256i low = _mm256_set1_epi64x((int64_t)g->low), sign = _mm256_set1_epi64x(INT64_MIN);
    const __m256i span = _mm256_xor_si256(_mm256_set1_epi64x((int64_t)g->span), sign);
    uint32_t *places = g->batch->places, kept = g->batch->count, at = first;
    for (; at + 4 <= first + count; at += 4) {
        __m256i values = _mm256_loadu_si256((const __m256i *)(const void *)(data + (size_t)at * WORD));
        /* AVX2 has no unsigned comparison */
        __m256i above = _mm256_xor_si256(_mm256_sub_epi64(values, low), sign);
        unsigned passed = (unsigned)_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(span, above)));
        __m128i front = _mm_add_epi32(_mm_loadu_si128((const __m128i *)(const void *)fronts[passed]), _mm_set1_epi32((int)at));
        _mm_storeu_si128((__m128i *)(void *)(places + kept), front);
        kept += (uint32_t)__builtin_popcount(passed);
    }
    g->batch->count = kept;
    filter(g, data, at, first + count - at);
}
#else
static void filter_avx2(graph *g, const uint8_t *data, uint32_t first, uint32_t count) { filter(g, data, first, count); }
#endif

static int scan_words(graph *g, const uint8_t *data, uint64_t address, uint64_t count, purpose why, dominators *d) {
    batch *c = g->batch;
    while (count) {
        uint32_t stretch = count < STRETCH ? (uint32_t)count : STRETCH;
        c->data = data;
        c->address = address;
        for (uint32_t first = 0; first < stretch; first += SOME) {
            uint32_t some = stretch - first < SOME ? stretch - first : SOME;
            prefetch_ahead(data + (size_t)first * WORD, AHEAD, SOME * WORD);
            if (c->count + some >= BATCH) {
                int failed = record(g, why, d);
                if (failed)
                    return failed;
            }
            if (g->avx2)
                filter_avx2(g, data, first, some);
            else
                filter(g, data, first, some);
        }
        int failed = record(g, why, d);
        if (failed)
            return failed;
        data += (size_t)stretch * WORD;
        address += (uint64_t)stretch * WORD;
        count -= stretch;
    }
    return DONE;
}

API int fl_scan_blocks(graph *g, const piece *p) {
    if (p->address < g->scanned)
        return DISORDER;
    g->scanned = p->length < UINT64_MAX - p->address ? p->address + p->length : UINT64_MAX;
    if (g->heuristics && heuristics_read_facts(g, p))
        return NO_MEMORY;
    uint64_t base, count = piece_words(p, &base);
    return scan_words(g, count ? p->data + (base - p->address) : NULL, base, count, EDGES, NULL);
}

/* Scan roots of the graph or of a dominator tree. Once the graph is settled its batch is freed. */
static int scan_root_words(graph *g, const uint8_t *data, uint64_t address, uint64_t count, purpose why, dominators *d) {
    if (!g->phase)
        return scan_words(g, data, address, count, why, d);
    if (!(g->batch = calloc(1, sizeof *g->batch)))
        return NO_MEMORY;
    int failed = scan_words(g, data, address, count, why, d);
    DROP(g->batch);
    return failed;
}

API int fl_scan_roots(graph *g, const piece *p) {
    uint64_t base, count = piece_words(p, &base);
    return scan_root_words(g, count ? p->data + (base - p->address) : NULL, base, count, ROOTS, NULL);
}

API int fl_root_words(graph *g, const uint64_t *values, uint64_t count) {
    return scan_root_words(g, (const uint8_t *)values, 0, count, ROOTS, NULL);
}

API int fl_dominators_scan(dominators *d, const piece *p, const uint64_t *bounds, const uint32_t *owners, uint64_t bound_count) {
    uint64_t base, count = piece_words(p, &base);
    d->bounds = bounds;
    d->owners = owners;
    d->bound_count = bound_count;
    d->bound = 0;
    d->otherwise = NO_ROOT;
    return scan_root_words(d->g, count ? p->data + (base - p->address) : NULL, base, count, DOMINATOR_ROOTS, d);
}

API int fl_dominators_words(dominators *d, const uint64_t *values, uint64_t count, uint32_t root) {
    d->bound_count = d->bound = 0;
    d->otherwise = root;
    return scan_root_words(d->g, (const uint8_t *)values, 0, count, DOMINATOR_ROOTS, d);
}
