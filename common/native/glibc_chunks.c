/* Walks glibc's boundary-tagged chunks (glibc 2.36 malloc/malloc.c, struct malloc_chunk;
 * unchanged since ptmalloc2). A header is two words: the size of the previous chunk, if that is
 * free; the size of this chunk, at least four words, a multiple of two words, with flags in the
 * low bits: 1 previous in use, 2 mmapped, 4 in a thread's arena. A block starts after the header
 * and includes the first word of the next header. */
#include "blocks.h"

#include "threads.h"

#define PREV_INUSE 1u
#define IS_MMAPPED 2u
#define NON_MAIN_ARENA 4u
#define FLAGS 7u
#define AHEAD 1024u   /* bytes */
#define MOST_USUAL 8u /* slots that a usual block covers; must be fewer than NEAR */

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

/* A walk over chunk headers. */
typedef struct {
    blocks *into;
    uint64_t chunk; /* the next header */
    uint64_t end;   /* the header that ends the heap */
    uint64_t size;  /* the result of the last header read */
    int code;       /* positive: the reason why the walk stopped at `chunk` */
    bool done;
} chunk_walk;

/* Decide the state of the block before a header by that header. */
static int settle_before(chunk_walk *w, const uint8_t *data, uint64_t offset) {
    blocks *b = w->into;
    if (!b->pending || load(data + offset) & PREV_INUSE)
        return DONE;
    /* If the sizes differ, the block is in use, or is free with a damaged end. The headers do not
     * show which. */
    if (offset >= WORD && load(data + offset - WORD) != size_of(b, b->count - 1) + WORD)
        return DIFFERS;
    is_free(b);
    return DONE;
}

/* Append blocks for the usual case, from the header `at` on: the block before is in use, and
 * this block ends in the same table as the last one. Stops at the header at which another case
 * begins, or at `stop`. This loop has few conditions and keeps its variables in registers, which
 * halves the time. */
INLINE uint64_t walk_usual(blocks *b, const uint8_t *data, uint64_t first, uint64_t at, uint64_t stop, uint64_t end, uint64_t *fetched) {
    unsigned granule = b->granule_shift, shift = b->slot_shift;
    uint64_t number = b->last_start >> shift, table_end = ((number >> TABLE_BITS) + 1) << TABLE_BITS << shift;
    uint64_t flags = (((UINT64_C(1) << granule) - 1) | FLAGS) & ~(uint64_t)NON_MAIN_ARENA;
    uint32_t index = b->count;
    uint32_t sampled = (index + SAMPLE - 1) / SAMPLE * SAMPLE; /* whose start must be kept */
    uint32_t *sizes = b->sizes;
    uint8_t *states = b->states;
    if (number >> TABLE_BITS != b->recent.key || (at >> shift) - number > MOST_USUAL || sampled > b->capacity)
        return at;
    slot *slots = b->recent.slots, *s = &slots[number & (TABLE_SLOTS - 1)];
    uint64_t bits = s->bits, start = b->last_start, limit = table_end < end + 2 * WORD ? table_end : end + 2 * WORD;
    while (at + WORD < stop && index < sampled) {
        prefetch_on(data, at + WORD - first, AHEAD, fetched);
        uint64_t head = load(data + (at + WORD - first)), size = head & ~(uint64_t)FLAGS, begin = at + 2 * WORD;
        if ((head & flags) != PREV_INUSE || size < 4 * WORD || size > MOST_USUAL << shift || begin >= limit || size > limit - begin)
            break;
        if (begin >> shift != number) {
            s->bits = bits;
            number = begin >> shift;
            s = &slots[number & (TABLE_SLOTS - 1)];
            bits = s->bits;
            if (!bits)
                s->rank = index;
        }
        start = begin;
        bits |= UINT64_C(1) << (start >> granule & 63);
        for (uint64_t last = (start + size - WORD - 1) >> shift, covered = number + 1; covered <= last; covered++) {
            slots[covered & (TABLE_SLOTS - 1)].rank = index + 1;
            slots[covered & (TABLE_SLOTS - 1)].back = (uint32_t)(covered - number);
        }
        sizes[index] = (uint32_t)(size - WORD);
        states[index++] = IN_USE;
        at += size;
    }
    s->bits = bits;
    b->last_start = start;
    b->count = index;
    b->floor = at + WORD;
    return at;
}

