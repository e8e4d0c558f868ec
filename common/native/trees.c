/* Walks search trees with parent pointers (../engine/trees.py); looks up many addresses at once. */
#include "blocks.h"

#include <stdlib.h>

enum { SOUND, UNREADABLE, WRONG_PARENT, TWICE, BOTH_RED, COLOUR, TOO_MANY_NODES };
enum { LEFT, RIGHT, PARENT, COLOURED, WORDS, COLOUR_BYTES, LAYOUT };
#define AHEAD 16u
#define RED_ABOVE 1u /* flag in a parent pointer: the node is red */

typedef struct tree_walk {
    uint64_t layout[LAYOUT], most;
    words queue, parents; /* nodes to visit, from `at` on */
    words nodes;
    uint64_t at, trouble[3]; /* code, node, other node */
} tree_walk;

/* Return the number in the first bytes of a word in memory. */
static uint64_t leading(uint64_t word, uint64_t bytes) { return BIG ? word >> (8 * (WORD - bytes)) : word & ~(uint64_t)0 >> (64 - 8 * bytes); }

API tree_walk *fl_tree_new(uint64_t root, uint64_t header, const uint64_t *layout, uint64_t most) {
    tree_walk *t = calloc(1, sizeof *t);
    if (!t || words_push(&t->queue, root) || words_push(&t->parents, header)) {
        if (t)
            free(t->queue.items);
        free(t);
        return NULL;
    }
    memcpy(t->layout, layout, sizeof t->layout);
    t->most = most;
    return t;
}

API void fl_tree_free(tree_walk *t) {
    FREE_ALL(t->queue.items, t->parents.items, t->nodes.items, t);
}

static void wrong(tree_walk *t, uint64_t code, uint64_t node, uint64_t other) {
    if (!t->trouble[0]) {
        t->trouble[0] = code;
        t->trouble[1] = node;
        t->trouble[2] = other;
    }
}

static int descend(tree_walk *t, uint64_t child, uint64_t parent) {
    return child && (words_push(&t->queue, child) || words_push(&t->parents, parent)) ? NO_MEMORY : DONE;
}

/* Visit about `budget` nodes; return 1 if there are more. */
API int fl_tree_walk(tree_walk *t, const piece *pieces, uint64_t count, int64_t budget) {
    uint8_t record[8 * WORD];
    uint64_t size = t->layout[WORDS] * WORD;
    for (; t->at < t->queue.count; t->at++) {
        if (budget-- <= 0)
            return 1;
        if (t->at + AHEAD < t->queue.count) {
            uint64_t later = t->queue.items[t->at + AHEAD];
            const piece *p = piece_holding(pieces, count, later);
            if (p && later - p->address < p->length)
                __builtin_prefetch(p->data + (later - p->address));
        }
        uint64_t node = t->queue.items[t->at], parent = t->parents.items[t->at] & ~(uint64_t)RED_ABOVE;
        if (node % WORD || !copy_out(pieces, count, node, size, record)) {
            wrong(t, UNREADABLE, node, parent);
            continue;
        }
        uint64_t back = load(record + WORD * t->layout[PARENT]);
        if (back != parent) {
            wrong(t, WRONG_PARENT, node, back);
            continue;
        }
        if (t->nodes.count >= t->most) {
            wrong(t, TOO_MANY_NODES, node, t->most);
            t->at = t->queue.count;
            break;
        }
        uint64_t left = load(record + WORD * t->layout[LEFT]), right = load(record + WORD * t->layout[RIGHT]);
        uint64_t colour = leading(load(record + WORD * t->layout[COLOURED]), t->layout[COLOUR_BYTES]);
        if (words_push(&t->nodes, node))
            return NO_MEMORY;
        if (left && left == right) {
            wrong(t, TWICE, node, left);
            right = 0;
        } else if (colour > 1) {
            wrong(t, COLOUR, node, colour);
        } else if (!colour && (t->parents.items[t->at] & RED_ABOVE)) {
            wrong(t, BOTH_RED, node, parent);
        }
        uint64_t above = node | (colour ? 0 : RED_ABOVE);
        if (descend(t, left, above) || descend(t, right, above))
            return NO_MEMORY;
    }
    return 0;
}

/* Return the nodes, to be freed with fl_free, and the first problem: three words. */
API void fl_tree_done(tree_walk *t, words *nodes, uint64_t *trouble) {
    *nodes = t->nodes;
    t->nodes = (words){NULL, 0, 0};
    memcpy(trouble, t->trouble, sizeof t->trouble);
}

/* Return the index and usable size of the block that contains each address; NONE and 0 if there
 * is none. */
API void fl_holding(const blocks *b, const uint64_t *addresses, uint64_t count, uint32_t *indices, uint64_t *sizes) {
    for (uint64_t at = 0; at < count; at++) {
        const slot *later = at + AHEAD < count ? slot_of(b, addresses[at + AHEAD]) : NULL;
        const slot *soon = at + AHEAD / 2 < count ? slot_of(b, addresses[at + AHEAD / 2]) : NULL;
        __builtin_prefetch(later);
        if (soon)
            prefetch_size(b, soon->rank);
        indices[at] = block_find(b, addresses[at]);
        sizes[at] = indices[at] == NONE ? 0 : size_of(b, indices[at]);
    }
}

/* Return the index of the block that contains an address, with its start, size and state; NONE
 * if there is none. */
API uint32_t fl_lookup(const blocks *b, uint64_t address, uint64_t *found) {
    uint32_t index = block_find(b, address);
    if (index != NONE) {
        found[0] = block_address(b, index);
        found[1] = size_of(b, index);
        found[2] = b->states[index];
    }
    return index;
}

/* Label all these blocks, or none if an index is NONE or a block is already labelled. */
API bool fl_claim(uint32_t *labels, uint64_t length, const uint32_t *indices, uint64_t count, uint32_t label) {
    for (uint64_t at = 0; at < count; at++)
        if (indices[at] >= length || labels[indices[at]] != NONE)
            return false;
    for (uint64_t at = 0; at < count; at++)
        labels[indices[at]] = label;
    return true;
}

/* Return whether every label is below `most` or NONE. */
API bool fl_labels_below(const uint8_t *labels, uint64_t width, uint64_t count, uint64_t most) {
    bool sound = true;
    for (uint64_t at = 0; at < count; at++)
        sound &= type_number(labels, width, at) < most || type_number(labels, width, at) == NONE;
    return sound;
}
