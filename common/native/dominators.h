/* Dominator tree of the blocks that roots reach: semi-NCA (engine/reference/dominators.py) over a
 * depth-first numbering. To give a number to fewer blocks, either single-entry trees are collapsed
 * to their tops (tree_reduction.c), or leaf trees and joint leaves are left out (leaf_trees.c,
 * joint_leaves.c).
 *
 * Memory for each block: 16 bytes (20 if the sums of sizes need 8 bytes; 5 to 12 if leaf trees are
 * left out), and 4 more once `idoms` is needed. While computing: 4 bytes for each block, 20 for
 * each number (16 if leaf trees are left out), and 8 for each edge to a node with a lower number
 * that is not the parent. */
#ifndef FINDLEAKS_DOMINATORS_H
#define FINDLEAKS_DOMINATORS_H

#include "graph.h"

#include <stdlib.h>

/* numbers[block] before a block is visited: HELD | group if roots refer to it, BARRED if it must
 * not be visited, else UNSEEN. Lower values are depth-first numbers, and at the end places in
 * preorder. Until count_groups (or keep_numbers, if leaf trees are left out), the bits of each
 * element are inverted: UNSEEN is then 0, and the pages of blocks that no root refers to need not
 * be resident. Groups are visited in order: for each priority, its roots one by one, then the
 * blocks that several of them share. */
#define HELD 0x80000000u
#define UNSEEN 0xFFFFFFFFu
#define BARRED 0x7FFFFFFFu
#define NO_ROOT 0xFFFFFFFFu /* in place of a root's number: none */
#define IGNORED 0xFFFFFFFEu

#define IN_STEM 0x80000000u /* numbers of joint leaves: see joint_leaves.c */
#define JOINED 0x40000000u
#define STEM_EDGES 8u /* maximum for a stem that refers to joint leaves */

#define MANY_NODES UINT8_MAX
#define SUMMED 64u

#define UP 0x80000000u /* set in parents[]: the node has an edge back to its parent */

#define ROOT_NODE 0x80000000u /* in `nodes`: ROOT_NODE | root, or a block's index */
#define SHARED_NODE 0xFFFFFFFFu

typedef struct {
    uint32_t next, number; /* next edge to follow, and its block's number */
} frame;

typedef struct dominators {
    graph *g;
    uint32_t roots, priorities;
    uint32_t *lasts; /* last group of each priority: blocks shared by its roots */
    bool only_lost; /* only leaked blocks are in the tree */
    const uint64_t *bounds; /* the caller's, while scanning */
    const uint32_t *owners;
    uint64_t bound_count, bound;
    uint32_t otherwise; /* root of words below all bounds */
    uint32_t definite, possible; /* roots of leaked blocks, or NO_ROOT */
    /* the caller's: for each block the root it is merged into, NO_ROOT or IGNORED; or NULL */
    const uint32_t *merged;
    /* the caller's: the container of each block, or NO_ROOT; the owner of each container */
    const uint32_t *containers, *container_owners;
    uint32_t *numbers; /* by block */
    uint64_t *seen; /* bit by block: numbered or barred; fits the cache, unlike `numbers` */
    /* a bit by number, finally by place: the node may have an edge to a block that it does not
     * dominate */
    uint64_t *outward;
    uint32_t *starts, *targets; /* blocks that each root alone refers to, then shared ones */
    uint32_t group, target, priority; /* progress of the visit */
    uint32_t base; /* first number of this priority; edges to lower ones are ignored */
    unsigned phase;
    uint64_t at;
    uint32_t count; /* numbers assigned; finally the number of places */
    /* tree_reduction.c. By breadth-first rank: */
    /* the block; the rank that it was reached from (NONE: a root); blocks in its tree */
    uint32_t *order, *above, *weights;
    uint64_t *joins, *join_blocks; /* by rank, by block: join node, visited depth first */
    uint64_t *earlier;         /* a bit for each block: barred, or reached at an earlier priority */
    uint32_t ranks, join_count; /* their number */
    uint32_t edge; /* next edge of the block being surveyed, or whose joint leaves are found */
    /* leaf_trees.c. Whether leaf trees are left out, instead of collapsing single-entry trees. */
    bool leaf_trees;
    /* One bit for each block. `leaves`: it is a leaf. `left_out`: it is in a leaf tree. */
    uint64_t *leaves, *left_out;
    /* joint_leaves.c. One bit for each block. `joints`: it is a joint leaf. `skipped`: it is in
     * `joints` or `left_out`. */
    uint64_t *joints, *skipped;
    uint32_t joint_count;
    uint32_t *bases; /* first number of each priority */
    uint32_t *depths, linked; /* skip links: depth of each node; number of nodes that have links */
    /* If `firsts` is not NULL, `numbers` has only the `kept` blocks that are not left out, and
     * firsts[n] is the number of these blocks with an index lower than 64 * n. */
    uint32_t *firsts, kept;
    uint64_t all_sizes, all_bytes; /* sizes of all blocks, combined by OR; sum of these sizes */
    /* Indexed by depth-first number; number 0 is the node above all roots. At the end, `nodes` is
     * indexed by place. Until then it is NULL if leaf trees are left out of a tree without
     * containers. */
    uint32_t *nodes, *parents, *semis;
    /* path compression; then new places, and the next free place below each node */
    uint32_t *labels, *ancestors;
    /* Indexed by place. `placed`: the node. `counts`: the number of nodes that it retains, itself
     * included. */
    uint32_t *placed, *counts;
    /* Replaces `counts` if leaf trees are left out and few counts are MANY_NODES or more: `few` has
     * MANY_NODES for these, and `many` has them (place << 32 | count). The first `sorted` items of
     * `many` are sorted. */
    uint8_t *few;
    words many;
    uint64_t sorted;
    /* Indexed by place, with one more element at the end: the sum of the sizes of all nodes at
     * lower places, divided by 1 << unit. Elements have 4 bytes (`narrow`) if that is enough for
     * all sums, otherwise 8. */
    uint32_t *narrow;
    uint64_t *wide_sums;
    unsigned unit;
    /* Replaces `narrow` and `wide_sums` if leaf trees are left out: the sum for one in SUMMED
     * places. The last element is the sum of all sizes. */
    uint64_t *some_sums;
    uint32_t *idoms;                   /* place of the idom of each place; NULL until needed */
    uint32_t *places;                  /* of roots; before dominators_move: their numbers */
    uint32_t all;                      /* the number of places */
    LIST(frame) frames;
    words others; /* edges from higher numbers: target << 32 | source, sorted */
    /* Radix sort of the edges by a digit: `width` bits of the target from bit `shift` on.
     * `tallies`: where the edges with each value of the digit begin, then where they end.
     * `run_end`: the end of the edges that are being sorted. */
    uint32_t *tallies, digit;
    unsigned shift, width;
    uint64_t run_end;
    uint64_t steps; /* steps up the tree so far */
    uint32_t source; /* the node at which path compression continues; 0: none */
    bool upward, counted, jumping;
    uint64_t *moved; /* `outward` by place, while it is built */
} dominators;

