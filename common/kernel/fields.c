/* Which of an owner's fields reach what. Everything that the owner holds hangs from its children in the tree of dominators, and whatever leads
 * into one child's part from elsewhere leads to the child itself: so a field, or several, reach a child with all that it retains,
 * and nothing need be numbered anew. Children are looked through when their label changes, twice at most.
 */
#include "dominators.h"

#include <stdlib.h>

#define QUEUED 0x80000000u /* with a label */
#define SPENT (1u << 16)   /* items of the queue that are done, and thrown away from then on */
#define FAR 24u            /* blocks ahead whose bytes, */
#define NEAR_BY 16u        /* references */
#define SOON 8u            /* and whose targets' places are asked for */
#define LOOKED_AT 4u       /* of them */
#define TAKEN 64u          /* children that are taken from the queue together: what they need is asked for at once */

typedef struct {
    const dominators *d;
    uint32_t place, span, fields; /* of the owner, and how many it and what it retains take */
    uint32_t *labels;             /* by place behind the owner's: 0, or 1 + the field that reaches this child; 1 + fields: several */
    words queue, both; /* children to look through, in turn; before them those that several fields reach */
    uint64_t head;     /* of the queue */
    uint32_t next[TAKEN], next_count, next_at; /* taken from it, and how many of these are done */
    uint32_t child, at;                        /* being looked through, and where; 0: none */
    unsigned phase;
    uint64_t done;
    uint32_t *starts, *heads, *ends; /* children by label; how many blocks up to each's last */
    uint32_t *all;                   /* children that some field reaches, ascending */
    uint32_t all_count;
    uint64_t *sums; /* blocks and bytes by label */
} fields;

API void fl_fields_free(fields *f) {
    if (!f)
        return;
    free(f->labels);
    free(f->queue.items);
    free(f->both.items);
    free(f->starts);
    free(f->heads);
    free(f->ends);
    free(f->all);
    free(f->sums);
    free(f);
}

/* Of the node at `place` in `d`, which is complete and outlives this; `span` places are its own, 0 if no root reaches it. */
API fields *fl_fields_new(const dominators *d, uint32_t place, uint32_t span, uint32_t count) {
    fields *f = calloc(1, sizeof *f);
    if (!f)
        return NULL;
    f->d = d;
    f->place = place;
    f->span = span;
    f->fields = count;
    f->labels = calloc((size_t)f->span + 1, sizeof *f->labels);
    f->starts = calloc((size_t)count + 3, sizeof *f->starts);
    f->sums = calloc(2 * ((size_t)count + 2), sizeof *f->sums);
    if (!f->labels || !f->starts || !f->sums) {
        fl_fields_free(f);
        return NULL;
    }
    return f;
}

/* What has a label is a child: looked at first, as there is most to look at where most have one. */
INLINE bool is_child(const fields *f, uint32_t place) {
    if (place - f->place >= f->span || place == f->place)
        return false;
    return f->labels[place - f->place] || f->d->parents[place] == f->place;
}

/* Something with this label, 1 + a field or several, leads to the block, from a node. */
INLINE int reach(fields *f, uint32_t index, uint32_t label, uint32_t from) {
    uint32_t place = f->d->numbers[index];
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

/* The first place from `at` on, below `end`, of a block that may refer to what something else holds; `end` if there is none. */
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

/* Ask for what looking through a child will need soon. */
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
        __builtin_prefetch(&d->numbers[g->edges[first + each] >> INDEX_SHIFT]);
}

/* Take the next children. What several fields reach is looked through first: its label will not change. The others take turns, so that
 * fields that lead to the same meet early, and most of it is looked through once. There may be many, of a block each, that lie anywhere:
 * what looking through them will need is asked for step by step, of all of them at once. */
