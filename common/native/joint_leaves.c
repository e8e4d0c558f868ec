/* Dominator tree: joint leaves, which have no depth-first numbers.
 *
 * A *joint leaf* refers to no block, and several references lead to it, none of them from a root.
 * A string that several objects share is one. The immediate dominator of a joint leaf is the lowest
 * common ancestor of its referrers in the dominator tree, so it is found when the tree of the other
 * nodes is complete. A stem (leaf_trees.c) counts as its own referrer, of which it is a child. If
 * one stem is the only reachable referrer of a joint leaf, it retains the leaf.
 *
 * The number of a joint leaf has these values, in this order: UNSEEN if no root reaches the leaf;
 * the ancestor found so far; JOINED | place; the place. An ancestor is the number of a node, or
 * count + priority for the node above all roots, or IN_STEM | number of the stem's referrer. When
 * numbers are replaced by places, it becomes IN_STEM | place of the stem's referrer. */
#include "dominators.h"

#include <stdlib.h>

#define AHEAD 16u         /* edges and blocks ahead whose numbers are prefetched */
#define LONG_WALK 65536u  /* steps up the tree from one node */
#define STEPS_AN_EDGE 4u  /* steps on average: beyond either, skip links are built */

/* Count the numbered nodes that each node retains, itself included. */
int dominators_count_numbered(dominators *d, int64_t *budget) {
    if (!d->joint_count)
        return DONE;
    if (!d->at) {
        d->jumping = false;
        d->steps = 0;
        for (uint32_t number = 0; number < d->count; number++)
            d->semis[number] = 1;
    }
    return dominators_count(d, budget);
}

/* Compute the place of each numbered node in a preorder of these nodes. */
int dominators_place_numbered(dominators *d, int64_t *budget) { return d->joint_count ? dominators_place_all(d, budget) : DONE; }

/* Return whether node `above` is node `below`, or retains it. */
INLINE bool retains(const dominators *d, uint32_t above, uint32_t below) { return d->labels[below] - d->labels[above] < d->semis[above]; }

INLINE uint32_t priority_at(const dominators *d, uint32_t number) {
    uint32_t priority = 0;
    if (number >= d->count)
        return number - d->count;
    while (priority + 1 < d->priorities && number >= d->bases[priority + 1])
        priority++;
    return priority;
}

/* Return the lowest common ancestor of two nodes of the same priority. `above` may be the node
 * above all roots. */
INLINE uint32_t common_ancestor(dominators *d, uint32_t above, uint32_t source, int64_t *budget) {
    uint32_t steps = 0;
    if (above >= d->count)
        return above;
    if (d->depths) {
        for (; above && !retains(d, above, source); --*budget)
            above = retains(d, d->ancestors[above], source) ? d->parents[above] : d->ancestors[above];
    } else {
        for (; above && !retains(d, above, source); steps++)
            above = d->parents[above];
        *budget -= steps;
        d->steps += steps;
        d->jumping = d->jumping || steps > LONG_WALK || d->steps > STEPS_AN_EDGE * d->g->edge_count + LONG_WALK;
    }
    return above ? above : d->count + priority_at(d, source);
}

/* Record a reference to a joint leaf: from node `source`, or from a stem to which `source` refers
 * (`in_stem`). References from a later priority do not count. */
INLINE void join(dominators *d, uint32_t *number, uint32_t source, uint32_t in_stem, int64_t *budget) {
    uint32_t known = *number, before = known & ~IN_STEM;
    if (known != UNSEEN && d->priorities > 1) {
        uint32_t mine = priority_at(d, source), its = priority_at(d, before);
        if (mine > its)
            return;
        known = mine < its ? UNSEEN : known;
    }
    if (known == UNSEEN) {
        *number = source | in_stem;
        return;
    }
    uint32_t found = common_ancestor(d, before, source, budget);
    if (found != before && before < d->count)
        set_bit(d->outward, before);
    if (found != source && !in_stem)
        set_bit(d->outward, source);
    *number = found;
}

/* Build skip links (E. Myers 1983): `ancestors` has them, and `depths` has the depth of each
 * node. */
