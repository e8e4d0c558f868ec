/* Walks glibc's boundary-tagged chunks (glibc 2.36 malloc/malloc.c, struct malloc_chunk; the same
 * since ptmalloc2). Header words: the previous chunk's size, if free; this chunk's size, at least
 * four words, a multiple of two, with flags: 1 previous in use, 2 mmapped, 4 in a thread's arena. A
 * block starts after the header, and extends over the next header's first word. */
#include "blocks.h"

#define PREV_INUSE 1u
#define IS_MMAPPED 2u
#define FLAGS 7u
#define AHEAD 2048u /* bytes */

/* Also in ../allocators/glibc/engine.py. */
enum { SMALL = 1, UNALIGNED, PAST_END, MISPLACED, OVERLAP, MISSED, DIFFERS };

static int wrong_size(const blocks *b, uint64_t chunk, uint64_t size, uint64_t end) {
    if (size < 4 * WORD)
        return SMALL;
    if (size % (2 * WORD))
        return UNALIGNED;
    if (size > end - chunk)
        return PAST_END;
    return (chunk + 2 * WORD) & ((UINT64_C(1) << b->granule_shift) - 1) ? MISPLACED : 0;
}

static void is_free(blocks *b) {
    uint32_t index = b->count - 1;
    b->states[index] = FREE;
    big *listed = b->bigs.count ? &b->bigs.items[b->bigs.count - 1] : NULL;
    if (listed && listed->index == index) {
        listed->size -= WORD;
        b->sizes[index] = listed->size < NONE ? (uint32_t)listed->size : NONE;
    } else {
        b->sizes[index] -= WORD;
    }
}

/* Append the blocks of the chunks from *chunk (updated) whose size words are in the piece, up to
 * `end`, the header that ends the heap. Positive: why the walk stopped at *chunk, of size *size; it
 * can go on after DIFFERS. */
API int fl_walk_chunks(blocks *b, const piece *p, uint64_t *chunk, uint64_t end, uint64_t *size, bool *done) {
    uint64_t first, at = *chunk, count = piece_words(p, &first);
    bool pending = b->pending;
    int code = DONE;
    *size = 0;
    *done = false;
    b->pending = false;
    if (at > end || end > UINT64_MAX - 2 * WORD - 1 || (at + 2 * WORD) & ((UINT64_C(1) << b->granule_shift) - 1) || at % WORD)
        return MISPLACED;
    if (at + WORD < first)
        return MISSED;
    if (at < end && at + 2 * WORD < b->floor)
        return OVERLAP;
    *done = at == end && !pending;
    const uint8_t *data = p->data + (first - p->address);
    /* prefetched up to here: else each header waits for the one before */
    uint64_t fetched = at + WORD - first;
    while (!*done) {
        uint64_t offset = at + WORD - first;
        if (offset / WORD >= count)
            break;
        prefetch_on(data, offset, AHEAD, &fetched);
        uint64_t head = load(data + offset);
        if (at < end) {
            *size = head & ~(uint64_t)FLAGS;
            code = wrong_size(b, at, *size, end);
            /* a damaged header says nothing of the block before it, which stays in use */
            if (code) {
                pending = false;
                break;
            }
        }
        if (pending && !(head & PREV_INUSE)) {
            if (offset >= WORD && load(data + offset - WORD) != size_of(b, b->count - 1) + WORD) {
                pending = false; /* in use, or free with a damaged end: headers cannot decide */
                code = DIFFERS;
                break;
            }
            is_free(b);
        }
        if (at == end) {
            *done = true;
            pending = false;
            break;
        }
        pending = !(head & IS_MMAPPED);
        code = block_append(b, at + 2 * WORD, *size - (pending ? 1 : 2) * WORD, IN_USE);
        if (code)
            break;
        at += *size;
        *done = at == end && !pending;
    }
    b->pending = pending;
    *chunk = at;
    return code;
}

/* Plausible: in use after one in use (flags `normal`) or after a free chunk whose size is repeated;
 * or free in a thread's arena (without its flag). `previous`: its header, or NULL. */
static bool agrees(const uint8_t *at, const uint8_t *end, const uint8_t *previous, uint64_t normal, bool *behind_free) {
    uint64_t head = load(at), flags = head & 15, size = head & ~(uint64_t)15;
    *behind_free = false;
    if (size < 4 * WORD)
        return false;
    if (flags == normal)
        return true;
    if (flags == (normal & ~(uint64_t)PREV_INUSE) && previous) {
        uint64_t before = load(previous);
        *behind_free = before & PREV_INUSE && load(at - WORD) == (before & ~(uint64_t)FLAGS);
        return *behind_free;
    }
    return flags == PREV_INUSE && size + WORD <= (uint64_t)(end - at) && !(load(at + size) & PREV_INUSE);
}

/* Follow the chunks from *chunk (updated) to `stop` while headers are plausible and in the piece.
 * *previous (updated; 0: none): the chunk before; *count grows by the headers visited; chunks free
 * by their headers go to `found`. */
API int fl_sound_chunks(const piece *p, uint64_t *chunk, uint64_t stop, uint64_t normal, uint64_t *previous, uint64_t *count, words *found) {
    uint64_t first, at = *chunk, length = piece_words(p, &first) * WORD, before = *previous;
    const uint8_t *data = p->data + (first - p->address), *end = data + length;
    uint64_t fetched = 0;
    int code = DONE;
    while (at < stop && at % WORD == 0 && at + WORD >= first && at + WORD - first < length) {
        uint64_t offset = at + WORD - first;
        prefetch_on(data, offset, AHEAD, &fetched);
        const uint8_t *last = before && before % WORD == 0 && offset >= WORD && before < at && before + WORD >= first ? data + (before + WORD - first) : NULL;
        bool behind_free;
        if (!agrees(data + offset, end, last, normal, &behind_free))
            break;
        uint64_t size = load(data + offset) & ~(uint64_t)FLAGS;
        if (size > stop - at)
            break;
        if (behind_free && (code = words_push(found, before)))
            break;
        before = at;
        at += size;
        ++*count;
    }
    *chunk = at;
    *previous = before;
    return code;
}
