/* Finds where the chunks of GSlice's slabs begin: see ../allocators/gslice/engine.py. */
#include "references.h"

#include <stdlib.h>

#define UNIT (2 * WORD)
#define STEP (1u << 20) /* words */
#define GRANULE 7 /* bits: slabs of unknown shift are at multiples of 128 bytes */
#define NEAR_SLABS 256u /* slabs with at most this many bytes between them are searched together */
#define GRAIN 10 /* addresses that differ only in these low bits share one bit of `undecided` */
#define GRAINS (1u << 17) /* number of bits of `undecided`, which fits in the L1 cache */

typedef struct run {
    uint64_t start, stride, size, count, bit, states; /* ../engine/terms.py: RUN */
} run;

/* A class of GObject: the first word of its instances, the bytes of private data before an
 * instance, and the bytes of private data and instance together. */
typedef struct class {
    uint64_t word, private, bytes;
} class;

/* A slab with several possible shifts. `first`: the index of the slab's first count. The slab has
 * one count for each possible shift. */
typedef struct {
    uint32_t chunk, bytes, options, first;
} voter;

/* `slabs`: a directory of the slabs with several possible shifts. `numbers`: the index of
 * each of these among all slabs. `undecided`: a bit for every 1 << GRAIN bytes of address space,
 * modulo GRAINS, which is set if a slab there still has several possible shifts. Most slabs soon
 * have only one, so that most pointers need no look-up in `slabs`. */
typedef struct shifts {
    run *runs;
    uint64_t *options;
    blocks *slabs;
    LIST(voter) voters;
    LIST(uint32_t) numbers;
    uint32_t *counts;
    uint64_t first, end;
    uint64_t undecided[GRAINS / 64];
} shifts;

API void fl_shifts_free(shifts *s) {
    if (s->slabs)
        fl_blocks_free(s->slabs);
    FREE_ALL(s->voters.items, s->numbers.items, s->counts, s);
}

static void mark_undecided(shifts *s, uint64_t start, uint64_t bytes) {
    for (uint64_t grain = start >> GRAIN; grain <= (start + bytes) >> GRAIN; grain++)
        s->undecided[grain % GRAINS / 64] |= UINT64_C(1) << grain % 64;
}

INLINE bool is_undecided(const shifts *s, uint64_t address) {
    uint64_t grain = address >> GRAIN;
    return s->undecided[grain % GRAINS / 64] >> grain % 64 & 1;
}

static int add_slabs(shifts *s, uint64_t number) {
    uint32_t counts = 0;
    for (uint64_t at = 0; at < number; at++) {
        const run *r = &s->runs[at];
        if (s->options[at] <= 1)
            continue;
        voter one = {(uint32_t)r->size, (uint32_t)(r->count * r->size + s->options[at] * UNIT), (uint32_t)s->options[at], counts};
        if (block_append(s->slabs, r->start, one.bytes, IN_USE) || PUSH(s->voters, one) || PUSH(s->numbers, (uint32_t)at))
            return NO_MEMORY;
        s->first = counts ? s->first : r->start;
        s->end = r->start + one.bytes;
        mark_undecided(s, r->start, one.bytes);
        counts += one.options;
    }
    fl_seal(s->slabs);
    s->counts = calloc(counts + 1u, sizeof *s->counts);
    return s->counts ? DONE : NO_MEMORY;
}

/* Begin to count evidence. `runs` and `options` are outputs of fl_slice_slabs; fl_shifts_elect
 * changes them. */
API shifts *fl_shifts_new(run *runs, uint64_t *options, uint64_t number) {
    shifts *s = calloc(1, sizeof *s);
    if (s) {
        s->runs = runs;
        s->options = options;
        s->slabs = fl_blocks_new(GRANULE, 1);
    }
    if (!s || !s->slabs || add_slabs(s, number)) {
        if (s)
            fl_shifts_free(s);
        return NULL;
    }
    return s;
}

/* Count evidence that a chunk begins at this offset in slab number `index`, and that `least` bytes
 * of it are used. */
