/* Heaps page by page: states and residency, free runs between blocks, first words of blocks. */
#include "blocks.h"

/* ../engine/pages.py: PageState. */
enum { NOT_KNOWN, USED, UNTOUCHED, IN_CACHES, OWN, KEPT, RETURNED, FREE_PAGE, PAGE_STATES };
/* The states of blocks (FREE includes memory in no block), then foreign memory. */
enum { FOREIGN = 4, COLUMNS };

/* Sorted, disjoint ranges, with a cursor at the first one that may overlap. */
typedef struct {
    const range *items;
    uint64_t count, at;
} list;

typedef struct {
    list known, held, metadata, foreign;
    uint64_t start, end, page; /* page: number of the current page */
    unsigned shift;
    uint64_t bytes[4];
    uint64_t size, weight; /* majority vote (Boyer-Moore) for the block size with most bytes */
    unsigned rank;
    uint8_t *states, *shares;
    uint32_t *used, *sizes;
    uint64_t *sums;
} walk;

static list list_from(const range *items, uint64_t count, uint64_t address) {
    uint64_t at = 0;
    BISECT(at, count, middle, items[middle].end <= address)
    return (list){items, count, at};
}

INLINE bool list_has(list *l, uint64_t address) {
    while (l->at < l->count && l->items[l->at].end <= address)
        l->at++;
    return l->at < l->count && l->items[l->at].start <= address;
}

/* Bytes of [low, high) in the ranges; `low` never decreases. */
INLINE uint64_t list_bytes(list *l, uint64_t low, uint64_t high) {
    uint64_t found = 0;
    while (l->at < l->count && l->items[l->at].end <= low)
        l->at++;
    for (uint64_t at = l->at; at < l->count && l->items[at].start < high; at++) {
        uint64_t from = l->items[at].start > low ? l->items[at].start : low, to = l->items[at].end < high ? l->items[at].end : high;
        found += to - from;
    }
    return found;
}

static void page_done(walk *w) {
    uint64_t low = w->page << w->shift, high = low + (UINT64_C(1) << w->shift);
    uint64_t place = w->page - (w->start >> w->shift);
    low = low > w->start ? low : w->start;
    high = high < w->end && high ? high : w->end;
    uint64_t size = high - low, used = w->bytes[IN_USE], cached = w->bytes[CACHED];
    uint64_t own = w->bytes[METADATA] + list_bytes(&w->metadata, low, high), foreign = list_bytes(&w->foreign, low, high);
    uint64_t taken = used + cached;
    own = own < size - taken ? own : size - taken;
    foreign = foreign < size - taken - own ? foreign : size - taken - own;
    bool known = list_has(&w->known, low), held = list_has(&w->held, low);
    unsigned state;
    if (used)
        state = known && !held ? UNTOUCHED : USED;
    else if (foreign)
        state = NOT_KNOWN;
    else if (known && !held)
        state = RETURNED;
    else if (cached)
        state = IN_CACHES;
    else if (own)
        state = OWN;
    else
        state = known ? KEPT : FREE_PAGE;
    w->states[place] = (uint8_t)state;
    w->shares[place] = (uint8_t)(used ? 1 + used * 254 / size : 0);
    w->used[place] = (uint32_t)used;
    w->sizes[place] = w->size < NONE ? (uint32_t)w->size : NONE;
    uint64_t *sums = w->sums + state * COLUMNS;
    sums[IN_USE] += used;
    sums[CACHED] += cached;
    sums[METADATA] += own;
    sums[FOREIGN] += foreign;
    sums[FREE] += size - taken - own - foreign;
    memset(w->bytes, 0, sizeof w->bytes);
    w->size = w->weight = 0;
    w->rank = 0;
    w->page++;
}

/* Votes on sizes prefer blocks in use, then cached, then free ones. */
static const unsigned ranks[4] = {3, 2, 1, 0};

/* Vote with a weight (Boyer-Moore) for the value with most bytes. A vote for another value
 * lowers the weight; that value takes over if the weight would become negative. */
INLINE void vote(uint64_t *most, uint64_t *weight, uint64_t value, uint64_t bytes) {
    if (value == *most) {
        *weight += bytes;
    } else if (*weight >= bytes) {
        *weight -= bytes;
    } else {
        *weight = bytes - *weight;
        *most = value;
    }
}

INLINE void page_add(walk *w, uint64_t bytes, unsigned state, uint64_t size) {
    w->bytes[state] += bytes;
    unsigned rank = ranks[state];
    if (rank > w->rank) {
        w->rank = rank;
        w->size = size;
        w->weight = bytes;
    } else if (rank == w->rank && rank) {
        vote(&w->size, &w->weight, size, bytes);
    }
}

