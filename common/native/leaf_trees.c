/* Dominator tree: leaf trees, which have no depth-first numbers.
 *
 * A *leaf* refers to no block. A *stem* refers only to leaves, or has at most STEM_EDGES references
 * and refers only to leaves and joint leaves (joint_leaves.c). Each leaf and stem has exactly one
 * reference, which is not from a root, so its referrer is its immediate dominator. In a Java heap,
 * half of the objects are leaves (arrays of characters, boxed numbers), and most strings are stems.
 * The depth-first visit skips leaves and stems: it tests one bit, which is probably in the cache.
 * They get the last of the places that belong to their referrer.
 *
 * References from unreachable blocks count, too. Therefore a block with only one reachable referrer
 * may get a number. */
#include "dominators.h"

#include <stdlib.h>

#define AHEAD 16u /* blocks ahead whose counts are prefetched */

/* Collect the referenced blocks in `left_out`, and those with several references in `leaves`. */
int dominators_referred(dominators *d, int64_t *budget) {
    const graph *g = d->g;
    if (!d->leaf_trees)
        return DONE;
    if (!d->left_out) {
        size_t bits = (size_t)g->count / 64 + 1;
        d->left_out = calloc(bits, sizeof *d->left_out);
        d->leaves = calloc(bits, sizeof *d->leaves);
        d->joints = calloc(bits, sizeof *d->joints);
        d->skipped = calloc(bits, sizeof *d->skipped);
        if (!d->left_out || !d->leaves || !d->joints || !d->skipped)
            return NO_MEMORY;
    }
    /* edges[0] is unused */
    uint64_t *once = d->left_out, *several = d->leaves, at = d->at ? d->at : 1;
    uint64_t pause = at < g->edge_count ? pause_of(at, g->edge_count, budget) : at;
    for (; at < pause; at++) {
        uint32_t index = g->edges[at] >> INDEX_SHIFT;
        uint64_t mask = UINT64_C(1) << (index & 63);
        several[index >> 6] |= once[index >> 6] & mask;
        once[index >> 6] |= mask;
    }
    d->at = at;
    return at < g->edge_count;
}

/* Return whether a block refers to a block of the tree, except one that a stem may refer to if
 * `may_be_stem` is set. The bits of blocks that are not in the tree are set in `seen`. */
static bool refers(const dominators *d, uint32_t index, bool may_be_stem) {
    const graph *g = d->g;
    uint32_t count;
    for (const uint32_t *edge = g->edges + edges_of(g, index, &count), *end = edge + count; edge < end; edge++) {
        uint32_t target = *edge >> INDEX_SHIFT;
        if (may_be_stem && (bit(d->leaves, target) || (count <= STEM_EDGES && bit(d->joints, target))))
            continue;
        if (!bit(d->seen, target))
            return true;
    }
    return false;
}

/* `bits` are those of 64 blocks to which references lead. Return those that may be joint leaves, or
 * in a leaf tree. */
static uint64_t candidates(const dominators *d, uint64_t word, uint64_t bits) {
    for (uint64_t left = bits &= ~d->seen[word]; left; left &= left - 1) {
        uint64_t index = word * 64 + (unsigned)__builtin_ctzll(left);
        if (d->numbers[index] != (uint32_t)~UNSEEN || (d->containers && d->containers[index] != NO_ROOT))
            bits &= ~(left & -left);
    }
    return bits;
}

/* Return the blocks in `bits` that refer to no block of the tree; or, if `stems` is set, those that
 * are stems. */
static uint64_t without_references(const dominators *d, uint64_t word, uint64_t bits, bool stems) {
    for (uint64_t left = bits; left; left &= left - 1)
        if (refers(d, (uint32_t)(word * 64) + (uint32_t)__builtin_ctzll(left), stems))
            bits &= ~(left & -left);
    return bits;
}

/* Find the leaves and the joint leaves; `left_out` then has the candidates for stems, and the
 * leaves. */
int dominators_leaves(dominators *d, int64_t *budget) {
    /* Joint leaves need a bit of the numbers. */
    bool joins = (uint64_t)d->g->count + d->roots + d->priorities < JOINED;
    for (uint64_t end = d->leaf_trees ? d->g->count / 64 + 1 : 0; d->at < end; d->at++) {
        if (*budget <= 0)
            return 1;
        *budget -= 64;
        uint64_t several = d->leaves[d->at];
        d->left_out[d->at] = candidates(d, d->at, d->left_out[d->at] & ~several);
        d->leaves[d->at] = without_references(d, d->at, d->left_out[d->at], false);
        d->joints[d->at] = joins ? without_references(d, d->at, candidates(d, d->at, several), false) : 0;
        d->joint_count += (uint32_t)__builtin_popcountll(d->joints[d->at]);
    }
    return DONE;
}