/* Append the blocks whose size words are in the piece, up to the first header at or after
 * `stop`. The state of the last block stays pending. */
static void walk_until(chunk_walk *given, const piece *p, uint64_t stop) {
    chunk_walk here = *given, *w = &here; /* the original may share a cache line with a thread's */
    uint64_t first, at = w->chunk, end = w->end, count = piece_words(p, &first);
    const uint8_t *data = p->data + (first - p->address);
    blocks *b = w->into;
    uint64_t last = first + count * WORD < end ? first + count * WORD : end;
    uint64_t readable = stop < last ? stop : last;
    /* memory is prefetched up to here; otherwise each header would wait for the one before */
    uint64_t fetched = at + WORD - first;
    int code = DONE;
    while (!w->done && at < stop) {
        uint64_t offset = at + WORD - first;
        if (offset / WORD >= count)
            break;
        prefetch_on(data, offset, AHEAD, &fetched);
        uint64_t head = load(data + offset);
        if (at < end) {
            w->size = head & ~(uint64_t)FLAGS;
            code = wrong_size(b, at, w->size, end);
        }
        code = code ? code : settle_before(w, data, offset);
        /* A damaged header does not show the state of the block before it. That block stays in
         * use. */
        b->pending = false;
        w->done = !code && at == end;
        if (code || w->done)
            break;
        b->pending = !(head & IS_MMAPPED);
        if ((code = block_append(b, at + 2 * WORD, w->size - (b->pending ? 1 : 2) * WORD, IN_USE)))
            break;
        at += w->size;
        if (b->pending)
            at = walk_usual(b, data, first, at, readable, end, &fetched);
        w->done = at == end && !b->pending;
    }
    w->code = code;
    w->chunk = at;
    *given = here;
}

/* -- on several threads: each thread but the first starts at a header that looks sound. Its result
 * is used if the walk of the thread before it arrives at this header. */

#define LEAST_SHARE (UINT64_C(1) << 20) /* bytes that are worth a thread */
#define SEARCHED (UINT64_C(64) << 10)   /* bytes in which a sound header is looked for */
#define HOPS 32u                        /* consecutive plausible headers that are proof */

typedef struct {
    const piece *p;
    unsigned count;
    uint64_t starts[MOST_THREADS + 1]; /* where the walks begin; then a number above all */
    chunk_walk walks[MOST_THREADS];
    _Atomic unsigned next;
} chunk_walks;

/* Return the header that the headers from `chunk` on lead to; 0 if one of them is wrong, or if
 * that header is not in the piece. Even words that only look like a header usually lead to true
 * headers. */
static uint64_t led_to(const blocks *b, const piece *p, uint64_t chunk, uint64_t end) {
    uint64_t first, count = piece_words(p, &first);
    const uint8_t *data = p->data + (first - p->address);
    for (unsigned hop = 0; hop < HOPS; hop++) {
        uint64_t offset = chunk + WORD - first;
        if (chunk >= end || offset / WORD >= count)
            return 0;
        uint64_t head = load(data + offset), size = head & ~(uint64_t)FLAGS;
        if (head & IS_MMAPPED || wrong_size(b, chunk, size, end))
            return 0;
        chunk += size;
    }
    return (chunk + WORD - first) / WORD < count ? chunk : 0;
}

/* Divide the walk of a piece into parts. There are fewer parts if no plausible header is found. */
static void divide(chunk_walks *parts, const chunk_walk *whole, uint64_t last) {
    const blocks *b = whole->into;
    uint64_t span = last - whole->chunk, granule = UINT64_C(1) << b->granule_shift;
    uint64_t most = span / LEAST_SHARE < b->threads ? span / LEAST_SHARE : b->threads;
    parts->walks[0] = *whole;
    parts->starts[0] = whole->chunk;
    parts->count = 1;
    for (uint64_t part = 1; part < most; part++) {
        uint64_t at = whole->chunk + (span / most * part & -granule), searched = at + SEARCHED, chunk = 0;
        for (; !chunk && at < searched; at += granule)
            chunk = led_to(b, parts->p, at, whole->end);
        blocks *into = chunk > parts->starts[parts->count - 1] ? spare_blocks(whole->into, parts->count) : NULL;
        if (into) {
            parts->starts[parts->count] = chunk;
            parts->walks[parts->count++] = (chunk_walk){.into = into, .chunk = chunk, .end = whole->end};
        }
    }
    parts->starts[parts->count] = UINT64_MAX;
}