/* Walk the pages of [w.start, w.end). */
static void walk_range(walk w, const blocks *b) {
    unsigned shift = w.shift;
    uint64_t start = 0, granule = UINT64_C(1) << b->granule_shift;
    uint32_t index = block_reaching(b, w.start, &start);
    while (index < b->count && start < w.end) {
        uint64_t size = size_of(b, index), end = start + size, next = UINT64_MAX;
        unsigned state = b->states[index] & 3;
        if (++index < b->count) {
            next = start_after(b, start, index);
            if (next - end <= granule)
                end = next;
        }
        uint64_t at = start > w.start ? start : w.start;
        end = end < w.end ? end : w.end;
        while (at < end) {
            uint64_t page = at >> shift, stop = (page + 1) << shift;
            while (w.page < page)
                page_done(&w);
            stop = stop < end && stop ? stop : end;
            page_add(&w, stop - at, state, size);
            at = stop;
        }
        start = next;
    }
    for (uint64_t last = (w.end - 1) >> shift; w.page <= last;)
        page_done(&w);
}

/* For each page that a range overlaps, write its state, the share of its bytes in use (0: none,
 * 255: all), its bytes in use, and a block size. Add to sums[PAGE_STATES][COLUMNS].
 * Padding up to a granule counts with the block before it. */
API void fl_pages(const blocks *b, const range *ranges, uint64_t count, unsigned shift, const range *const *lists, const uint64_t *counts,
                  uint8_t *states, uint8_t *shares, uint32_t *used, uint32_t *sizes, uint64_t *sums) {
    for (const range *r = ranges; r < ranges + count; r++) {
        walk w = {.start = r->start, .end = r->end, .page = r->start >> shift, .shift = shift};
        if (w.start >= w.end)
            continue;
        list *into[] = {&w.known, &w.held, &w.metadata, &w.foreign};
        for (unsigned at = 0; at < 4; at++)
            *into[at] = list_from(lists[at], counts[at], w.start);
        w.states = states, w.shares = shares, w.used = used, w.sizes = sizes, w.sums = sums;
        walk_range(w, b);
        uint64_t pages = ((w.end - 1) >> shift) - w.page + 1;
        states += pages, shares += pages, used += pages, sizes += pages;
    }
}

static int run_found(words *out, uint64_t low, uint64_t high, uint64_t least, const range *where) {
    if (low >= high || (high - low < least && low != where->start && high != where->end))
        return DONE;
    return PUSH_ALL(out, low, high);
}

/* Return (start, end) of ranges without blocks in use, cached blocks or metadata: of at least
 * `least` bytes, or at an end of `where`. */
API int fl_free_runs(const blocks *b, const range *where, uint64_t least, words *out) {
    uint64_t start = 0, free_from = where->start;
    uint32_t index = where->start < where->end ? block_reaching(b, where->start, &start) : b->count;
    for (; index < b->count && start < where->end; next_block(b, &index, &start)) {
        if (b->states[index] == FREE)
            continue;
        if (run_found(out, free_from, start, least, where))
            return NO_MEMORY;
        uint64_t end = start + size_of(b, index);
        free_from = end > free_from ? end : free_from;
    }
    return run_found(out, free_from, where->end, least, where);
}

/* Return the bytes that two sorted lists of disjoint ranges have in common. */
API uint64_t fl_common(const range *left, uint64_t lefts, const range *right, uint64_t rights) {
    uint64_t found = 0;
    for (uint64_t a = 0, c = 0; a < lefts && c < rights;) {
        uint64_t low = left[a].start > right[c].start ? left[a].start : right[c].start;
        uint64_t high = left[a].end < right[c].end ? left[a].end : right[c].end;
        found += low < high ? high - low : 0;
        if (left[a].end < right[c].end)
            a++;
        else
            c++;
    }
    return found;
}

/* Find the type of each page: the first word (a vtable pointer, for example) that is common to the
 * blocks with most of the page's bytes in use. Write this word to found[page], or 0 if it is not in
 * `types`. Only blocks whose first word is in the piece are examined. `weights` belongs to `found`:
 * pass both to the calls for further pieces. */
API void fl_page_words(const blocks *b, const piece *p, const range *types, uint32_t type_count, const range *where, unsigned shift,
                       uint64_t *found, uint64_t *weights) {
    uint64_t first, count = piece_words(p, &first), start = 0, origin = where->start >> shift;
    const uint8_t *data = p->data + (first - p->address);
    uint64_t low = first > where->start ? first : where->start, high = first + count * WORD < where->end ? first + count * WORD : where->end;
    uint32_t index = low < high ? block_from(b, low, &start) : b->count;
    for (; index < b->count && start < high; next_block(b, &index, &start)) {
        uint64_t size = size_of(b, index), end = start + size;
        if (b->states[index] != IN_USE || size < WORD || start % WORD)
            continue;
        uint64_t word = load(data + (start - first));
        word = in_ranges(types, type_count, word) ? word : 0;
        end = end < where->end ? end : where->end;
        for (uint64_t at = start, stop; at < end; at = stop) {
            uint64_t page = at >> shift, place = page - origin;
            stop = (page + 1) << shift;
            stop = stop < end && stop ? stop : end;
            vote(&found[place], &weights[place], word, stop - at);
        }
    }
}
