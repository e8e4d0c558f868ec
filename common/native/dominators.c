/* Dominator tree: edges from the roots, and the depth-first numbering of what they reach. */
#include "dominators.h"

#include <stdlib.h>

#define PHASES 26u
#define REFERRING 4u /* numbers of phases: REFERRING to ATTACHING */
#define SURVEYING 7u
#define VISITING 10u
#define SORTING 11u
#define JOINING 16u
#define WEIGHING 17u
#define PLACING_JOINT 20u
#define GROWING 23u
#define ATTACHING 24u
#define MANY 0x80000000u /* number of a block with more than PREFETCHED edges */
#define FAR 12u          /* edges ahead, for such a block */
#define SOON 6u
#define MISSES 4 /* cache misses that a step may wait for in sequence; marking waits for one */
#define PREFETCHED 8u /* edges of a block that are prefetched when it is entered */
#define BELOW 8 /* blocks 3 * BELOW frames down the stack are prefetched, in steps */

API void fl_dominators_free(dominators *d) {
    reduction_free(d);
    FREE_ALL(d->numbers, d->seen, d->outward, d->moved, d->lasts, d->starts, d->targets, d->leaves, d->left_out, d->joints, d->skipped,
             d->bases, d->depths, d->firsts, d->nodes, d->parents, d->semis, d->labels, d->ancestors, d->placed, d->counts, d->few, d->many.items, d->narrow, d->wide_sums, d->some_sums, d->idoms, d->places,
             d->frames.items, d->others.items, d->tallies, d);
}

/* Create a tree of all blocks in use, or of leaked blocks. `later`: the first root of each
 * priority except the first, ascending. */
API dominators *fl_dominators_new(graph *g, uint32_t roots, bool only_lost, const uint32_t *later, uint32_t priorities) {
    dominators *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    trim_memory(g->count);
    d->g = g;
    d->roots = roots;
    d->only_lost = only_lost;
    d->definite = d->possible = NO_ROOT;
    d->numbers = calloc((size_t)g->count + 1, sizeof *d->numbers); /* UNSEEN, inverted */
    d->seen = calloc((size_t)g->count / 64 + 1, sizeof *d->seen);
    d->priorities = priorities + 1;
    d->lasts = malloc(((size_t)priorities + 1) * sizeof *d->lasts);
    d->starts = calloc((size_t)roots + priorities + 3, sizeof *d->starts);
    if (!d->numbers || !d->seen || !d->lasts || !d->starts) {
        fl_dominators_free(d);
        return NULL;
    }
    for (uint32_t priority = 0; priority <= priorities; priority++)
        d->lasts[priority] = (priority < priorities ? later[priority] : roots) + priority;
    return d;
}

API void fl_dominators_refer(dominators *d, uint32_t root, const uint32_t *indices, uint64_t count) {
    for (uint64_t at = 0; at < count; at++)
        hold(d, indices[at], root);
}

/* Root `definite` refers to definite blocks; root `possible` to possible blocks that a root or a
 * reachable block refers to. */
API void fl_dominators_lost(dominators *d, uint32_t definite, uint32_t possible) {
    d->definite = definite;
    d->possible = possible;
}

/* roots[block]: the root that gets the block's edges, or IGNORED or NO_ROOT. The array must
 * outlive the computation. */
API void fl_dominators_merge(dominators *d, const uint32_t *roots) { d->merged = roots; }

/* Leave leaf trees out of the numbering, instead of collapsing single-entry trees. */
API void fl_dominators_expect_leaf_trees(dominators *d) { d->leaf_trees = true; }

/* Containers and their owners: see dominators.h. Both arrays must outlive the computation. */
API void fl_dominators_set_owners(dominators *d, const uint32_t *containers, const uint32_t *container_owners) {
    d->containers = containers;
    d->container_owners = container_owners;
}

static int refer_merged(dominators *d, int64_t *budget) {
    const graph *g = d->g;
    for (; d->merged && d->at < g->count; d->at++) {
        uint32_t root = d->merged[d->at], count;
        if (--*budget < 0)
            return 1;
        if (root >= IGNORED || !is_used(g, (uint32_t)d->at))
            continue;
        for (const uint32_t *edge = g->edges + edges_of(g, (uint32_t)d->at, &count), *end = edge + count; edge < end; edge++, --*budget)
            hold(d, *edge >> INDEX_SHIFT, root);
    }
    return DONE;
}