static void walk_parts(void *context, unsigned thread) {
    chunk_walks *parts = context;
    (void)thread;
    for (unsigned part; (part = parts->next++) < parts->count;)
        walk_until(&parts->walks[part], parts->p, parts->starts[part + 1]);
}

/* Append the blocks of the next part, from the header at which `w` has arrived. */
static void continue_with(chunk_walk *w, const chunk_walk *next, const piece *p, uint64_t header) {
    uint64_t first;
    blocks *b = w->into;
    piece_words(p, &first);
    w->size = load(p->data + (header + WORD - p->address)) & ~(uint64_t)FLAGS;
    w->code = settle_before(w, p->data + (first - p->address), header + WORD - first);
    b->pending = false;
    if (w->code || (w->code = join_blocks(b, next->into)))
        return;
    b->pending = next->into->pending;
    w->chunk = next->chunk, w->size = next->size, w->code = next->code, w->done = next->done;
}

static void walk_together(chunk_walk *w, const piece *p) {
    uint64_t last = p->length < UINT64_MAX - p->address ? p->address + p->length : UINT64_MAX;
    chunk_walks parts = {.p = p};
    last = last < w->end ? last : w->end;
    if (w->into->threads > 1 && last > w->chunk && last - w->chunk >= 2 * LEAST_SHARE)
        divide(&parts, w, last);
    if (parts.count > 1) {
        run_on_threads(parts.count, walk_parts, &parts);
        *w = parts.walks[0];
        for (unsigned part = 1; part < parts.count && !w->code && w->chunk == parts.starts[part]; part++)
            continue_with(w, &parts.walks[part], p, parts.starts[part]);
    }
    if (!w->code && !w->done)
        walk_until(w, p, UINT64_MAX);
}

/* Append the blocks of the chunks from *chunk (updated) whose size words are in the piece, up to
 * `end`, the header that ends the heap. A positive result is the reason why the walk stopped at
 * *chunk, whose size is *size. The walk can be continued after DIFFERS. */
API int fl_walk_chunks(blocks *b, const piece *p, uint64_t *chunk, uint64_t end, uint64_t *size, bool *done) {
    uint64_t first, at = *chunk;
    bool pending = b->pending;
    piece_words(p, &first);
    *size = 0;
    *done = false;
    b->pending = false;
    if (at > end || end > HIGHEST - 2 * WORD - 1 || (at + 2 * WORD) & ((UINT64_C(1) << b->granule_shift) - 1) || at % WORD)
        return MISPLACED;
    if (at + WORD < first)
        return MISSED;
    if (at < end && at + 2 * WORD < b->floor)
        return OVERLAP;
    b->pending = pending;
    chunk_walk w = {.into = b, .chunk = at, .end = end, .done = at == end && !pending};
    walk_together(&w, p);
    *chunk = w.chunk;
    *size = w.size;
    *done = w.done;
    return w.code;
}

/* Return whether a header is plausible: in use after a chunk in use (flags `normal`); in use after
 * a free chunk that repeats its size; or free in a thread's arena (without that flag). `previous`:
 * the previous header, or NULL. */
static bool agrees(const uint8_t *at, const uint8_t *end, const uint8_t *previous, uint64_t normal, bool *behind_free) {
    uint64_t head = load(at), flags = head & (2 * WORD - 1), size = head & ~(uint64_t)(2 * WORD - 1);
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

/* Follow the chunks from *chunk (updated) to `stop` while headers are plausible and in the
 * piece. *previous (updated; 0: none) is the chunk before; *count grows by the number of
 * headers; chunks that are free by their headers go to `found`. */
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
