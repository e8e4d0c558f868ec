/* Reads the slabs of GSlice, its magazines and its free chunks:
 * see ../allocators/gslice/engine.py. */
#include "native.h"

#include <stdlib.h>

#define UNIT (2 * WORD) /* chunk sizes and shifts are multiples of UNIT */
#define INFO (4 * WORD) /* bytes of SlabInfo */
#define AFTER_CHUNKS (INFO + 2 * WORD) /* two words are left to malloc */
#define LEAST_PAGE UINT64_C(128)
#define RUN 6 /* words: start, stride, size, count, bit, states; ../engine/terms.py */
#define OTHER 4 /* chunks at the start of a magazine of a ring; their second words are not lists */
#define GROUP 32u /* lists that are followed before the second words of their chunks are read */
/* The weight of a slab's start is ONE_SLAB for each slab found there, plus the number of the size
 * class. */
#define ONE_SLAB (UINT64_C(1) << 32)

INLINE uint64_t word_of(piece_reader *r, uint64_t address) {
    const uint8_t *found = memory_near(r, address, WORD);
    return found ? load(found) : 0;
}

INLINE uint64_t chunk_of(uint64_t number) { return UNIT * (number + 1); }

INLINE uint64_t page_of(uint64_t chunk) {
    uint64_t page = LEAST_PAGE;
    while (page < 8 * chunk + AFTER_CHUNKS)
        page *= 2;
    return page;
}

/* The walk over the ring of one size class. `info`: the address of the next SlabInfo, 0 at the end.
 * `fields`: the bytes of this SlabInfo, or NULL. `ahead`: the bytes of the SlabInfo after it, or
 * NULL. */
typedef struct {
    uint64_t head, info, page, number;
    const uint8_t *fields, *ahead;
} ring;

/* Move to a SlabInfo, and prefetch the SlabInfo after it. */
static void move_to(piece_reader *r, ring *one, uint64_t info, const uint8_t *fields) {
    one->info = info;
    one->fields = fields;
    one->ahead = fields ? memory_near(r, load(fields + 2 * WORD), INFO) : NULL;
    if (one->ahead)
        __builtin_prefetch(one->ahead);
}

/* Append the next slab and its weight. Returns 1 if the ring is broken there. The links back are
 * checked, so every cycle leads back to the head. */
static int walk_on(piece_reader *r, ring *one, words *starts, words *weights) {
    uint64_t info = one->info, start = info + AFTER_CHUNKS - one->page;
    if (!one->ahead || start > info || start & (one->page - 1) || load(one->ahead + 3 * WORD) != info)
        return 1;
    if (words_push(starts, start) || words_push(weights, ONE_SLAB | one->number))
        return NO_MEMORY;
    uint64_t next = load(one->fields + 2 * WORD);
    move_to(r, one, next == one->head ? 0 : next, next == one->head ? NULL : one->ahead);
    return DONE;
}

/* Walk all rings one step at a time in turn, so that their waits for memory overlap. */
static int walk_rings(piece_reader *r, ring *rings, uint64_t count, uint64_t most, words *starts, words *weights, words *broken) {
    for (uint64_t left = count; left;) {
        left = 0;
        for (ring *one = rings; one < rings + count; one++) {
            int failed = !one->info ? DONE : starts->count < most ? walk_on(r, one, starts, weights) : 1;
            if (failed < 0 || (failed && PUSH_ALL(broken, one->number, one->info)))
                return NO_MEMORY;
            one->info = failed ? 0 : one->info;
            left += one->info != 0;
        }
    }
    return DONE;
}

/* Append the free chunks of a slab. Write the address of the first free chunk, or 0, to `first`. */
static int list_free(piece_reader *r, uint64_t info, uint64_t most, words *chunks, uint64_t *first) {
    uint64_t chunk = *first = word_of(r, info);
    for (; chunk && most--; chunk = word_of(r, chunk))
        if (words_push(chunks, chunk))
            return NO_MEMORY;
    return DONE;
}

static int reserve(words *list, uint64_t count) {
    list->items = count ? malloc(count * sizeof *list->items) : NULL;
    list->capacity = count;
    return list->items || !count ? DONE : NO_MEMORY;
}

/* Read the slabs at these starts, which ascend. Slabs that overlap are left out, and appended to
 * `broken` with the number NONE. */