/* Phases of leaf_trees.c, joint_leaves.c, tree_reduction.c, semidominators.c and preorder_layout.c.
 * Each returns 1 if work is left. */
int dominators_referred(dominators *d, int64_t *budget);
int dominators_leaves(dominators *d, int64_t *budget);
int dominators_stems(dominators *d, int64_t *budget);
int dominators_count_numbered(dominators *d, int64_t *budget);
int dominators_place_numbered(dominators *d, int64_t *budget);
int dominators_join_leaves(dominators *d, int64_t *budget);
int dominators_place_joint(dominators *d, int64_t *budget);
int dominators_weigh(dominators *d, int64_t *budget);
int dominators_place_numbers(dominators *d, int64_t *budget);
int dominators_attach(dominators *d, int64_t *budget);
int dominators_survey(dominators *d, int64_t *budget);
int dominators_joins(dominators *d, int64_t *budget);
int dominators_collapse(dominators *d, int64_t *budget);
int dominators_sort(dominators *d, int64_t *budget);
int dominators_semis(dominators *d, int64_t *budget);
int dominators_idoms(dominators *d, int64_t *budget);
int dominators_count(dominators *d, int64_t *budget);
int dominators_place_all(dominators *d, int64_t *budget);
int dominators_move(dominators *d, int64_t *budget);
int dominators_move_counts(dominators *d, int64_t *budget);
int dominators_grow(dominators *d, int64_t *budget);
int dominators_sum(dominators *d, int64_t *budget);

uint32_t dominators_search_place(const dominators *d, uint32_t index, uint32_t first);

/* dominator_queries.c. */
int keep_first(const dominators *d, uint32_t place, uint64_t limit, words *found);
int spread_of(const dominators *d, const uint32_t *places, uint32_t count, words *found);
int sizes_below(const dominators *d, const uint32_t *places, uint32_t count, words *found);

void reduction_free(dominators *d);

/* preorder_layout.c. dominators_find_idoms: compute `idoms`. set_count: set the number of nodes
 * that the node at a place retains. sort_many: sort `many`. many_at: find the count of a place in
 * `many`. sizes_at: add up the sizes of the nodes at places [first, end). */
int dominators_find_idoms(dominators *d);
int set_count(dominators *d, uint32_t place, uint32_t count);
void sort_many(dominators *d);
uint32_t many_at(const dominators *d, uint32_t place);
uint64_t sizes_at(const dominators *d, uint32_t first, uint32_t end);

/* Allocate an array by number unless it exists; false if out of memory. */
INLINE bool made(uint32_t **array, uint32_t count) { return *array || (*array = malloc(((size_t)count + 1) * sizeof **array)); }

/* Return whether the node is the top block of a collapsed tree: it is numbered, but its edges
 * are not followed. */
INLINE bool is_collapsed(const dominators *d, uint32_t node) { return d->join_blocks && !(node & ROOT_NODE) && !bit(d->join_blocks, node); }

