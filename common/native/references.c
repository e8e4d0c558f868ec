/* Finds the words that refer to blocks: filters them by range, then looks them up in batches. */
#include "references.h"

#if defined(__x86_64__) && WORD == 8 && !BIG
#define VECTORS
#include <immintrin.h>
#endif

#define AHEAD 2048u /* bytes */

/* Look up the candidates: prefetch their slots, then read them, so that cache misses overlap. */
INLINE void resolve(const blocks *b, const stretch *s, batch *c) {
    for (uint32_t at = 0; at < c->count; at++) {
        c->values[at] = load(s->data + (size_t)c->places[at] * WORD);
        c->slots[at] = slot_of(b, c->values[at]);
        __builtin_prefetch(c->slots[at]);
    }
    for (uint32_t at = 0; at < c->count; at++) {
        uint32_t index = block_before(b, c->slots[at], c->values[at], &c->starts[at]);
        c->indices[at] = index;
        if (index != NONE && c->starts[at] != c->values[at])
            prefetch_size(b, index);
    }
}

/* Return a candidate's edge, or NONE. Does not check whether the block is in use, which would
 * cost a cache miss. */
INLINE uint32_t edge_of(const blocks *b, const batch *c, uint32_t at, uint32_t interior) {
    uint32_t index = c->indices[at];
    if (index == NONE)
        return NONE;
    uint64_t offset = c->values[at] - c->starts[at];
    if (!offset)
        return index << INDEX_SHIFT;
    return offset < size_of(b, index) ? index << INDEX_SHIFT | interior : NONE;
}

/* Return the block in use that contains the word at `address`, and its start, or NONE. Addresses
 * ascend; `recent`: the table of the last address. */
INLINE uint32_t source_of(const blocks *b, uint64_t address, table *recent, uint64_t *at) {
    uint64_t start = 0, key = address >> b->table_shift;
    if (key != recent->key) {
        recent->key = key;
        recent->slots = slot_of(b, key << b->table_shift);
    }
    const slot *s = recent->slots ? &recent->slots[(address >> b->slot_shift) & (TABLE_SLOTS - 1)] : NULL;
    uint32_t index = block_before(b, s, address, &start);
    if (index == NONE || b->states[index] != IN_USE)
        return NONE;
    uint64_t size = size_of(b, index);
    *at = start;
    return size >= WORD && address - start <= size - WORD ? index : NONE;
}

INLINE void look_up_as(const search *how, stretch *s, batch *c) {
    const blocks *b = how->b;
    bool from_blocks = how->from == FROM_BLOCKS;
    table recent = {~(s->address >> b->table_shift), NULL};
    uint32_t count = s->count, insides = s->insides;
    resolve(b, s, c);
    for (uint32_t at = 0; at < c->count; at++) {
        uint32_t edge = edge_of(b, c, at, how->interior), source = c->places[at];
        if (edge == NONE)
            continue;
        if (from_blocks) {
            uint64_t address = s->address + (uint64_t)source * WORD, start = 0;
            source = source_of(b, address, &recent, &start);
            if (source == NONE || edge >> INDEX_SHIFT == source || is_excluded(how->patterns, how->exclusions, source, address - start, edge >> INDEX_SHIFT, c->values[at] - c->starts[at]))
                continue;
        }
        s->found[count++] = (reference){source, edge};
        if (edge & INTERIOR)
            s->interior[insides++] = (inside){c->starts[at], c->values[at]};
    }
    s->count = count;
    s->insides = insides;
    c->count = 0;
}

POPCNT static void look_up_popcnt(const search *how, stretch *s, batch *c) { look_up_as(how, s, c); }
static void look_up_plain(const search *how, stretch *s, batch *c) { look_up_as(how, s, c); }

static void look_up(const search *how, stretch *s, batch *c) {
    if (how->popcnt)
        look_up_popcnt(how, s, c);
    else
        look_up_plain(how, s, c);
}

/* Collect the places of those words, from `first` on, that are between the lowest and the
 * highest block. Without branches, because values are unpredictable. */
static void filter(const search *how, const uint8_t *data, uint32_t first, uint32_t count, batch *c) {
    uint64_t low = how->low, span = how->span;
    uint32_t kept = c->count;
    for (uint32_t at = first; at < first + count; at++) {
        c->places[kept] = at;
        kept += load(data + (size_t)at * WORD) - low < span;
    }
    c->count = kept;
}

#ifdef VECTORS
/* As filter, for four words at a time. A table of 16 cases moves the places of the words that pass
 * to the front. */
AVX2 static void filter_avx2(const search *how, const uint8_t *data, uint32_t first, uint32_t count, batch *c) {
    static const uint32_t fronts[16][4] = {
        {0, 0, 0, 0}, {0, 0, 0, 0}, {1, 0, 0, 0}, {0, 1, 0, 0}, {2, 0, 0, 0}, {0, 2, 0, 0}, {1, 2, 0, 0}, {0, 1, 2, 0},
        {3, 0, 0, 0}, {0, 3, 0, 0}, {1, 3, 0, 0}, {0, 1, 3, 0}, {2, 3, 0, 0}, {0, 2, 3, 0}, {1, 2, 3, 0}, {0, 1, 2, 3},
    };
    const __m256i low = _mm256_set1_epi64x((int64_t)how->low), sign = _mm256_set1_epi64x(INT64_MIN);
    const __m256i span = _mm256_xor_si256(_mm256_set1_epi64x((int64_t)how->span), sign);
    uint32_t *places = c->places, kept = c->count, at = first;
    for (; at + 4 <= first + count; at += 4) {
        __m256i values = _mm256_loadu_si256((const __m256i *)(const void *)(data + (size_t)at * WORD));
        /* AVX2 has no unsigned comparison */
        __m256i above = _mm256_xor_si256(_mm256_sub_epi64(values, low), sign);
        unsigned passed = (unsigned)_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(span, above)));
        __m128i front = _mm_add_epi32(_mm_loadu_si128((const __m128i *)(const void *)fronts[passed]), _mm_set1_epi32((int)at));
        _mm_storeu_si128((__m128i *)(void *)(places + kept), front);
        kept += (uint32_t)__builtin_popcount(passed);
    }
    c->count = kept;
    filter(how, data, at, first + count - at, c);
}
#else
#define filter_avx2 filter
#endif

void filter_words(const search *how, const uint8_t *data, uint32_t first, uint32_t count, batch *c) {
    if (how->avx2)
        filter_avx2(how, data, first, count, c);
    else
        filter(how, data, first, count, c);
}

search search_of(const graph *g, origin from) {
    return (search){g->b, g->patterns, g->exclusions, g->low, g->span, from, g->counts_interiors ? 0 : INTERIOR, has_popcnt(), has_avx2()};
}

void find_references(const search *how, stretch *s, batch *candidates) {
    s->count = s->insides = candidates->count = 0;
    for (uint32_t first = 0; first < s->words; first += SOME) {
        uint32_t some = s->words - first < SOME ? s->words - first : SOME;
        prefetch_ahead(s->data + (size_t)first * WORD, AHEAD, SOME * WORD);
        if (candidates->count + some > BATCH)
            look_up(how, s, candidates);
        filter_words(how, s->data, first, some, candidates);
    }
    look_up(how, s, candidates);
}
