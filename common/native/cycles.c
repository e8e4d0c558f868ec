/* Chooses the block that represents a cycle of leaked blocks in groups. The choice does not depend
 * on the order of addresses, so that two equal cycles are in one group. A cycle with a labelled
 * block needs none: its label represents it. Also sums blocks by label. The kinds of a cycle's
 * blocks do not depend on any of this. */
#include "lost.h"

/* Set the label of each block, with `width` bytes (NONE: no label), and the rank of each label,
 * which is at least 1. Both arrays must outlive the graph. */
API void fl_graph_set_labels(graph *g, const uint8_t *labels, uint64_t width, const uint32_t *ranks) {
    g->labels = labels;
    g->label_width = width;
    g->label_ranks = ranks;
}

API bool fl_has_cycles(const graph *g) { return g->lost->members.count > 0; }

/* Append the ranges with the first words of all cycles' blocks, as start, end, start, end …
 * Ranges less than `gap` apart are merged. */
API int fl_cycle_ranges(const graph *g, uint64_t gap, words *found) {
    lost *l = g->lost;
    uint64_t start = 0, end = 0;
    for (uint64_t at = 0; at < l->members.count; at++) {
        uint64_t address = block_address(g->b, l->indices[l->members.items[at].place]);
        l->members.items[at].address = address;
        if (end && address - end > gap) {
            if (PUSH_ALL(found, start, end))
                return NO_MEMORY;
            end = 0;
        }
        start = end ? start : address;
        end = address + WORD;
    }
    return end ? PUSH_ALL(found, start, end) : DONE;
}

/* Let a block represent its cycle if it is preferred to the current one. A block with a type is
 * preferred; then the largest; then the lowest type word; then the lowest address. Two objects
 * that refer to each other are then the same cycle, whichever was allocated first. */
static void consider(graph *g, const cycle_member *one, uint64_t type_word, uint64_t start) {
    lost *l = g->lost;
    cycle *of = &l->cycles.items[one->cycle];
    uint64_t size = size_of(g->b, l->indices[one->place]), before = size_of(g->b, l->indices[of->shown]);
    bool better = !type_word != !of->type_word ? type_word != 0 : size != before ? size > before : type_word < of->type_word;
    if (better) {
        of->shown = one->place;
        of->type_word = type_word;
    }
    if (of->shown == one->place)
        of->address = start;
}

/* Consider the blocks of cycles that start in this piece, and those before it, which are in no
 * piece. Pieces ascend. */
API void fl_cycles_feed(graph *g, const piece *p, const range *types, uint32_t type_count) {
    lost *l = g->lost;
    for (; l->considered < l->members.count; l->considered++) {
        const cycle_member *one = &l->members.items[l->considered];
        uint32_t index = l->indices[one->place];
        uint64_t start = one->address ? one->address : block_address(g->b, index);
        if (start >= p->address && start - p->address >= p->length)
            break;
        consider(g, one, type_word_at(g->b, p, types, type_count, index, start), start);
    }
}

API void fl_cycles_finish(graph *g) {
    lost *l = g->lost;
    for (; l->considered < l->members.count; l->considered++)
        consider(g, &l->members.items[l->considered], 0, l->members.items[l->considered].address);
    l->represented = true;
}

/* Return the block that represents the cycle with this leak head; else the block itself. */
API uint32_t fl_representative(const graph *g, uint32_t index) {
    const lost *l = g->lost;
    uint32_t place = place_of(l, index), number = place == NONE ? NONE : l->low[place];
    const cycle *of = number != NONE && l->leak_heads.items[number].place == place ? cycle_of(l, number) : NULL;
    return of ? l->indices[of->shown] : index;
}

/* Count blocks in use of these kinds (one bit each) and their bytes, for each label below
 * `count`. */
API void fl_label_totals(const graph *g, uint32_t kinds, uint32_t count, uint64_t *totals) {
    for (uint32_t index = 0; index < g->count; index++) {
        uint32_t label = label_of(g, index);
        if (label < count && kinds >> g->kinds[index] & 1 && g->b->states[index] == IN_USE) {
            totals[2 * (uint64_t)label]++;
            totals[2 * (uint64_t)label + 1] += size_of(g->b, index);
        }
    }
}