/* A word of `left_out` describes 64 blocks. Append the numbers of those blocks that are not left
 * out to the numbers kept so far. */
static void keep_numbers(dominators *d, uint64_t word) {
    uint32_t *numbers = d->numbers, kept = d->kept;
    uint64_t index = word * 64, left = ~d->left_out[word];
    if (d->g->count - index < 64)
        left &= (UINT64_C(1) << (d->g->count - index)) - 1;
    d->firsts[word] = kept;
    for (; left; left &= left - 1) {
        unsigned at = (unsigned)__builtin_ctzll(left);
        numbers[kept++] = d->seen[word] >> at & 1 ? BARRED : ~numbers[index + at];
    }
    d->kept = kept;
}

/* Find the stems, and remove the numbers of blocks in leaf trees. */
int dominators_stems(dominators *d, int64_t *budget) {
    if (d->leaf_trees && !d->firsts && !(d->firsts = malloc(((size_t)d->g->count / 64 + 1) * sizeof *d->firsts)))
        return NO_MEMORY;
    for (uint64_t end = d->leaf_trees ? d->g->count / 64 + 1 : 0; d->at < end; d->at++) {
        if (*budget <= 0)
            return 1;
        *budget -= 64;
        uint64_t leaves = d->leaves[d->at];
        d->left_out[d->at] = leaves | without_references(d, d->at, d->left_out[d->at] & ~leaves, true);
        d->skipped[d->at] = d->left_out[d->at] | d->joints[d->at];
        d->count -= (uint32_t)__builtin_popcountll(d->skipped[d->at]);
        keep_numbers(d, d->at);
    }
    /* One more element: `kept_number` of the last block may be read even if it is left out. */
    uint32_t *numbers = d->leaf_trees ? realloc(d->numbers, ((size_t)d->kept + 1) * sizeof *numbers) : NULL;
    d->numbers = numbers ? numbers : d->numbers;
    return DONE;
}

static uint32_t leaf_tree_size(const dominators *d, uint32_t index, uint32_t referrer);

/* Return the number of blocks in the leaf trees below a block with this number. */
static uint32_t left_out_below(const dominators *d, uint32_t index, uint32_t number) {
    const graph *g = d->g;
    uint32_t count, found = 0;
    for (const uint32_t *edge = g->edges + edges_of(g, index, &count), *end = edge + count; edge < end; edge++)
        if (bit(d->left_out, *edge >> INDEX_SHIFT))
            found += leaf_tree_size(d, *edge >> INDEX_SHIFT, number);
    return found;
}

/* Return whether the block is a joint leaf that a stem retains, and that has no place yet.
 * `referrer`: the number, later the place, of the stem's referrer. It distinguishes the stem from
 * others that also refer to the leaf: those that no root reaches, and those of a later priority. */
static bool is_in_stem(const dominators *d, uint32_t index, uint32_t referrer) {
    return is_joint(d, index) && *kept_number(d, index) == (IN_STEM | referrer);
}

/* Return the number of blocks that a stem retains, without the stem. */
static uint32_t retained_by_stem(const dominators *d, uint32_t index, uint32_t referrer) {
    const graph *g = d->g;
    uint32_t count, first = edges_of(g, index, &count), found = 0;
    for (uint32_t at = 0; at < count; at++) {
        uint32_t target = g->edges[first + at] >> INDEX_SHIFT;
        found += bit(d->leaves, target) || (is_in_stem(d, target, referrer) && !is_repeated(g, first, at));
    }
    return found;
}

/* Return the number of blocks in the leaf tree whose top is this block. `referrer`: see
 * is_in_stem. */
static uint32_t leaf_tree_size(const dominators *d, uint32_t index, uint32_t referrer) {
    return bit(d->leaves, index) ? 1 : 1 + retained_by_stem(d, index, referrer);
}

/* Set the number of nodes that each numbered node represents: all blocks of a collapsed tree, or
 * the node itself, the joint leaves that it dominates immediately, and the blocks of the leaf trees
 * below it. */
int dominators_weigh(dominators *d, int64_t *budget) {
    uint32_t *counts = d->semis;
    if (!d->at)
        for (uint32_t number = 0; number < d->count; number++)
            counts[number] = !d->leaf_trees && is_collapsed(d, d->nodes[number]) ? d->weights[d->numbers[d->nodes[number]]] : 1;
    if (!d->leaf_trees)
        return DONE;
    uint32_t pause = (uint32_t)pause_of(d->at, d->g->count, budget);
    const uint32_t *number = kept_number(d, (uint32_t)d->at), *end = d->numbers + d->kept;
    for (uint32_t index = (uint32_t)d->at; index < pause; index++) {
        if (bit(d->left_out, index))
            continue;
        if (end - number > AHEAD && number[AHEAD] < d->count)
            __builtin_prefetch(&counts[number[AHEAD]], 1);
        if (is_joint(d, index)) {
            if (*number < IN_STEM)
                counts[*number < d->count ? *number : 0]++;
        } else if (*number < BARRED) {
            counts[*number] += left_out_below(d, index, *number);
        }
        number++;
    }
    d->at = pause;
    return pause < d->g->count;
}

