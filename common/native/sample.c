/* A consistent sample of the blocks in use; ../engine/sampling.py describes the choice. */
#include "blocks.h"

enum { LARGE_SHIFT = 12, COLUMNS = 3, BATCH = 256, USUAL_SHIFT = 4 }; /* LARGE of sampling.py */

/* splitmix64's mixer: a bijection (Steele, Lea, Flood, "Fast splittable pseudorandom number
 * generators", OOPSLA 2014, figure 16; constants: Stafford's Mix13). */
INLINE uint64_t half_mixed(uint64_t word) {
    word = (word ^ word >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    return (word ^ word >> 27) * UINT64_C(0x94D049BB133111EB);
}

INLINE uint64_t mixed(uint64_t word) {
    word = half_mixed(word);
    return word ^ word >> 31;
}

INLINE unsigned bit_length(uint64_t word) { return word ? 64u - (unsigned)__builtin_clzll(word) : 0; }

INLINE unsigned level_of(uint64_t hash, uint64_t size) { return 64u - bit_length(hash) + bit_length(size >> LARGE_SHIFT); }

/* Bits of the hash that half_mixed has not computed yet. */
#define LOWER_BITS ((UINT64_C(1) << 33) - 1)

/* Raise the level until at most `most` rows are left. */
static unsigned thin(words *found, unsigned level, uint64_t most) {
    while (found->count > most * COLUMNS) {
        uint64_t kept = 0;
        level++;
        for (uint64_t at = 0; at < found->count; at += COLUMNS) {
            if (found->items[at + 2] < level)
                continue;
            memmove(&found->items[kept], &found->items[at], COLUMNS * sizeof *found->items);
            kept += COLUMNS;
        }
        found->count = kept;
    }
    return level;
}

/* Compute the addresses of `count` blocks from number `index` on, whose address is starts[0],
 * and the address of the next block. */
INLINE void addresses(const blocks *b, uint32_t index, uint32_t count, unsigned shift, uint64_t *starts) {
    uint64_t start = starts[0];
    for (uint32_t done = 0; done < count;) {
        uint64_t base = slot_base(b, start), bits = slot_of(b, base)->bits & -(UINT64_C(1) << granule_of(b, start));
        for (; bits && done < count; bits &= bits - 1)
            starts[done++] = base + ((uint64_t)__builtin_ctzll(bits) << shift);
        start = index + done < b->count ? start_after(b, starts[done - 1], index + done) : UINT64_MAX;
    }
    starts[count] = start;
}

/* Choose the blocks that may be in a sample: those with hashes up to `below`, and those that may be
 * large, because the next block starts far behind them. Sizes and states are not read here: reading
 * them takes longer than computing hashes. */
static uint32_t choose(const uint64_t *starts, uint32_t count, uint64_t below, uint32_t *chosen) {
    uint32_t choices = 0;
    for (uint32_t at = 0; at < count; at++) {
        chosen[choices] = at;
        choices += (uint32_t)((half_mixed(starts[at]) <= below) | ((starts[at + 1] - starts[at]) >> LARGE_SHIFT != 0));
    }
    return choices;
}

/* Return the highest hash of a block below LARGE in a sample of this level. */
INLINE uint64_t highest_hash(unsigned level) { return (level < 64 ? UINT64_MAX >> level : 0) | LOWER_BITS; }

/* Add the blocks in use with indices [first, last) to a sample of `level` with rows (address,
 * size, level); return its new level. `found`: empty, to be freed by the caller. */
API int fl_sample(const blocks *b, uint64_t most, uint32_t first, uint32_t last, unsigned level, const uint64_t *rows, uint64_t count,
                  words *found) {
    uint64_t below = highest_hash(level), starts[BATCH + 1];
    uint32_t chosen[BATCH];
    if (words_append(found, rows, count * COLUMNS))
        return NO_MEMORY;
    level = thin(found, level, most);
    starts[0] = first < last ? block_address(b, first) : 0;
    for (uint32_t index = first, some; index < last; index += some, starts[0] = starts[some]) {
        some = last - index < BATCH ? last - index : BATCH;
        if (b->granule_shift == USUAL_SHIFT)
            addresses(b, index, some, USUAL_SHIFT, starts);
        else
            addresses(b, index, some, b->granule_shift, starts);
        uint32_t choices = choose(starts, some, below, chosen);
        for (uint32_t choice = 0; choice < choices; choice++) {
            uint32_t block = index + chosen[choice];
            uint64_t start = starts[chosen[choice]], size = size_of(b, block);
            unsigned own = level_of(mixed(start), size);
            if (own < level || b->states[block] != IN_USE)
                continue;
            if (PUSH_ALL(found, start, size, own))
                return NO_MEMORY;
            level = thin(found, level, most);
            below = highest_hash(level);
        }
    }
    return (int)level;
}
