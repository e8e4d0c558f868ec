/* The dominator tree of what roots reach: semi-NCA (see ../engine/python/dominators.py) over a depth-first numbering, of all blocks or of those
 * that are left when bushes are cut to their first block (tree_reduction.c).
 *
 * 24 bytes a block reached, and 8 for each reference from a higher number to a lower one that is not its parent, while computing; 24 then.
 */
#ifndef FINDLEAKS_DOMINATORS_H
#define FINDLEAKS_DOMINATORS_H

#include "graph.h"

/* In `numbers`: of a block not visited yet, which roots refer to it (HELD | their group; UNSEEN: none). BARRED: it is not to be
 * visited. Less: its number, in the end its place. Groups stand in the order of visiting: the roots of a priority, one by one, and behind
 * them a group of what several of that priority refer to; then the next priority. */
#define HELD 0x80000000u
#define UNSEEN 0xFFFFFFFFu
#define BARRED 0x7FFFFFFFu
#define NO_ROOT 0xFFFFFFFFu /* in place of a root */
#define IGNORED 0xFFFFFFFEu

#define UP 0x80000000u /* with a parent: the node refers to its parent, too */

#define ROOT_NODE 0x80000000u /* in `nodes`: ROOT_NODE | root, or a block's index */
#define SHARED_NODE 0xFFFFFFFFu

typedef struct {
    uint32_t next, number; /* the edge to follow, and whose it is */
} frame;

typedef struct dominators {
    graph *g;
    uint32_t roots, priorities;
    uint32_t *lasts; /* the last group of each priority: its several */
    bool only_lost; /* only blocks that are lost count */
    const uint64_t *bounds; /* the caller's, while scanning */
    const uint32_t *owners;
    uint64_t bound_count, bound;
    uint32_t otherwise; /* the root of words below all bounds */
    uint32_t definite, possible; /* roots of lost blocks, or NO_ROOT */
    const uint32_t *merged; /* the caller's: of each block the root it is merged into, NO_ROOT or IGNORED; or NULL */
    const uint32_t *parts, *container_owners; /* the caller's: of each block which thing it is a part of, or NO_ROOT; of each thing the node that keeps it */
    uint32_t *numbers; /* by block */
    uint64_t *seen;    /* a bit for each: it has a number, or is barred. `numbers` alone would do, but these stay in a cache */
    uint64_t *outward; /* by number, in the end by place, a bit: it may refer to a block that something else holds */
    uint32_t *starts, *targets; /* blocks that each root alone refers to, and behind them those that several do */
    uint32_t group, target, priority; /* where visiting stands */
    uint32_t base;                /* the first number given in this priority: those before are no business of it */
    unsigned phase;
    uint64_t at;
    uint32_t count; /* numbers given; in the end how many places there are */
    /* tree_reduction.c: by rank, breadth first, for as long as there are bushes. */
    uint32_t *order, *above, *weights; /* the block; the rank of what it was reached from, NONE: a root's; how many there are from it on */
    uint64_t *joins, *join_blocks; /* a bit for each by rank, by block: it is to be visited depth first */
    uint64_t *earlier;         /* a bit for each block: of an earlier priority, or barred */
    uint32_t ranks, join_count, edge;  /* how many; where surveying stands in a block's references */
    /* By number, 0 for the node above all roots. */
    uint32_t *nodes, *parents, *semis; /* in the end by place: nodes, their holders, and how many blocks these retain */
    uint32_t *labels, *ancestors;      /* of shortening ways; then the places, and where the next goes that a node holds */
    uint64_t *placed; /* by place, while these are found: the count << 32 | the node */
    uint64_t *bytes;  /* by place: what a node retains */
    uint32_t *places;                  /* of roots */
    frame *frames;
    uint64_t depth, frame_capacity;
    uint64_t *others, *spare; /* references: the lower number << 32 | the higher, sorted */
    uint64_t other_count, other_capacity;
    uint32_t *tallies; /* of sorting */
    unsigned shift;
    uint64_t steps; /* up the tree */
    uint32_t source; /* where shortening a way stands; 0: nowhere */
    bool upward, counted, jumping;
    uint64_t *moved; /* `outward` by place, while that is made */
} dominators;

/* tree_reduction.c, semidominators.c, preorder_layout.c: phases, in this order. 1: the budget is used up, and there is more to do. */
int dominators_survey(dominators *d, int64_t *budget);
int dominators_joins(dominators *d, int64_t *budget);
int dominators_collapse(dominators *d, int64_t *budget);
int dominators_sort(dominators *d, int64_t *budget);
int dominators_semis(dominators *d, int64_t *budget);
int dominators_idoms(dominators *d, int64_t *budget);
int dominators_count(dominators *d, int64_t *budget);
int dominators_place(dominators *d, int64_t *budget);
int dominators_move(dominators *d, int64_t *budget);
int dominators_grow(dominators *d, int64_t *budget);
int dominators_settle(dominators *d, int64_t *budget);
int dominators_sum(dominators *d, int64_t *budget);

/* dominator_queries.c. */
int keep_first(const dominators *d, uint32_t place, uint64_t limit, words *found);
int spread_of(const dominators *d, const uint32_t *places, uint32_t count, bool all, words *found);

void reduction_free(dominators *d);

/* A node that is met while visiting and not looked into: the first block of a bush. */
INLINE bool is_collapsed(const dominators *d, uint32_t node) { return d->join_blocks && !(node & ROOT_NODE) && !bit(d->join_blocks, node); }

/* The priority of a group. There are few. */
INLINE uint32_t priority_of(const dominators *d, uint32_t group) {
    uint32_t priority = 0;
    while (group > d->lasts[priority])
        priority++;
    return priority;
}

/* A reference that does not count: to a part of something, from what is neither another part of it nor its keeper. */
INLINE bool edge_ignored(const dominators *d, uint32_t index, uint32_t from) {
    uint32_t part = d->parts ? d->parts[index] : NO_ROOT;
    return part != NO_ROOT && d->container_owners[part] != from && !(from < ROOT_NODE && d->parts[from] == part);
}

/* A root of an earlier priority has what it refers to; of two in one priority neither. */
INLINE void hold(dominators *d, uint32_t index, uint32_t root) {
    uint32_t *number = &d->numbers[index], priority = 0;
    if (root == NO_ROOT || edge_ignored(d, index, ROOT_NODE | root))
        return;
    while (root + priority >= d->lasts[priority])
        priority++;
    uint32_t held = *number, group = root + priority, known = held == UNSEEN ? d->priorities : priority_of(d, held & ~HELD);
    if (priority <= known && held != (HELD | group))
        *number = HELD | (priority < known ? group : d->lasts[priority]);
}

/* The root that a word at this address belongs to: most often the one of the word before. */
INLINE uint32_t root_at(dominators *d, uint64_t address) {
    uint64_t at = d->bound;
    if ((at && address < d->bounds[at - 1]) || (at < d->bound_count && address >= d->bounds[at])) {
        uint64_t low = 0, high = d->bound_count;
        while (low < high) {
            uint64_t middle = low + (high - low) / 2;
            if (d->bounds[middle] <= address)
                low = middle + 1;
            else
                high = middle;
        }
        d->bound = at = low;
    }
    return at ? d->owners[at - 1] : d->otherwise;
}

#endif