/* Add edges to definite blocks, and to possible blocks that roots or reachable blocks refer to. */
static int refer_lost(dominators *d, int64_t *budget) {
    const graph *g = d->g;
    for (; d->definite != NO_ROOT && d->at < g->count; d->at++) {
        uint32_t index = (uint32_t)d->at, count;
        uint8_t kind = g->kinds[index];
        if (--*budget < 0)
            return 1;
        if (kind == DEFINITE)
            hold(d, index, d->definite);
        else if (kind == POSSIBLE && (bit(g->root_starts, index) || bit(g->root_interiors, index)))
            hold(d, index, d->possible);
        if (kind != REACHABLE)
            continue;
        for (const uint32_t *edge = g->edges + edges_of(g, index, &count), *end = edge + count; edge < end; edge++, --*budget)
            if (g->kinds[*edge >> INDEX_SHIFT] == POSSIBLE)
                hold(d, *edge >> INDEX_SHIFT, d->possible);
    }
    return DONE;
}

/* Bar the blocks that are not part of the tree. Count the others by group, and add up their
 * sizes. */
static int count_groups(dominators *d, int64_t *budget) {
    const graph *g = d->g;
    const uint8_t *states = g->b->states, *kinds = d->only_lost ? g->kinds : NULL;
    const uint32_t *merges = d->merged, *column = g->b->sizes;
    uint32_t *numbers = d->numbers, counted = 0, pause = (uint32_t)pause_of(d->at, g->count, budget);
    uint64_t sizes = 0, bytes = 0;
    for (uint32_t index = (uint32_t)d->at; index < pause; index++) {
        bool merged = merges && merges[index] != NO_ROOT;
        bool counts = !merged && (kinds ? kinds[index] >= POSSIBLE : states[index] == IN_USE);
        uint32_t held = counts ? ~numbers[index] : BARRED;
        if (!d->leaf_trees)
            numbers[index] = held;
        if (!counts) {
            set_bit(d->seen, index);
            continue;
        }
        if (held != UNSEEN)
            d->starts[(held & ~HELD) + 1]++;
        counted++;
        uint64_t size = size_in(g->b, column, index);
        sizes |= size;
        bytes += size;
    }
    d->count += counted;
    d->all_sizes |= sizes;
    d->all_bytes += bytes;
    d->at = pause;
    if (pause < g->count)
        return 1;
    uint32_t groups = d->roots + d->priorities;
    for (uint32_t group = 0; group < groups; group++)
        d->starts[group + 1] += d->starts[group];
    d->targets = malloc(((size_t)d->starts[groups] + 1) * sizeof *d->targets);
    return d->targets ? DONE : NO_MEMORY;
}

static int list(dominators *d, int64_t *budget) {
    const uint32_t *numbers = d->numbers;
    uint32_t pause = (uint32_t)pause_of(d->at, d->g->count, budget);
    for (uint32_t index = (uint32_t)d->at; index < pause; index++) {
        uint32_t held = d->leaf_trees ? ~numbers[index] : numbers[index];
        if (held > BARRED && held != UNSEEN && !bit(d->seen, index))
            d->targets[d->starts[held & ~HELD]++] = index;
    }
    d->at = pause;
    if (pause < d->g->count)
        return 1;
    /* each group now begins where it ended before */
    for (uint32_t group = d->roots + d->priorities - 1; group; group--)
        d->starts[group] = d->starts[group - 1];
    d->starts[0] = 0;
    return DONE;
}

static int begin(dominators *d) {
    size_t most = (size_t)d->count + d->roots + 1;
    d->places = malloc(((size_t)d->roots + 1) * sizeof *d->places);
    d->bases = calloc((size_t)d->priorities + 1, sizeof *d->bases);
    if (!d->places || !d->bases || ((!d->leaf_trees || d->containers) && !(d->nodes = malloc(most * sizeof *d->nodes))))
        return NO_MEMORY;
    d->parents = malloc(most * sizeof *d->parents);
    d->semis = malloc(most * sizeof *d->semis);
    d->outward = calloc(most / 64 + 1, sizeof *d->outward);
    if (!d->parents || !d->semis || !d->outward)
        return NO_MEMORY;
    if (d->nodes)
        d->nodes[0] = SHARED_NODE;
    /* Memory is allocated only for edges that are stored. If address space is limited, the list
     * grows on demand. */
    d->others.items = malloc((size_t)d->g->edge_count * sizeof *d->others.items);
    d->others.capacity = d->others.items ? d->g->edge_count : 0;
    d->parents[0] = d->semis[0] = 0;
    d->count = 1;
    return DONE;
}

/* Give a node its number. Here and below, `leaves`: whether leaf trees are left out. Callers pass a
 * constant, so that the compiler makes two versions of the visit. */
INLINE uint32_t give(dominators *d, uint32_t node, uint32_t parent, bool leaves) {
    uint32_t number = d->count++;
    if (!leaves || d->nodes)
        d->nodes[number] = node;
    d->parents[number] = d->semis[number] = parent;
    return number;
}

