/* Runs of equal blocks, as slab allocators divide memory; blocks copied or counted by size. */
#include "blocks.h"

#include <stdlib.h>

typedef struct run {
    uint64_t start, stride, size, count, bit, states; /* ../engine/terms.py: RUN */
} run;

INLINE bool bit_of(const uint8_t *bits, uint64_t at) { return bits[at >> 3] >> (at & 7) & 1; }

/* Check that runs ascend from above `floor`, lie on granules below 2^64, and have valid states
 * and bits. */
static int check_runs(const blocks *b, const run *runs, uint64_t count, uint64_t bits, uint64_t *total) {
    uint64_t floor = b->floor, off = (UINT64_C(1) << b->granule_shift) - 1;
    *total = 0;
    for (const run *r = runs; r < runs + count; r++) {
        uint64_t least = r->size ? r->size : 1, reach;
        if (!r->count)
            continue;
        if (r->start & off || r->stride & off || r->start < floor || (r->count > 1 && least > r->stride) || r->count > MAX_BLOCKS)
            return DISORDER;
        if (__builtin_mul_overflow(r->count - 1, r->stride, &reach) || __builtin_add_overflow(reach, least, &reach) ||
            __builtin_add_overflow(r->start, reach, &floor) || floor > HIGHEST)
            return DISORDER;
        if ((r->states & 255) > METADATA || r->states >> 8 > METADATA)
            return DISORDER;
        if ((r->states & 255) != r->states >> 8 && (r->bit > bits || r->count > bits - r->bit))
            return DISORDER;
        *total += r->count;
    }
    return DONE;
}

INLINE int append_run(blocks *b, const run *r, const uint8_t *bits) {
    uint8_t clear = (uint8_t)r->states, set = (uint8_t)(r->states >> 8);
    uint64_t start = r->start;
    int failed = DONE;
    for (uint64_t at = 0; at < r->count && !failed; at++, start += r->stride)
        failed = block_append(b, start, r->size, clear != set && bit_of(bits, r->bit + at) ? set : clear);
    return failed;
}

/* Append runs: all of them, or none, unless memory runs out. */
API int fl_append_runs(blocks *b, const run *runs, uint64_t count, const uint8_t *bits, uint64_t bit_count) {
    uint64_t total;
    int failed = check_runs(b, runs, count, bit_count, &total);
    if (failed)
        return failed;
    if (total > MAX_BLOCKS - b->count)
        return TOO_MANY_BLOCKS;
    b->pending = false;
    for (const run *r = runs; r < runs + count && !failed; r++)
        failed = append_run(b, r, bits);
    return failed;
}

API int fl_append_blocks(blocks *b, const blocks *other, uint32_t first, uint32_t last) {
    uint64_t off = (UINT64_C(1) << b->granule_shift) - 1;
    uint64_t start = first < last ? block_address(other, first) : 0;
    if (first < last && start < b->floor)
        return DISORDER;
    b->pending = false;
    for (uint32_t index = first; index < last; index++) {
        int failed = start & off ? DISORDER : block_append(b, start, size_of(other, index), other->states[index]);
        if (failed)
            return failed;
        if (index + 1 < last)
            start = start_after(other, start, index + 1);
    }
    return DONE;
}

/* Check that slabs ascend, and that each run is in one of them. */
static bool runs_in_slabs(const range *slabs, uint64_t count, const run *runs, uint64_t run_count) {
    const run *r = runs, *end = runs + run_count;
    uint64_t floor = 0;
    for (const range *s = slabs; s < slabs + count; s++) {
        if (s->start < floor || s->end <= s->start)
            return false;
        floor = s->end;
        for (; r < end && r->start < s->end; r++)
            if (r->start < s->start || (r->count && (r->count - 1) * r->stride + r->size > s->end - r->start))
                return false;
    }
    return r == end;
}

/* Append the blocks [first, last) of `outer`. Replace each block in use that contains slabs by the
 * runs of these slabs. `left_out`: the numbers of slabs that no single block contains. */
API int fl_append_nested(blocks *b, const blocks *outer, uint32_t first, uint32_t last, const range *slabs, uint64_t count,
                         const run *runs, uint64_t run_count, words *left_out) {
    uint64_t off = (UINT64_C(1) << b->granule_shift) - 1, start = first < last ? block_address(outer, first) : 0, total;
    const run *r = runs, *end = runs + run_count;
    bool opened = false; /* whether a slab is in the block `first` */
    if (check_runs(b, runs, run_count, 0, &total) || !runs_in_slabs(slabs, count, runs, run_count) || (first < last && start < b->floor))
        return DISORDER;
    if (total > MAX_BLOCKS - b->count)
        return TOO_MANY_BLOCKS;
    b->pending = false;
    for (const range *s = slabs; s <= slabs + count; s++) {
        int failed = DONE;
        for (; first < last && (s == slabs + count || start + size_of(outer, first) <= s->start) && !failed; opened = false) {
            if (!opened)
                failed = start & off ? DISORDER : block_append(b, start, size_of(outer, first), outer->states[first]);
            if (++first < last)
                start = start_after(outer, start, first);
        }
        if (failed || s == slabs + count)
            return failed;
        bool fits = first < last && start <= s->start && s->end <= start + size_of(outer, first) && outer->states[first] == IN_USE;
        if (!fits && words_push(left_out, (uint64_t)(s - slabs)))
            return NO_MEMORY;
        if (fits && !opened && s->start > start && (failed = start & off ? DISORDER : block_append(b, start, s->start - start, METADATA)))
            return failed;
        opened = opened || fits;
        for (; r < end && r->start < s->end; r++)
            if (fits && (failed = append_run(b, r, NULL)))
                return failed;
    }
    return DONE;
}