INLINE void count(shifts *s, uint32_t index, uint64_t offset, uint64_t least) {
    const voter *v = &s->voters.items[index];
    if (offset >= v->bytes || least > v->chunk || offset + least > v->bytes)
        return;
    uint32_t shift = (uint32_t)offset % v->chunk / UNIT;
    if (shift < v->options)
        s->counts[v->first + shift]++;
}

INLINE void count_at(shifts *s, uint64_t address, uint64_t least) {
    uint64_t start = 0;
    uint32_t index = address % UNIT ? NONE : block_before(s->slabs, slot_of(s->slabs, address), address, &start);
    if (index != NONE)
        count(s, index, address - start, least);
}

/* Count the values of a batch. Each step prefetches the memory that the next step reads. */
INLINE void count_as(shifts *s, batch *c) {
    uint32_t left = 0;
    for (uint32_t at = 0; at < c->count; at++) {
        c->values[left] = c->values[at];
        left += is_undecided(s, c->values[at]);
    }
    c->count = left;
    for (uint32_t at = 0; at < c->count; at++) {
        c->slots[at] = c->values[at] % UNIT ? NULL : slot_of(s->slabs, c->values[at]);
        __builtin_prefetch(c->slots[at]);
    }
    for (uint32_t at = 0; at < c->count; at++) {
        c->indices[at] = c->values[at] % UNIT ? NONE : block_before(s->slabs, c->slots[at], c->values[at], &c->starts[at]);
        if (c->indices[at] != NONE)
            __builtin_prefetch(&s->voters.items[c->indices[at]]);
    }
    for (uint32_t at = 0; at < c->count; at++)
        if (c->indices[at] != NONE)
            count(s, c->indices[at], c->values[at] - c->starts[at], 0);
    c->count = 0;
}

POPCNT static void count_popcnt(shifts *s, batch *c) { count_as(s, c); }
static void count_plain(shifts *s, batch *c) { count_as(s, c); }

static void count_batch(shifts *s, batch *c) { (has_popcnt() ? count_popcnt : count_plain)(s, c); }

API void fl_shifts_chunks(shifts *s, const uint64_t *addresses, uint64_t number) {
    batch c;
    for (uint64_t at = 0; at < number; at += BATCH) {
        c.count = number - at < BATCH ? (uint32_t)(number - at) : BATCH;
        memcpy(c.values, addresses + at, c.count * sizeof *addresses);
        count_batch(s, &c);
    }
}

/* Classes of GObject, ascending by word. */
typedef struct {
    const class *all;
    uint64_t count;
} classes;

/* Count for which shifts the words of `data` at the places in a batch are evidence. `address`: the
 * address of `data`. */
typedef void count_places(shifts *s, const classes *of, const uint8_t *data, uint64_t address, batch *c);

static void count_pointers(shifts *s, const classes *of, const uint8_t *data, uint64_t address, batch *c) {
    (void)of, (void)address;
    for (uint32_t at = 0; at < c->count; at++)
        c->values[at] = load(data + (size_t)c->places[at] * WORD);
    count_batch(s, c);
}

static void count_instances(shifts *s, const classes *of, const uint8_t *data, uint64_t address, batch *c) {
    for (uint32_t at = 0; at < c->count; at++) {
        uint64_t place = (uint64_t)c->places[at] * WORD, value = load(data + place), found = 0;
        BISECT(found, of->count, middle, of->all[middle].word < value)
        if (of->all[found].word == value)
            count_at(s, address + place - of->all[found].private, of->all[found].bytes);
    }
    c->count = 0;
}

/* Pass the words of a piece whose values are in [low, low + span) to `take`. */
static void search_words(shifts *s, const piece *p, uint64_t low, uint64_t span, const classes *of, count_places *take) {
    const search how = {.low = low, .span = span, .avx2 = has_avx2()};
    uint64_t address, number = piece_words(p, &address);
    const uint8_t *data = p->data + (address - p->address);
    batch c;
    c.count = 0;
    for (uint64_t at = 0; at < number; at += STEP, data += (size_t)STEP * WORD, address += (uint64_t)STEP * WORD) {
        uint32_t some = number - at < STEP ? (uint32_t)(number - at) : STEP;
        for (uint32_t first = 0; first < some; first += SOME) {
            prefetch_ahead(data + (size_t)first * WORD, 2048, SOME * WORD);
            if (c.count + SOME > BATCH)
                take(s, of, data, address, &c);
            filter_words(&how, data, first, some - first < SOME ? some - first : SOME, &c);
        }
        take(s, of, data, address, &c);
    }
}