/* Move the `outward` bits of nodes to their places, and replace the numbers of blocks by places. */
int dominators_place_numbers(dominators *d, int64_t *budget) {
    uint64_t count = d->count, pause = pause_of(d->at, count + d->kept, budget);
    const uint32_t *places = d->labels;
    for (; d->at < pause && d->at < count; d->at++)
        if (bit(d->outward, (uint32_t)d->at))
            set_bit(d->moved, places[d->at]);
    for (; d->at < pause; d->at++) {
        uint32_t *number = &d->numbers[d->at - count];
        if (pause - d->at > AHEAD && number[AHEAD] < count)
            __builtin_prefetch(&places[number[AHEAD]]);
        if (*number < count)
            *number = places[*number];
        else if (*number >= IN_STEM && (*number & ~IN_STEM) < count)
            *number = IN_STEM | places[*number & ~IN_STEM];
    }
    return pause < count + d->kept;
}

static int put_leaf(dominators *d, uint32_t index, uint32_t place) {
    d->placed[place] = index;
    return set_count(d, place, 1);
}

/* Put a stem at a place, and the leaves that it retains at the following places. `referrer`: the
 * place of the stem's referrer. */
static int put_stem(dominators *d, uint32_t index, uint32_t place, uint32_t referrer) {
    const graph *g = d->g;
    uint32_t count, first = place;
    d->placed[place++] = index;
    for (const uint32_t *edge = g->edges + edges_of(g, index, &count), *end = edge + count; edge < end; edge++) {
        uint32_t target = *edge >> INDEX_SHIFT;
        if (bit(d->leaves, target)) {
            if (put_leaf(d, target, place++))
                return NO_MEMORY;
        } else if (is_in_stem(d, target, referrer)) {
            *kept_number(d, target) = place;
            if (put_leaf(d, target, place++))
                return NO_MEMORY;
        } else if (is_joint(d, target) && (*kept_number(d, target) & ~JOINED) - first >= place - first) {
            set_bit(d->outward, first); /* it has a place that is not below the stem */
        }
    }
    return set_count(d, first, place - first);
}

/* Put a block at its place. Put the leaf trees below it at the last of the places that belong to
 * the block, in the order of the words in the block. */
static int attach(dominators *d, uint32_t index, uint32_t place) {
    const graph *g = d->g;
    uint32_t count, first = edges_of(g, index, &count), end = place + count_at(d, place);
    d->placed[place] = index;
    for (const uint32_t *edge = g->edges + first + count; edge-- > g->edges + first;) {
        uint32_t target = *edge >> INDEX_SHIFT;
        if (!bit(d->left_out, target))
            continue;
        end -= leaf_tree_size(d, target, place);
        if (bit(d->leaves, target) ? put_leaf(d, target, end) : put_stem(d, target, end, place))
            return NO_MEMORY;
    }
    return DONE;
}

int dominators_attach(dominators *d, int64_t *budget) {
    if (!d->leaf_trees)
        return DONE;
    uint32_t pause = (uint32_t)pause_of(d->at, d->g->count, budget);
    uint32_t *place = kept_number(d, (uint32_t)d->at), *end = d->numbers + d->kept;
    for (uint32_t index = (uint32_t)d->at; index < pause; index++) {
        if (bit(d->left_out, index))
            continue;
        if (end - place > AHEAD && place[AHEAD] < d->count) {
            prefetch_count(d, place[AHEAD]);
            __builtin_prefetch(&d->placed[place[AHEAD]], 1);
        }
        if (is_joint(d, index)) { /* `put_stem` sets the place of the others */
            if (*place < IN_STEM && *place & JOINED && put_leaf(d, index, *place &= ~JOINED))
                return NO_MEMORY;
        } else if (*place < BARRED && attach(d, index, *place)) {
            return NO_MEMORY;
        }
        place++;
    }
    d->at = pause;
    if (pause < d->g->count)
        return 1;
    sort_many(d);
    DROP(d->leaves);
    DROP(d->joints);
    d->joint_count = 0;
    return DONE;
}

uint32_t dominators_search_place(const dominators *d, uint32_t index, uint32_t first) {
    if (!bit(d->left_out, index))
        return *kept_number(d, index);
    for (uint32_t at = first; at < d->count; at++)
        if (d->nodes[at] == index)
            return at;
    for (uint32_t at = 0; at < first && at < d->count; at++)
        if (d->nodes[at] == index)
            return at;
    return UNSEEN;
}
