/* Computes which fields of an owner reach which blocks. All memory that the owner retains is
 * below its children in the dominator tree, and an edge into a child's subtree from elsewhere
 * refers to the child itself. Fields therefore reach whole subtrees, and no new numbering is
 * needed. A subtree is searched when its label changes, at most twice. */
#include "dominators.h"

#include <stdlib.h>

#define QUEUED 0x80000000u /* set in a label: the child is queued */
#define SPENT (1u << 16)   /* queue items that are done before they are dropped */
#define FAR 24u            /* blocks ahead whose groups are prefetched */
#define NEAR_BY 16u        /* blocks ahead whose edges are prefetched */
#define SOON 8u            /* blocks ahead whose targets' places are prefetched */
#define LOOKED_AT 4u       /* number of these targets that are prefetched */
#define TAKEN 64u          /* children taken from the queue at once, so that prefetches overlap */

typedef struct fields {
    const dominators *d;
    uint32_t place, span, fields; /* the owner's; its places; number of fields */
    /* the place of the last block in a leaf tree: that of the next one is often near */
    uint32_t found;
    uint64_t *children; /* one bit for each place after the owner's: set if the node is a child */
    /* for each place after the owner's: 0: no field; 1 + n: field n only; 1 + `fields`: several */
    uint32_t *labels;
    /* children to search; `both`: those that several fields reach, searched first */
    words queue, both;
    uint64_t head;     /* next in `queue` */
    uint32_t next[TAKEN], next_count, next_at; /* taken from it, and how many are done */
    uint32_t child, at; /* the child searched, the place reached; 0: none */
    unsigned phase;
    uint64_t done;
    uint32_t *starts, *heads, *ends; /* children by label; cumulated blocks up to each */
    uint32_t *all;                   /* all labelled children, ascending */
    uint32_t all_count;
    uint64_t *sums; /* blocks and bytes by label */
} fields;

API void fl_fields_free(fields *f) {
    FREE_ALL(f->children, f->labels, f->queue.items, f->both.items, f->starts, f->heads, f->ends, f->all, f->sums, f);
}

/* Create the search for the node at `place` in the tree `d`. The tree must be complete, and must
 * live longer than the search. `span`: number of places of the node; 0 if it was not reached. */
API fields *fl_fields_new(const dominators *d, uint32_t place, uint32_t span, uint32_t count) {
    fields *f = calloc(1, sizeof *f);
    if (!f)
        return NULL;
    f->d = d;
    f->place = place;
    f->span = span;
    f->fields = count;
    f->children = calloc((size_t)f->span / 64 + 1, sizeof *f->children);
    f->labels = calloc((size_t)f->span + 1, sizeof *f->labels);
    f->starts = calloc((size_t)count + 3, sizeof *f->starts);
    f->sums = calloc(2 * ((size_t)count + 2), sizeof *f->sums);
    if (!f->children || !f->labels || !f->starts || !f->sums) {
        fl_fields_free(f);
        return NULL;
    }
    for (uint32_t at = 1; at < span; at += count_at(d, place + at))
        set_bit(f->children, at);
    return f;
}

INLINE bool is_child(const fields *f, uint32_t place) { return place - f->place < f->span && bit(f->children, place - f->place); }

INLINE void prefetch_place(const dominators *d, uint32_t index) {
    __builtin_prefetch(d->firsts ? (const void *)&d->firsts[index >> 6] : &d->numbers[index]);
}

/* Follow an edge to a block from node `from`, which was reached with this label (1 + field, or
 * several). */
INLINE int reach(fields *f, uint32_t index, uint32_t label, uint32_t from) {
    uint32_t place = place_of_block(f->d, index, f->found);
    if (is_left_out(f->d, index) && place < f->d->count)
        f->found = place;
    if (!is_child(f, place) || edge_ignored(f->d, index, from))
        return DONE;
    uint32_t *mine = &f->labels[place - f->place], before = *mine & ~QUEUED, several = f->fields + 1;
    if (before == label || before == several)
        return DONE;
    *mine = QUEUED | (before ? several : label);
    return words_push(before || label == several ? &f->both : &f->queue, place);
}

API int fl_fields_refer(fields *f, uint32_t field, const uint32_t *indices, uint64_t count) {
    int failed = DONE;
    for (uint64_t at = 0; at < count && !failed; at++)
        failed = reach(f, indices[at], field + 1, f->d->nodes[f->place]);
    return failed;
}

