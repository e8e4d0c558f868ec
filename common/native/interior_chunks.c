/* Chunks of std::pmr::monotonic_buffer_resource, which are linked by the words at their end.
 *
 * libstdc++ (src/c++17/memory_resource.cc): a chunk ends with {size | log2 of the alignment,
 * next chunk's end}; the size is a multiple of 64 and includes these words. Older versions: {two
 * bytes, size, next}. libc++ (src/memory_resource.cpp): a chunk ends with {next chunk's end,
 * start of the chunk, first unused byte, alignment}. */
#include "interior_structures.h"

#define LEAST_CHUNK 64u
#define MOST_WORDS 4u
#define LOW_BITS UINT64_C(63)

/* Return whether `end` may be the end of the chunk: only bytes that the allocator added by
 * rounding may follow. */
static bool ends_chunk(const candidate *c, uint64_t end) {
    return end <= end_of(c) && end - c->start >= LEAST_CHUNK && (end_of(c) - end) * 2 <= c->size;
}

static bool is_next(uint64_t value, uint64_t pointer) { return !value || (value % WORD == 0 && value != pointer && value > LEAST_CHUNK); }

int chunk_at(const memory *m, const candidate *c) {
    uint64_t values[MOST_WORDS];
    unsigned count = 0;
    if (c->pointer % WORD || c->pointer - c->start < LEAST_CHUNK / 2)
        return NOTHING;
    while (count < MOST_WORDS && c->pointer + (uint64_t)(count + 1) * WORD <= end_of(c) && read_word(m, c->pointer + (uint64_t)count * WORD, &values[count]))
        count++;
    uint64_t first = c->pointer + 2 * WORD, second = c->pointer + 3 * WORD;
    if (count >= 2 && ends_chunk(c, first) && (values[0] & ~LOW_BITS) == first - c->start && (values[0] & LOW_BITS) < 32 && is_next(values[1], c->pointer))
        return CHUNK_AT_END;
    if (count >= 3 && ends_chunk(c, second) && values[1] == second - c->start && is_next(values[2], c->pointer))
        return CHUNK_AT_END;
    if (count == 4 && ends_chunk(c, c->pointer + 4 * WORD) && values[1] == c->start && values[2] >= c->start && values[2] <= c->pointer &&
        values[3] && !(values[3] & (values[3] - 1)) && values[3] <= 4096 && is_next(values[0], c->pointer))
        return CHUNK_AT_END;
    return NOTHING;
}