static void take(fields *f) {
    const dominators *d = f->d;
    const graph *g = d->g;
    uint32_t count, first[TAKEN], counts[TAKEN];
    f->next_count = f->next_at = 0;
    while (f->next_count < TAKEN && (f->both.count || f->head < f->queue.count)) {
        uint32_t child = (uint32_t)(f->both.count ? f->both.items[--f->both.count] : f->queue.items[f->head++]);
        f->next[f->next_count++] = child;
        __builtin_prefetch(&d->nodes[child]);
        __builtin_prefetch(&d->semis[child]);
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
            __builtin_prefetch(&d->numbers[g->edges[first[each] + edge] >> INDEX_SHIFT]);
    for (uint32_t each = 0; each < f->next_count; each++)
        for (uint32_t edge = 0; edge < counts[each]; edge++) {
            uint32_t place = d->numbers[g->edges[first[each] + edge] >> INDEX_SHIFT];
            if (place - f->place < f->span) {
                __builtin_prefetch(&d->parents[place]);
                __builtin_prefetch(&f->labels[place - f->place]);
            }
        }
}

/* Look through the parts of the children that fields reach for what leads to other children: only blocks marked for it can. */
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
            if (!(f->labels[f->child - f->place] & QUEUED)) { /* it was among those that several reach */
                f->child = 0;
                if (--*budget < 0)
                    return 1;
                continue;
            }
            f->labels[f->child - f->place] &= ~QUEUED;
        }
        uint32_t count, end = f->child + d->semis[f->child], label = f->labels[f->child - f->place] & ~QUEUED;
        bool only = end - f->child == f->span - 1; /* there is no other child that anything could lead to */
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
                if (d->numbers[target] - f->child >= end - f->child && reach(f, target, label, source))
                    return NO_MEMORY;
            }
        }
        f->child = 0;
    }
}

/* Count the children by label, */
static int count(fields *f, int64_t *budget) {
    uint32_t end = f->place + f->span;
    for (f->at = f->at ? f->at : f->place + 1; f->at < end; f->at += f->d->semis[f->at]) {
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

/* and list them, ascending. */
static int list(fields *f, int64_t *budget) {
    const dominators *d = f->d;
    uint32_t end = f->place + f->span;
    for (f->at = f->at ? f->at : f->place + 1; f->at < end; f->at += d->semis[f->at]) {
        uint32_t label = f->labels[f->at - f->place], *start = &f->starts[label];
        if (--*budget < 0)
            return 1;
        if (!label)
            continue;
        uint64_t *sum = &f->sums[2 * (label - 1)];
        sum[0] += d->semis[f->at];
        sum[1] += d->bytes[f->at];
        f->heads[*start] = f->at;
        f->ends[(*start)++] = (uint32_t)sum[0];
        f->all[f->all_count++] = f->at;
    }
    for (uint32_t label = f->fields + 1; label; label--) /* each now begins where it ended */
        f->starts[label] = f->starts[label - 1];
    return DONE;
}

/* 1: there is more to do; 0: all is known. */
API int fl_fields_compute(fields *f, int64_t budget) {
    static int (*const phases[])(fields *, int64_t *) = {spread_labels, count, list};
    for (; f->phase < sizeof phases / sizeof *phases; f->phase++, f->at = 0) {
        int more = phases[f->phase](f, &budget);
        if (more)
            return more;
    }
    return DONE;
}

/* Blocks looked at so far; no more than twice what the owner retains. */
API uint64_t fl_fields_done(const fields *f) { return f->done; }

/* As fl_dominators_children, of a field, or of what several reach. */
API int fl_fields_children(const fields *f, uint32_t field, uint64_t limit, words *found) {
    *found = (words){NULL, 0, 0};
    for (uint32_t at = f->starts[field + 1]; at < f->starts[field + 2]; at++)
        if (keep_first(f->d, f->heads[at], limit, found))
            return NO_MEMORY;
    return DONE;
}

/* As fl_dominators_spread. */
API int fl_fields_spread(const fields *f, uint32_t field, bool all, words *found) {
    uint32_t first = f->starts[field + 1], count = f->starts[field + 2] - first;
    return spread_of(f->d, f->heads + first, count, all, found);
}

/* Labels by place behind the owner's; children by label and where each label's begin, by 1 + field; blocks up to each; all children; sums. */
API void fl_fields_arrays(const fields *f, const void **arrays, uint32_t *count) {
    const void *found[] = {f->labels, f->starts, f->heads, f->ends, f->all, f->sums};
    memcpy(arrays, found, sizeof found);
    *count = f->all_count;
}