static int read_sorted(piece_reader *r, const uint64_t *starts, const uint64_t *weights, uint64_t count, words *runs, words *ranges,
                       words *options, words *chunks, words *broken) {
    uint64_t floor = 0;
    if (reserve(runs, RUN * count) || reserve(ranges, 2 * count) || reserve(options, count))
        return NO_MEMORY;
    for (uint64_t at = 0; at < count; at++) {
        uint64_t start = starts[at], chunk = chunk_of(weights[at] & (ONE_SLAB - 1)), page = page_of(chunk), first;
        uint64_t info = start + page - AFTER_CHUNKS, spare = (page - AFTER_CHUNKS) % chunk, most = (page - AFTER_CHUNKS) / chunk;
        if (weights[at] >= 2 * ONE_SLAB || start < floor) {
            if (PUSH_ALL(broken, NONE, start))
                return NO_MEMORY;
            continue;
        }
        if (list_free(r, info, most, chunks, &first))
            return NO_MEMORY;
        uint64_t shift = first ? (first - start) % chunk : 0;
        uint64_t choices = first || !spare ? 1 : spare / UNIT;
        if (shift >= spare || shift % UNIT)
            shift = 0;
        memcpy(runs->items + runs->count, (const uint64_t[RUN]){start + shift, chunk, chunk, most, 0, IN_USE}, RUN * sizeof(uint64_t));
        memcpy(ranges->items + ranges->count, (const uint64_t[2]){start, info + INFO}, 2 * sizeof(uint64_t));
        runs->count += RUN;
        ranges->count += 2;
        options->items[options->count++] = choices;
        floor = info + INFO;
    }
    return DONE;
}

/* Read the slabs of the rings with these heads (one for each size class), and the free chunks of
 * the slabs. Outputs for each slab, ascending by address: a run of equal blocks, a range, and the
 * number of possible shifts. A run begins at the lowest possible shift. `broken`: pairs of the
 * number of a size class and an address. */
API int fl_slice_slabs(const piece *pieces, uint64_t count, const uint64_t *heads, uint64_t classes, words *runs, words *ranges,
                       words *options, words *chunks, words *broken) {
    piece_reader r = {pieces, NULL, count};
    words starts = {NULL, 0, 0}, weights = {NULL, 0, 0};
    LIST(ring) rings = {NULL, 0, 0};
    uint64_t most = 0, *spare = NULL;
    int failed = DONE;
    for (uint64_t at = 0; at < count; at++)
        most += pieces[at].length / LEAST_PAGE;
    for (uint64_t number = 0; number < classes && !failed; number++)
        if (heads[number]) {
            ring one = {heads[number], 0, page_of(chunk_of(number)), number, NULL, NULL};
            move_to(&r, &one, one.head, memory_near(&r, one.head, INFO));
            failed = PUSH(rings, one);
        }
    if (!failed)
        failed = walk_rings(&r, rings.items, rings.count, most, &starts, &weights, broken);
    if (!failed && starts.count) {
        spare = malloc(2 * starts.count * sizeof *spare);
        failed = spare ? DONE : NO_MEMORY;
    }
    if (spare) {
        uint64_t found = fl_sum_by_value(starts.items, weights.items, starts.count, false, spare, spare + starts.count);
        failed = read_sorted(&r, starts.items, weights.items, found, runs, ranges, options, chunks, broken);
    }
    FREE_ALL(starts.items, weights.items, rings.items, spare);
    return failed;
}

/* State of a walk over a ring of magazines. `link`: place of the next word to read, or NULL. */
typedef struct {
    uint64_t first, magazine;
    const uint8_t *link;
} magazine_ring;

static void look_at(piece_reader *r, magazine_ring *one, uint64_t address) {
    one->link = memory_near(r, address, WORD);
    if (one->link)
        __builtin_prefetch(one->link);
}

INLINE uint64_t link_of(const magazine_ring *one) { return one->link ? load(one->link) : 0; }

/* Advance the walk of each ring to the next magazine. Its address is the second word of the third
 * chunk. Move the walks that are not complete to the front, and return their number. */
static uint64_t move_rings(piece_reader *r, magazine_ring *rings, uint64_t count) {
    uint64_t left = 0;
    for (unsigned offset = 0; offset <= WORD; offset += WORD)
        for (magazine_ring *one = rings; one < rings + count; one++)
            look_at(r, one, link_of(one) + offset);
    for (magazine_ring *one = rings; one < rings + count; one++) {
        one->magazine = link_of(one);
        look_at(r, one, one->magazine);
        if (one->magazine && one->magazine != one->first)
            rings[left++] = *one;
    }
    return left;
}