static int link_nodes(dominators *d, int64_t *budget) {
    uint32_t *jumps = d->ancestors;
    if (!made(&d->depths, d->count))
        return NO_MEMORY;
    for (; d->linked < d->count; d->linked++) {
        if (--*budget < 0)
            return 1;
        uint32_t number = d->linked, idom = d->parents[number], over = number ? jumps[idom] : 0;
        bool joins = number && d->depths[idom] - d->depths[over] == d->depths[over] - d->depths[jumps[over]];
        d->depths[number] = number ? d->depths[idom] + 1 : 0;
        jumps[number] = !number ? 0 : joins ? jumps[over] : idom;
    }
    d->jumping = false;
    return DONE;
}

INLINE void prefetch_joint(const dominators *d, uint64_t edge) {
    if (edge + AHEAD < d->g->edge_count && is_joint(d, d->g->edges[edge + AHEAD] >> INDEX_SHIFT))
        __builtin_prefetch(kept_number(d, d->g->edges[edge + AHEAD] >> INDEX_SHIFT), 1);
}

/* Record the references of a stem. `source`: the number of the block that refers to it. */
static void join_below(dominators *d, uint32_t stem, uint32_t source, int64_t *budget) {
    const graph *g = d->g;
    uint32_t count, first = edges_of(g, stem, &count);
    for (uint32_t at = 0; at < count; at++) {
        uint32_t target = g->edges[first + at] >> INDEX_SHIFT;
        if (is_joint(d, target) && !is_repeated(g, first, at))
            join(d, kept_number(d, target), source, IN_STEM, budget);
    }
    *budget -= count;
}

/* Find the immediate dominators of the joint leaves. */
INLINE int join_leaves_as(dominators *d, int64_t *budget) {
    const graph *g = d->g;
    const uint32_t *number = kept_number(d, (uint32_t)d->at), *end = d->numbers + d->kept;
    for (; d->at < g->count; d->at++) {
        uint32_t index = (uint32_t)d->at, count;
        if (bit(d->left_out, index))
            continue;
        if (end - number > AHEAD && number[AHEAD] < d->count)
            __builtin_prefetch(&d->labels[number[AHEAD]]);
        uint32_t source = *number++;
        if (source >= d->count || is_joint(d, index)) /* not reached; or an ancestor's number */
            continue;
        uint64_t first = edges_of(g, index, &count);
        for (uint64_t at = first + d->edge; at < first + count; at++) {
            if (*budget <= 0 || d->jumping) {
                d->edge = (uint32_t)(at - first);
                return 1;
            }
            --*budget;
            uint32_t target = g->edges[at] >> INDEX_SHIFT;
            prefetch_joint(d, at);
            if (is_joint(d, target))
                join(d, kept_number(d, target), source, 0, budget);
            else if (bit(d->left_out, target) && !bit(d->leaves, target))
                join_below(d, target, source, budget);
        }
        d->edge = 0;
        --*budget;
    }
    return DONE;
}

static int join_leaves_plain(dominators *d, int64_t *budget) { return join_leaves_as(d, budget); }
POPCNT static int join_leaves_popcnt(dominators *d, int64_t *budget) { return join_leaves_as(d, budget); }

int dominators_join_leaves(dominators *d, int64_t *budget) {
    int more = DONE;
    if (!d->joint_count)
        return DONE;
    do {
        if (d->jumping && (more = link_nodes(d, budget)))
            return more;
        more = (has_popcnt() ? join_leaves_popcnt : join_leaves_plain)(d, budget);
    } while (more && d->jumping);
    if (!more)
        DROP(d->depths);
    return more;
}

/* Give the joint leaves places: after the numbered children of their dominators, by index. Leaves
 * below stems get their places in dominators_attach. */
int dominators_place_joint(dominators *d, int64_t *budget) {
    uint64_t end = d->joint_count ? d->g->count / 64 + 1 : 0;
    for (; d->at < end; d->at++) {
        if (*budget <= 0)
            return 1;
        *budget -= 64;
        for (uint64_t left = d->joints[d->at]; left; left &= left - 1) {
            uint32_t *number = kept_number(d, (uint32_t)d->at * 64 + (uint32_t)__builtin_ctzll(left));
            if (*number < IN_STEM)
                *number = JOINED | d->ancestors[*number < d->count ? *number : 0]++;
        }
    }
    DROP(d->ancestors);
    DROP(d->parents);
    return DONE;
}