/* Count the words of a piece that are addresses in slabs. */
API void fl_shifts_pointers(shifts *s, const piece *p) { search_words(s, p, s->first, s->end - s->first, NULL, count_pointers); }

static void search_instances(shifts *s, const piece *p, const classes *of, uint64_t start, uint64_t end) {
    uint64_t low = start > p->address ? start - p->address : 0, high = end - p->address < p->length ? end - p->address : p->length;
    const piece part = {p->address + low, p->data + low, high - low};
    search_words(s, &part, of->all[0].word, of->all[of->count - 1].word - of->all[0].word + 1, of, count_instances);
}

/* Count the words of the undecided slabs in a piece that are equal to the word of a class. The
 * classes ascend by word. Other memory is not read: often, most slabs are decided. */
API void fl_shifts_instances(shifts *s, const piece *p, const class *all, uint64_t count) {
    const classes of = {all, count};
    uint64_t start = 0, first = 0, end = 0; /* [first, end): slabs that are not yet searched */
    uint32_t index = count ? block_reaching(s->slabs, p->address, &start) : NONE;
    while (index < s->slabs->count && start < p->address + p->length) {
        const voter *v = &s->voters.items[index];
        if (v->options && (!end || start > end + NEAR_SLABS)) {
            if (end)
                search_instances(s, p, &of, first, end);
            first = start;
        }
        end = v->options ? start + v->bytes : end;
        if (!next_block(s->slabs, &index, &start))
            break;
    }
    if (end)
        search_instances(s, p, &of, first, end);
}

static bool is_zero(const uint8_t *data, uint64_t bytes) {
    uint64_t any = 0;
    for (uint64_t at = 0; at < bytes; at += WORD)
        any |= load(data + at);
    return !any;
}

/* Count evidence for the undecided slabs that begin in a piece. A shift fits if the bytes that it
 * leaves unused, before the first chunk and after the last one, are zero as in new memory. It
 * counts once, and once for each chunk whose first word is not zero: most structures begin with
 * an address or a number. */
API void fl_shifts_edges(shifts *s, const piece *p) {
    uint64_t start = 0;
    uint32_t index = block_from(s->slabs, p->address, &start);
    while (index < s->slabs->count && start < p->address + p->length) {
        const voter *v = &s->voters.items[index];
        const uint8_t *data = bytes_in(p, start, v->bytes);
        uint64_t used = v->bytes - (uint64_t)v->options * UNIT;
        for (uint32_t shift = 0; data && shift < v->options; shift++) {
            uint64_t first = (uint64_t)shift * UNIT, last = first + used;
            if (!is_zero(data, first) || !is_zero(data + last, v->bytes - last))
                continue;
            s->counts[v->first + shift]++;
            for (uint64_t at = first; at < last; at += v->chunk)
                s->counts[v->first + shift] += load(data + at) != 0;
        }
        if (!next_block(s->slabs, &index, &start))
            break;
    }
}

/* Give each slab with evidence the shift that has the most evidence; among equal shifts, the
 * lowest. Returns the number of slabs without evidence. */
API uint64_t fl_shifts_elect(shifts *s) {
    uint64_t left = 0;
    memset(s->undecided, 0, sizeof s->undecided);
    for (uint64_t at = 0; at < s->voters.count; at++) {
        voter *v = &s->voters.items[at];
        const uint32_t *counts = s->counts + v->first;
        uint32_t best = 0, number = s->numbers.items[at];
        for (uint32_t shift = 1; shift < v->options; shift++)
            best = counts[shift] > counts[best] ? shift : best;
        if (v->options && counts[best]) {
            s->runs[number].start += best * UNIT;
            s->options[number] = 1;
            v->options = 0; /* decided: no more evidence is counted for this slab */
        }
        if (v->options)
            mark_undecided(s, s->runs[number].start, v->bytes);
        left += v->options != 0;
    }
    return left;
}