INLINE bool is_left_out(const dominators *d, uint32_t index) { return d->left_out && bit(d->left_out, index); }

INLINE bool is_joint(const dominators *d, uint32_t index) { return d->joint_count && bit(d->joints, index); }

/* Return whether a block with few edges, the first of which is edge number `first`, has an earlier
 * edge to the target of its edge number `at`. */
INLINE bool is_repeated(const graph *g, uint32_t first, uint32_t at) {
    for (uint32_t before = first; before < first + at; before++)
        if (g->edges[before] >> INDEX_SHIFT == g->edges[first + at] >> INDEX_SHIFT)
            return true;
    return false;
}

/* Return a pointer to the number of a block that is not in a leaf tree. `firsts` must exist. */
INLINE uint32_t *kept_number(const dominators *d, uint32_t index) {
    uint64_t before = ~d->left_out[index >> 6] & ((UINT64_C(1) << (index & 63)) - 1);
    return &d->numbers[d->firsts[index >> 6] + (uint32_t)__builtin_popcountll(before)];
}

/* Return the place of a block in a complete tree; BARRED or more if no root reaches it. If the
 * block is in a leaf tree, its place is searched for from the place `first` on. */
INLINE uint32_t place_of_block(const dominators *d, uint32_t index, uint32_t first) {
    return d->firsts ? dominators_search_place(d, index, first) : d->numbers[index];
}

/* Return the number of nodes that the node at a place retains, itself included. */
INLINE uint32_t count_at(const dominators *d, uint32_t place) {
    return d->counts ? d->counts[place] : d->few[place] < MANY_NODES ? d->few[place] : many_at(d, place);
}

INLINE void prefetch_count(const dominators *d, uint32_t place) {
    __builtin_prefetch(d->counts ? (const void *)&d->counts[place] : &d->few[place]);
}

/* Return the sum of the sizes of the nodes at places lower than `place`. Requires `some_sums`. */
INLINE uint64_t sum_before(const dominators *d, uint32_t place) {
    return d->some_sums[place / SUMMED] + sizes_at(d, place / SUMMED * SUMMED, place);
}

/* Return the bytes that the node at a place of a complete tree retains. */
INLINE uint64_t bytes_at(const dominators *d, uint32_t place) {
    uint32_t end = place + count_at(d, place);
    if (d->some_sums)
        return end - place <= SUMMED ? sizes_at(d, place, end) : sum_before(d, end) - sum_before(d, place);
    return (d->narrow ? d->narrow[end] - d->narrow[place] : d->wide_sums[end] - d->wide_sums[place]) << d->unit;
}

/* Return the item at which a pass over [at, whole) must pause, and take the items up to it from
 * the budget. The budget in memory is not changed for each item: the next item would wait for
 * that store. */
INLINE uint64_t pause_of(uint64_t at, uint64_t whole, int64_t *budget) {
    uint64_t left = whole - at, some = *budget > 0 ? (uint64_t)*budget : 0;
    some = left < some ? left : some;
    *budget -= (int64_t)some;
    return at + some;
}

/* Return the priority of a group. There are few priorities, so a linear search is enough. */
INLINE uint32_t priority_of(const dominators *d, uint32_t group) {
    uint32_t priority = 0;
    while (group > d->lasts[priority])
        priority++;
    return priority;
}

/* Return whether to ignore an edge into a container's node. It counts only if it comes from the
 * container's owner or from another node of the container. */
INLINE bool edge_ignored(const dominators *d, uint32_t index, uint32_t from) {
    uint32_t container = d->containers ? d->containers[index] : NO_ROOT;
    return container != NO_ROOT && d->container_owners[container] != from && !(from < ROOT_NODE && d->containers[from] == container);
}

/* Record that `root` refers to a block. The root with the earliest priority gets the block; if
 * several roots of one priority refer to it, none of them does. */
INLINE void hold(dominators *d, uint32_t index, uint32_t root) {
    uint32_t *number = &d->numbers[index], priority = 0; /* inverted */
    if (root == NO_ROOT || edge_ignored(d, index, ROOT_NODE | root))
        return;
    while (root + priority >= d->lasts[priority])
        priority++;
    uint32_t held = ~*number, group = root + priority, known = held == UNSEEN ? d->priorities : priority_of(d, held & ~HELD);
    if (priority <= known && held != (HELD | group))
        *number = ~(HELD | (priority < known ? group : d->lasts[priority]));
}

/* Return the root that owns the word at this address: usually the same as for the previous word. */
INLINE uint32_t root_at(dominators *d, uint64_t address) {
    uint64_t at = d->bound;
    if ((at && address < d->bounds[at - 1]) || (at < d->bound_count && address >= d->bounds[at])) {
        at = 0;
        BISECT(at, d->bound_count, middle, d->bounds[middle] <= address)
        d->bound = at;
    }
    return at ? d->owners[at - 1] : d->otherwise;
}

#endif