/* Append at most `most` magazines. Each round takes the next magazine of every ring. */
static int list_magazines(piece_reader *r, const uint64_t *heads, uint64_t number, uint64_t most, words *magazines) {
    LIST(magazine_ring) rings = {NULL, 0, 0};
    int failed = DONE;
    for (uint64_t at = 0; at < number && !failed; at++)
        if (heads[at]) {
            failed = PUSH(rings, (magazine_ring){heads[at], heads[at], NULL});
            if (!failed)
                look_at(r, &rings.items[rings.count - 1], heads[at]);
        }
    while (rings.count && !failed) {
        for (uint64_t at = 0; at < rings.count && most && !failed; at++, most--)
            failed = words_push(magazines, rings.items[at].magazine);
        rings.count = most ? move_rings(r, rings.items, rings.count) : 0;
    }
    free(rings.items);
    return failed;
}

/* Append the heads of further lists: the second words of the chunks [first, end) that are not 0.
 * The first `others` of these chunks are skipped, because their second words are not lists. */
static int list_further(piece_reader *r, const words *chunks, uint64_t first, uint64_t end, uint64_t others, words *further) {
    for (uint64_t at = first + others; at < end; at++) {
        uint64_t head = word_of(r, chunks->items[at] + WORD);
        if (head && words_push(further, head))
            return NO_MEMORY;
    }
    return DONE;
}

/* Append four words for each damaged list of a group: its head, the reason, the node where it
 * ended, and the number of chunks before this node. `start`, `ends`: where the chunks of the group
 * begin, and where those of each list end. */
static int list_damaged(const words *problems, const uint64_t *heads, uint64_t start, const uint64_t *ends, words *damaged) {
    for (uint64_t at = 0; at < problems->count; at += 3) {
        uint64_t list = problems->items[at], found = ends[list] - (list ? ends[list - 1] : start);
        if (PUSH_ALL(damaged, heads[list], problems->items[at + 1], problems->items[at + 2], found))
            return NO_MEMORY;
    }
    return DONE;
}

/* Follow lists of at most `most` chunks. Outputs: their chunks; `damaged` (see list_damaged); and,
 * unless it is NULL, `further`. The second words of the chunks of a group of lists are read while
 * the chunks are still in the caches. The first `owns` lists are those of threads; the others are
 * of rings. */
static int follow_chunks(piece_reader *r, const words *heads, uint64_t owns, uint64_t most, words *chunks, words *further, words *damaged) {
    const uint64_t total = count_words(r->pieces, r->count);
    words problems = {NULL, 0, 0};
    int failed = DONE;
    for (uint64_t first = 0; first < heads->count && !failed; first += GROUP) {
        const uint64_t *group = heads->items + first, lists = heads->count - first < GROUP ? heads->count - first : GROUP;
        uint64_t start = chunks->count, ends[GROUP];
        problems.count = 0;
        failed = follow_lists(r->pieces, r->count, group, lists, 0, most, NULL, total, chunks, ends, &problems);
        if (!failed)
            failed = list_damaged(&problems, group, start, ends, damaged);
        for (uint64_t list = 0; list < lists && further && !failed; start = ends[list++])
            failed = list_further(r, chunks, start, ends[list], first + list < owns ? 0 : OTHER, further);
    }
    free(problems.items);
    return failed;
}

/* Read the chunks of three kinds of lists: threads' magazines, whose first chunks are in `own`;
 * magazines of rings; and further lists, whose heads are second words of the chunks of the others.
 * `damaged`: see list_damaged. */
API int fl_slice_magazines(const piece *pieces, uint64_t count, const uint64_t *own, uint64_t owns, const uint64_t *rings, uint64_t classes,
                           uint64_t most, words *chunks, words *damaged) {
    piece_reader r = {pieces, NULL, count};
    words heads = {NULL, 0, 0}, further = {NULL, 0, 0}, more = {NULL, 0, 0};
    int failed = words_append(&heads, own, owns) || list_magazines(&r, rings, classes, most, &heads) ? NO_MEMORY : DONE;
    if (!failed)
        failed = follow_chunks(&r, &heads, owns, most, chunks, &further, damaged);
    if (!failed)
        failed = follow_chunks(&r, &further, 0, most, &more, NULL, damaged);
    if (!failed)
        failed = words_append(chunks, more.items, more.count);
    FREE_ALL(heads.items, further.items, more.items);
    return failed;
}
