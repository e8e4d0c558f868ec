/* Begins a search for disguised pointers: finds the address ranges with leaked blocks, and for each
 * form the intervals of words that may be pointers to these ranges. */
#include "disguises.h"

#include <stdlib.h>

/* Add an interval of aligned words. */
static void add_interval(disguises *d, uint64_t low, uint64_t high, uint32_t number, uint32_t segment) {
    if (low > high)
        return;
    d->intervals[d->interval_count++] = (interval){low, high - low, number, segment};
    for (uint64_t upper = low >> UPPER_SHIFT; upper <= high >> UPPER_SHIFT; upper++)
        set_bit(d->upper_bits, (uint32_t)upper);
}

/* Add an interval of aligned numbers of 32 bits. */
static void add_narrow(disguises *d, uint64_t low, uint64_t high, uint32_t number, uint32_t segment) {
    if (low <= high)
        d->narrow[d->narrow_count++] = (interval){low, high - low, number, segment};
}

/* All addresses of a segment have the same upper bits, and so have their mangled forms. The
 * rotation moves bit 0 of an address to bit `shift`; the bits below `shift` may have any value. */
static void add_mangled(disguises *d, uint32_t number, uint32_t segment) {
    const form *f = &d->forms[number];
    uint64_t start = d->segments[segment].start, differing = start ^ (d->segments[segment].end - 1), varying = 0;
    while (varying < differing)
        varying = varying << 1 | 1;
    uint64_t low = ((start ^ f->base) & ~varying) << f->shift;
    add_interval(d, low, low | varying << f->shift | ((UINT64_C(1) << f->shift) - 1), number, segment);
}

static void add_form(disguises *d, uint32_t number, uint32_t segment) {
    const form *f = &d->forms[number];
    uint64_t low = d->segments[segment].start, high = d->segments[segment].end - 1, shift = f->shift;
    d->numbers[f->kind] = number;
    if (f->kind == MANGLED)
        add_mangled(d, number, segment);
    else if (f->kind == SHIFTED_LEFT && high <= HIGHEST >> shift)
        add_interval(d, low << shift, high << shift | ((UINT64_C(1) << shift) - 1), number, segment);
    else if (f->kind == SHIFTED_RIGHT)
        add_interval(d, low >> shift, high >> shift, number, segment);
    else if ((f->kind == COMPRESSED || f->kind == HALVES) && high > f->base) {
        uint64_t first = low > f->base ? (low - f->base) >> shift : 0, last = (high - f->base) >> shift;
        add_narrow(d, first ? first : 1, last < UINT32_MAX ? last : UINT32_MAX, number, segment);
    }
}

/* Begin a search in a classified graph. `ranges`: sorted, disjoint ranges that contain all leaked
 * blocks. Each range becomes a segment, from the first leaked block in it to the last. Return NULL
 * if out of memory. */
API disguises *fl_disguises_new(graph *g, const range *ranges, uint32_t range_count, const form *forms, uint32_t form_count, uint64_t most) {
    disguises *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    d->g = g;
    d->most = most;
    d->tries = most ? NULL : calloc(MOST_FORMS, sizeof *d->tries);
    if (!most && !d->tries) {
        free(d);
        return NULL;
    }
    memset(d->numbers, 0xff, sizeof d->numbers); /* NONE */
    const lost *l = g->lost;
    uint32_t at = 0;
    for (uint32_t number = 0; number < range_count && d->segment_count < MOST_SEGMENTS; number++) {
        BISECT(at, l->count, middle, block_address(g->b, l->indices[middle]) < ranges[number].start)
        uint32_t last = at;
        BISECT(last, l->count, middle, block_address(g->b, l->indices[middle]) < ranges[number].end)
        if (last == at)
            continue;
        uint32_t end = l->indices[last - 1];
        range *s = &d->segments[d->segment_count];
        *s = (range){block_address(g->b, l->indices[at]), block_address(g->b, end) + size_of(g->b, end) + 1};
        d->segment_count++;
    }
    uint64_t highest = d->segment_count ? d->segments[d->segment_count - 1].end - 1 : 0;
    d->mask = WORD == 4 ? HIGHEST : highest >> 47 == 0 ? (UINT64_C(1) << 47) - 1 : highest >> 48 == 0 ? (UINT64_C(1) << 48) - 1 : HIGHEST;
    for (uint32_t number = 0; number < d->segment_count; number++) {
        uint64_t low = d->segments[number].start >> HIGH_SHIFT, high = (d->segments[number].end - 1) >> HIGH_SHIFT;
        d->high_low[number] = (uint16_t)low;
        d->high_span[number] = (uint16_t)(high - low);
    }
    d->form_count = form_count < MOST_FORMS ? form_count : MOST_FORMS;
    memcpy(d->forms, forms, d->form_count * sizeof *forms);
    for (uint32_t number = 0; number < d->form_count; number++)
        for (uint32_t segment = 0; segment < d->segment_count; segment++)
            add_form(d, number, segment);
    return d;
}