INLINE uint32_t *number_of(const dominators *d, uint32_t index, bool leaves) {
    return leaves ? kept_number(d, index) : &d->numbers[index];
}

INLINE int enter(dominators *d, uint32_t index, uint32_t parent, bool leaves) {
    const graph *g = d->g;
    uint32_t number = give(d, index, parent, leaves), count, first = edges_of(g, index, &count);
    set_bit(d->seen, index);
    *number_of(d, index, leaves) = number;
    bool follows = count > PREFETCHED;
    for (uint32_t each = 0; each < count && each < PREFETCHED; each++) {
        uint32_t target = g->edges[first + each] >> INDEX_SHIFT;
        if (leaves && bit(d->skipped, target))
            continue;
        follows = true;
        __builtin_prefetch(&g->groups[target / GROUP]);
        __builtin_prefetch(number_of(d, target, leaves));
    }
    return follows ? PUSH(d->frames, (frame){first, count > PREFETCHED ? number | MANY : number}) : DONE;
}

/* Store an edge to a node with a lower number. It replaces an edge to the same node from the
 * source's parent: path compression from the source meets the parent, too. For example, each node
 * of a list may refer to the list's owner. */
INLINE int refer_back(dominators *d, uint32_t number, uint32_t source) {
    uint64_t target = (uint64_t)number << 32;
    if (d->others.count && d->others.items[d->others.count - 1] == (target | (d->parents[source] & ~UP))) {
        d->others.items[d->others.count - 1] = target | source;
        return DONE;
    }
    return words_push(&d->others, target | source);
}

/* Handle an edge to a numbered block: from an ancestor (perhaps its semidominator) or a later
 * node. */
INLINE int again(dominators *d, uint32_t number, uint32_t source) {
    if (number < d->base || number == BARRED)
        return DONE;
    if ((d->parents[source] & ~UP) == number) { /* see dominators_idoms */
        d->parents[source] |= UP;
        d->upward = true;
        return DONE;
    }
    if (number >= source) { /* reached from `source` or from a descendant */
        if ((d->parents[number] & ~UP) != source)
            set_bit(d->outward, source);
        if (source < d->semis[number])
            d->semis[number] = source;
        return DONE;
    }
    set_bit(d->outward, source);
    return refer_back(d, number, source);
}

INLINE int meet(dominators *d, uint32_t index, uint32_t source, bool leaves) {
    if (leaves && bit(d->skipped, index))
        return DONE;
    if (!leaves && is_collapsed(d, index)) {
        if (!bit(d->seen, index)) /* seen: in a tree that an earlier priority reached */
            give(d, index, source, leaves);
        set_bit(d->seen, index);
        return DONE;
    }
    return bit(d->seen, index) ? again(d, *number_of(d, index, leaves), source) : enter(d, index, source, leaves);
}

/* Prefetch the blocks that will be visited soon: first their groups, then their edges. */
INLINE void look_ahead(const dominators *d, uint32_t next, bool leaves) {
    const graph *g = d->g;
    if (g->edge_count - next <= FAR)
        return;
    uint32_t far = g->edges[next + FAR] >> INDEX_SHIFT, count;
    __builtin_prefetch(&g->groups[far / GROUP]);
    __builtin_prefetch(number_of(d, far, leaves));
    __builtin_prefetch(&g->edges[edges_of(g, g->edges[next + SOON] >> INDEX_SHIFT, &count)]);
}

/* Prefetch the next targets of blocks farther down the stack, which were entered long ago. */
INLINE void look_below(const dominators *d, bool leaves) {
    const graph *g = d->g;
    if (d->frames.count < 3 * BELOW)
        return;
    const frame *top = &d->frames.items[d->frames.count];
    __builtin_prefetch(&g->edges[top[-3 * BELOW].next]);
    uint32_t edge = g->edges[top[-2 * BELOW].next];
    __builtin_prefetch(number_of(d, edge >> INDEX_SHIFT, leaves));
    if (!(edge & LAST))
        __builtin_prefetch(number_of(d, g->edges[top[-2 * BELOW].next + 1] >> INDEX_SHIFT, leaves));
    uint32_t next = top[-BELOW].next;
    do {
        edge = g->edges[next++];
        uint32_t number = *number_of(d, edge >> INDEX_SHIFT, leaves); /* left out: not its number */
        if (number < d->count) {
            __builtin_prefetch(&d->parents[number]);
            __builtin_prefetch(&d->semis[number]);
        }
    } while (!(edge & LAST) && next < top[-BELOW].next + 2);
}