API int fl_fields_words(fields *f, uint32_t field, const uint64_t *values, uint64_t count) {
    int failed = DONE;
    for (uint64_t at = 0; at < count && !failed; at++) {
        uint32_t index = block_find(f->d->g->b, values[at]);
        if (index != NONE)
            failed = reach(f, index, field + 1, f->d->nodes[f->place]);
    }
    return failed;
}

/* Return the first place in [at, end) whose block may have edges out of its subtree, or `end`. */
INLINE uint32_t next_outward(const dominators *d, uint32_t at, uint32_t end) {
    for (; at < end; at = (at | 63) + 1) {
        uint64_t bits = d->outward[at >> 6] >> (at & 63);
        if (bits) {
            at += (uint32_t)__builtin_ctzll(bits);
            return at < end ? at : end;
        }
    }
    return end;
}

INLINE void look_ahead(const fields *f, uint32_t at, uint32_t end) {
    const dominators *d = f->d;
    const graph *g = d->g;
    uint32_t count, first;
    if (end - at <= FAR)
        return;
    __builtin_prefetch(&g->groups[d->nodes[at + FAR] / GROUP]);
    __builtin_prefetch(&g->edges[edges_of(g, d->nodes[at + NEAR_BY], &count)]);
    first = edges_of(g, d->nodes[at + SOON], &count);
    for (uint32_t each = 0; each < count && each < LOOKED_AT; each++)
        prefetch_place(d, g->edges[first + each] >> INDEX_SHIFT);
}

/* Take the next children from the queue. Children that several fields reach come first: their
 * label is final. The others alternate, so that fields with common children meet early, and most
 * subtrees are searched once. The children may be anywhere in memory, so each step prefetches
 * for all of them. */
static void take(fields *f) {
    const dominators *d = f->d;
    const graph *g = d->g;
    uint32_t count, first[TAKEN], counts[TAKEN];
    f->next_count = f->next_at = 0;
    while (f->next_count < TAKEN && (f->both.count || f->head < f->queue.count)) {
        uint32_t child = (uint32_t)(f->both.count ? f->both.items[--f->both.count] : f->queue.items[f->head++]);
        f->next[f->next_count++] = child;
        __builtin_prefetch(&d->nodes[child]);
        prefetch_count(d, child);
        __builtin_prefetch(&f->labels[child - f->place]);
    }
    if (f->head >= SPENT && f->head >= f->queue.count / 2) {
        f->queue.count -= f->head;
        memmove(f->queue.items, f->queue.items + f->head, f->queue.count * sizeof *f->queue.items);
        f->head = 0;
    }
    for (uint32_t each = 0; each < f->next_count; each++)
        __builtin_prefetch(&g->groups[d->nodes[f->next[each]] / GROUP]);
    for (uint32_t each = 0; each < f->next_count; each++) {
        first[each] = edges_of(g, d->nodes[f->next[each]], &count);
        counts[each] = count < LOOKED_AT ? count : LOOKED_AT;
        __builtin_prefetch(&g->edges[first[each]]);
    }
    for (uint32_t each = 0; each < f->next_count; each++)
        for (uint32_t edge = 0; edge < counts[each]; edge++)
            prefetch_place(d, g->edges[first[each] + edge] >> INDEX_SHIFT);
    for (uint32_t each = 0; each < f->next_count; each++)
        for (uint32_t edge = 0; edge < counts[each]; edge++) {
            uint32_t target = g->edges[first[each] + edge] >> INDEX_SHIFT, place = is_left_out(d, target) ? BARRED : place_of_block(d, target, 0);
            if (place - f->place < f->span)
                __builtin_prefetch(&f->labels[place - f->place]);
        }
}

/* Search the subtrees of labelled children for edges to other children. Only `outward` blocks
 * are searched. */
