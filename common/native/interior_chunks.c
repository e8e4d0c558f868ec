/* Chunks of arenas that are linked by the words at their end: std::pmr::monotonic_buffer_resource,
 * and Rust's bumpalo.
 *
 * libstdc++ (src/c++17/memory_resource.cc): a chunk ends with {size | log2 of the alignment,
 * next chunk's end}; the size is a multiple of 64 and includes these words. Older versions: {two
 * bytes, size, next}. libc++ (src/memory_resource.cpp): a chunk ends with {next chunk's end,
 * start of the chunk, first unused byte, alignment}.
 *
 * bumpalo 3 (src/lib.rs: ChunkFooter): a chunk ends with {start of the chunk, its size and
 * alignment in either order, previous chunk's footer, first used byte}, a counter and padding. */
#include "interior_structures.h"

#define LEAST_CHUNK 64u
#define MOST_WORDS 4u
#define LOW_BITS UINT64_C(63)
#define LEAST_SHIFT 3u
#define MOST_SHIFT 12u

/* Return whether `end` may be the end of the chunk: only bytes that the allocator added by
 * rounding may follow. */
static bool ends_chunk(const candidate *c, uint64_t end) {
    return end <= end_of(c) && end - c->start >= LEAST_CHUNK && (end_of(c) - end) * 2 <= c->size;
}

static bool is_next(uint64_t value, uint64_t pointer) { return !value || (value % WORD == 0 && value != pointer && value > LEAST_CHUNK); }

/* Return whether `value` is {size | log2 of the alignment} of a chunk of `size` bytes. The
 * alignment is at least that of max_align_t. Without this check, an object that contains the
 * number 64 in front of a null pointer would be taken for a chunk. */
static bool is_size(uint64_t value, uint64_t size) {
    return (value & ~LOW_BITS) == size && (value & LOW_BITS) >= LEAST_SHIFT && (value & LOW_BITS) <= MOST_SHIFT;
}

static bool is_alignment(uint64_t value) { return value && !(value & (value - 1)) && value <= 4096; }

/* Return whether the pointer refers to the footer of a chunk of bumpalo. */
static bool is_bump_chunk(const memory *m, const candidate *c) {
    uint64_t start, first, second, previous, used, before = c->pointer - c->start;
    if (!read_word(m, c->pointer, &start) || start != c->start || !read_word(m, c->pointer + WORD, &first) || !read_word(m, c->pointer + 2 * WORD, &second) ||
        !read_word(m, c->pointer + 3 * WORD, &previous) || !read_word(m, c->pointer + 4 * WORD, &used))
        return false;
    uint64_t size = is_alignment(second) && first > before ? first : second, alignment = size == first ? second : first;
    uint64_t footer = size - before;
    return is_alignment(alignment) && size > before && footer >= 5 * WORD && footer <= 8 * WORD && ends_chunk(c, c->start + size) && previous % WORD == 0 &&
           used >= c->start && used <= c->pointer;
}

int chunk_at(const memory *m, const candidate *c) {
    uint64_t values[MOST_WORDS];
    unsigned count = 0;
    if (c->pointer % WORD || c->pointer - c->start < LEAST_CHUNK / 2)
        return NOTHING;
    while (count < MOST_WORDS && c->pointer + (uint64_t)(count + 1) * WORD <= end_of(c) && read_word(m, c->pointer + (uint64_t)count * WORD, &values[count]))
        count++;
    if (count == MOST_WORDS && is_bump_chunk(m, c))
        return BUMP_CHUNK;
    uint64_t first = c->pointer + 2 * WORD, second = c->pointer + 3 * WORD;
    if (count >= 2 && ends_chunk(c, first) && is_size(values[0], first - c->start) && is_next(values[1], c->pointer))
        return CHUNK_AT_END;
    if (count >= 3 && ends_chunk(c, second) && values[1] == second - c->start && is_next(values[2], c->pointer))
        return CHUNK_AT_END;
    if (count == 4 && ends_chunk(c, c->pointer + 4 * WORD) && values[1] == c->start && values[2] >= c->start && values[2] <= c->pointer &&
        values[3] && !(values[3] & (values[3] - 1)) && values[3] <= 4096 && is_next(values[0], c->pointer))
        return CHUNK_AT_END;
    return NOTHING;
}