/* Number blocks depth first from the roots. Edges are followed in the order of words. */
INLINE int visit_roots(dominators *d, int64_t *budget, bool leaves) {
    const graph *g = d->g;
    for (;;) {
        while (d->frames.count) {
            if (--*budget < 0)
                return 1;
            frame *top = &d->frames.items[d->frames.count - 1];
            uint32_t edge = g->edges[top->next++], source = top->number;
            if (source & MANY)
                look_ahead(d, top->next, leaves);
            if (edge & LAST) {
                d->frames.count--;
                look_below(d, leaves);
            } else if (!(source & MANY)) {
                uint32_t count;
                __builtin_prefetch(&g->edges[edges_of(g, g->edges[top->next] >> INDEX_SHIFT, &count)]);
            }
            uint32_t target = edge >> INDEX_SHIFT;
            if (!(d->containers && edge_ignored(d, target, d->nodes[source & ~MANY])) && meet(d, target, source & ~MANY, leaves))
                return NO_MEMORY;
        }
        if (d->priority == d->priorities)
            return DONE;
        if (--*budget < 0)
            return 1;
        if (d->source == 0 && d->group != d->lasts[d->priority])
            d->source = d->places[d->group - d->priority] = give(d, ROOT_NODE | (d->group - d->priority), 0, leaves);
        if (d->target < d->starts[d->group + 1]) {
            if (meet(d, d->targets[d->target++], d->source, leaves))
                return NO_MEMORY;
            continue;
        }
        if (d->group++ == d->lasts[d->priority]) {
            d->priority++;
            d->bases[d->priority] = d->base = d->count;
        }
        d->source = 0;
    }
}

static int visit_all(dominators *d, int64_t *budget) { return visit_roots(d, budget, false); }
static int visit_without_leaf_trees_plain(dominators *d, int64_t *budget) { return visit_roots(d, budget, true); }
POPCNT static int visit_without_leaf_trees_popcnt(dominators *d, int64_t *budget) { return visit_roots(d, budget, true); }

static int visit_without_leaf_trees(dominators *d, int64_t *budget) {
    return (has_popcnt() ? visit_without_leaf_trees_popcnt : visit_without_leaf_trees_plain)(d, budget);
}

static void shrink(words *list) {
    uint64_t *items = list->count ? realloc(list->items, (size_t)list->count * sizeof *items) : NULL;
    if (!list->count)
        DROP(list->items);
    list->items = items ? items : list->items;
    list->capacity = list->items ? list->count : 0;
}

static int visit(dominators *d, int64_t *budget) {
    if (!d->parents && begin(d))
        return NO_MEMORY;
    int more = (d->leaf_trees ? visit_without_leaf_trees : visit_all)(d, budget);
    if (!more) { /* the following phases take most memory */
        DROP(d->seen);
        DROP(d->skipped);
        DROP(d->frames.items);
        shrink(&d->others);
    }
    return more;
}

API uint32_t fl_dominators_progress(const dominators *d) {
    static const uint16_t begins[PHASES + 1] = {0,   10,  10,  40,  60,  100, 140, 180, 200, 210, 220,
                                                /* measured */
                                                520, 560, 680, 720, 720, 720, 720, 740, 760, 780, 780, 820, 850, 860, 930, 1000};
    bool by_block = d->phase < SURVEYING || d->phase == JOINING || d->phase == WEIGHING || d->phase == ATTACHING;
    uint64_t whole = by_block ? d->g->count : d->phase == SORTING ? d->others.count : d->count, done = d->at;
    if (d->phase >= PHASES)
        return 1000;
    if (d->phase == REFERRING)
        whole = d->g->edge_count;
    if (d->phase == VISITING)
        whole = d->join_blocks ? d->join_count : d->g->count, done = d->count;
    if (d->phase == PLACING_JOINT)
        whole = d->g->count / 64 + 1;
    if (d->phase == GROWING)
        whole = d->ranks;
    return begins[d->phase] + (uint32_t)((begins[d->phase + 1] - begins[d->phase]) * (done < whole ? done : whole) / (whole + 1));
}

/* Return 1 if work is left; 0 if the tree is complete. */
API int fl_dominators_compute(dominators *d, int64_t budget) {
    static int (*const phases[PHASES])(dominators *, int64_t *) = {
        refer_lost, refer_merged, count_groups, list, dominators_referred, dominators_leaves, dominators_stems, dominators_survey,
        dominators_joins, dominators_collapse, visit, dominators_sort, dominators_semis, dominators_idoms, dominators_count_numbered,
        dominators_place_numbered, dominators_join_leaves, dominators_weigh, dominators_count, dominators_place_all, dominators_place_joint,
        dominators_move_counts, dominators_move, dominators_grow, dominators_attach, dominators_sum,
    };
    budget = budget / MISSES + 1;
    for (; d->phase < PHASES; d->phase++, d->at = 0) {
        int more = phases[d->phase](d, &budget);
        if (more)
            return more;
    }
    return DONE;
}