static int spread_labels(fields *f, int64_t *budget) {
    const dominators *d = f->d;
    const graph *g = d->g;
    for (;;) {
        if (!f->child) {
            if (f->next_at == f->next_count)
                take(f);
            if (!f->next_count)
                return DONE;
            f->child = f->at = f->next[f->next_at++];
            /* already searched with its final label */
            if (!(f->labels[f->child - f->place] & QUEUED)) {
                f->child = 0;
                if (--*budget < 0)
                    return 1;
                continue;
            }
            f->labels[f->child - f->place] &= ~QUEUED;
        }
        uint32_t count, end = f->child + count_at(d, f->child), label = f->labels[f->child - f->place] & ~QUEUED;
        bool only = end - f->child == f->span - 1; /* no other child exists */
        for (; !only; f->at++) {
            if (--*budget < 0)
                return 1;
            uint32_t next = next_outward(d, f->at, end);
            f->done += next - f->at;
            f->at = next;
            if (next == end)
                break;
            look_ahead(f, next, end);
            uint32_t source = d->nodes[f->at], first = edges_of(g, source, &count);
            for (uint32_t each = 0; each < count; each++, --*budget) {
                uint32_t target = g->edges[first + each] >> INDEX_SHIFT;
                /* A leaf tree is below its only referrer, so it is below the same child. */
                if (!is_left_out(d, target) && place_of_block(d, target, 0) - f->child >= end - f->child && reach(f, target, label, source))
                    return NO_MEMORY;
            }
        }
        f->child = 0;
    }
}

static int count(fields *f, int64_t *budget) {
    uint32_t end = f->place + f->span;
    for (f->at = f->at ? f->at : f->place + 1; f->at < end; f->at += count_at(f->d, f->at)) {
        uint32_t label = f->labels[f->at - f->place];
        if (--*budget < 0)
            return 1;
        f->starts[label + 1] += label != 0;
        f->all_count += label != 0;
    }
    for (uint32_t label = 0; label <= f->fields + 1; label++)
        f->starts[label + 1] += f->starts[label];
    f->heads = malloc(((size_t)f->all_count + 1) * sizeof *f->heads);
    f->ends = malloc(((size_t)f->all_count + 1) * sizeof *f->ends);
    f->all = malloc(((size_t)f->all_count + 1) * sizeof *f->all);
    f->all_count = 0;
    return f->heads && f->ends && f->all ? DONE : NO_MEMORY;
}

static int list(fields *f, int64_t *budget) {
    const dominators *d = f->d;
    uint32_t end = f->place + f->span;
    for (f->at = f->at ? f->at : f->place + 1; f->at < end; f->at += count_at(d, f->at)) {
        uint32_t label = f->labels[f->at - f->place], *start = &f->starts[label];
        if (--*budget < 0)
            return 1;
        if (!label)
            continue;
        uint64_t *sum = &f->sums[2 * (label - 1)];
        sum[0] += count_at(d, f->at);
        sum[1] += bytes_at(d, f->at);
        f->heads[*start] = f->at;
        f->ends[(*start)++] = (uint32_t)sum[0];
        f->all[f->all_count++] = f->at;
    }
    for (uint32_t label = f->fields + 1; label; label--) /* each now begins where it ended before */
        f->starts[label] = f->starts[label - 1];
    return DONE;
}

/* Returns 1 if work is left, 0 at the end. */
API int fl_fields_compute(fields *f, int64_t budget) {
    static int (*const phases[])(fields *, int64_t *) = {spread_labels, count, list};
    for (; f->phase < sizeof phases / sizeof *phases; f->phase++, f->at = 0) {
        int more = phases[f->phase](f, &budget);
        if (more)
            return more;
    }
    return DONE;
}

API uint64_t fl_fields_done(const fields *f) { return f->done; } /* blocks searched */

/* Return what fl_dominators_children does, for a field or for `several`. */
API int fl_fields_children(const fields *f, uint32_t field, uint64_t limit, words *found) {
    for (uint32_t at = f->starts[field + 1]; at < f->starts[field + 2]; at++)
        if (keep_first(f->d, f->heads[at], limit, found))
            return NO_MEMORY;
    return DONE;
}

/* Return what fl_dominators_spread and fl_dominators_sizes do, for a field or for `several`. */
API int fl_fields_spread(const fields *f, uint32_t field, words *found) {
    return spread_of(f->d, f->heads + f->starts[field + 1], f->starts[field + 2] - f->starts[field + 1], found);
}

API int fl_fields_sizes(const fields *f, uint32_t field, words *found) {
    return sizes_below(f->d, f->heads + f->starts[field + 1], f->starts[field + 2] - f->starts[field + 1], found);
}

/* Pass the arrays to Python: labels by place; by label: starts, children, cumulated blocks; all
 * children; sums by label. */
API void fl_fields_arrays(const fields *f, const void **arrays, uint32_t *count) {
    const void *found[] = {f->labels, f->starts, f->heads, f->ends, f->all, f->sums};
    memcpy(arrays, found, sizeof found);
    *count = f->all_count;
}
