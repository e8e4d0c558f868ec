/* Results of a search for disguised pointers: counted by size and offset, and as references. */
#include "disguises.h"

#include <stdlib.h>

static int compare(const void *left, const void *right) {
    const disguised *a = left, *b = right;
    if (a->form != b->form)
        return a->form < b->form ? -1 : 1;
    if (a->target != b->target)
        return a->target < b->target ? -1 : 1;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

/* Merge all results into one list, by form, target, offset and place. Threads find them in no
 * order. */
static int sort(disguises *d) {
    disguised_list *all = &d->found[0];
    for (unsigned thread = 1; thread < MOST_THREADS; thread++) {
        for (uint64_t at = 0; at < d->found[thread].count; at++)
            if (PUSH(*all, d->found[thread].items[at]))
                return NO_MEMORY;
        DROP(d->found[thread].items);
        d->found[thread] = (disguised_list){0};
    }
    if (!d->sorted && all->count)
        qsort(all->items, all->count, sizeof *all->items, compare);
    d->sorted = true;
    return DONE;
}

/* Return the usable sizes of the leak heads, in no order, repeated. */
API int fl_leak_head_sizes(const graph *g, words *sizes) {
    for (uint64_t at = 0; at < g->lost->leak_heads.count; at++)
        if (words_push(sizes, size_of(g->b, g->lost->indices[g->lost->leak_heads.items[at].place])))
            return NO_MEMORY;
    return DONE;
}

/* Return the leak head that is reachable if this leaked block is: the block itself, or the head
 * of its cycle, because all blocks of a cycle reach one another. NONE for other indirect blocks. */
static uint32_t find_reached_head(const lost *l, uint32_t place) {
    const leak_head *of = &l->leak_heads.items[l->low[place]];
    return of->place == place || of->cycle > 1 ? of->place : NONE;
}

/* Return keys (form << 48 | size's number << 16 | offset) of the results: one for each address
 * to which words of a form lead (`hits`), for each leak head that a form leads to (`heads`), and
 * for each leak head that it leads to from memory that is not leaked (`live`). Forms with more than
 * `most` words, numbers that look like tagged pointers, and sizes that are not in the ascending
 * list, have no keys. Call it before references are added to the graph. */
API int fl_disguises_keys(disguises *d, const uint64_t *sizes, uint64_t size_count, words *hits, words *heads, words *live) {
    const graph *g = d->g;
    const lost *l = g->lost;
    /* by leak head: 2 * (form + 1), plus 1 if seen as live */
    const disguised *before = NULL; /* the last one that was counted */
    uint32_t *seen = calloc((size_t)l->count + 1, sizeof *seen);
    int failed = seen ? sort(d) : NO_MEMORY;
    for (uint64_t at = 0; at < d->found[0].count && !failed; at++) {
        const disguised *one = &d->found[0].items[at];
        uint32_t place = place_of(l, one->target), head = find_reached_head(l, place);
        uint64_t size = size_of(g->b, l->indices[head == NONE ? place : head]), number = 0;
        BISECT(number, size_count, middle, sizes[middle] < size)
        if (one->like_tagged || d->counts[one->form] > d->most || number == size_count || sizes[number] != size)
            continue;
        uint64_t key = (uint64_t)one->form << 48 | number << 16 | one->offset;
        bool again = before && before->form == one->form && before->target == one->target && before->offset == one->offset;
        before = one;
        failed = again ? DONE : words_push(hits, key);
        if (head == NONE)
            continue;
        uint32_t mark = 2 * (one->form + 1), marked = seen[head];
        if (marked >> 1 != one->form + 1) {
            seen[head] = mark;
            failed = failed ? failed : words_push(heads, key);
        }
        bool from_live = one->source == NONE || place_of(l, one->source) == NONE;
        if (from_live && !(seen[head] & 1)) {
            seen[head] |= 1;
            failed = failed ? failed : words_push(live, key);
        }
    }
    free(seen);
    return failed;
}

static bool is_in(uint64_t number, uint64_t offset, const uint64_t *accepted, uint64_t count) {
    for (uint64_t at = 0; at < count; at++)
        if (accepted[at] == (number << 16 | offset))
            return true;
    return false;
}

/* Return whether a pointer is of an accepted kind. A number that may also be the lower half of a
 * tagged pointer is rejected if tagged pointers to this word are accepted. */
static bool is_accepted(const disguises *d, const disguised *one, const uint64_t *accepted, uint64_t count) {
    uint64_t start = one->offset & ~(uint64_t)(WORD - 1);
    return is_in(one->form, one->offset, accepted, count) && !(one->like_tagged && is_in(d->numbers[TAGGED], start, accepted, count));
}

static int compare_sources(const void *left, const void *right) {
    const disguised *a = left, *b = right;
    if (a->source != b->source)
        return a->source < b->source ? -1 : 1;
    if (a->place != b->place)
        return a->place < b->place ? -1 : 1;
    return a->form < b->form ? -1 : a->form > b->form;
}

/* Return three words for each disguised pointer of the accepted kinds (form << 16 | offset), by
 * source and place: its place, source << 32 | target, form << 16 | offset. Other results are
 * dropped. */
API int fl_disguises_references(disguises *d, const uint64_t *accepted, uint64_t count, words *found) {
    int failed = sort(d);
    disguised_list *all = &d->found[0];
    uint64_t kept = 0;
    for (uint64_t at = 0; at < all->count; at++)
        if (is_accepted(d, &all->items[at], accepted, count))
            all->items[kept++] = all->items[at];
    all->count = kept;
    d->sorted = false;
    if (kept)
        qsort(all->items, kept, sizeof *all->items, compare_sources);
    for (uint64_t at = 0; at < kept && !failed; at++) {
        const disguised *one = &all->items[at];
        failed = PUSH_ALL(found, one->place, (uint64_t)one->source << 32 | one->target, (uint64_t)one->form << 16 | one->offset);
    }
    return failed;
}

static uint64_t count_bits(const _Atomic uint64_t *bits) {
    uint64_t count = 0;
    for (unsigned at = 0; at < TRIAL_SLOTS / 64; at++)
        count += (uint64_t)__builtin_popcountll(bits[at]);
    return count;
}

/* Return for each form how many addresses in blocks were found, and how many of these are in the
 * first word of a block in use. */
API int fl_disguises_tries(const disguises *d, words *found) {
    for (uint32_t number = 0; number < d->form_count && d->tries; number++)
        if (PUSH_ALL(found, count_bits(d->tries[number][0]), count_bits(d->tries[number][1])))
            return NO_MEMORY;
    return DONE;
}

API void fl_disguises_free(disguises *d) {
    for (unsigned at = 0; at < MOST_THREADS; at++)
        free(d->found[at].items);
    free(d->tries);
    free(d);
}
