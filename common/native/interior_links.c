/* Nodes of lists and trees whose links are inside the objects: struct list_head, hlist_node and
 * rb_node of Linux, wfcq_node of liburcu, uv__queue, hooks of Boost.Intrusive. A link refers to the
 * links of the neighbour, not to the start of its block. */
#include "interior_structures.h"

enum { LINKS = 3 };        /* words of a node: {parent, left, right} */
#define COLOUR UINT64_C(3) /* rb_node and Boost store a colour in the link to the parent */
#define FLAGS ((uint64_t)(WORD - 1))

/* Return whether a link of the node at `address` refers to the node at `pointer`. */
static bool has_link_to(const memory *m, uint64_t address, uint64_t pointer) {
    uint64_t value;
    for (uint64_t at = 0; at < LINKS; at++)
        if (read_word(m, address + at * WORD, &value) && (value & ~COLOUR) == pointer)
            return true;
    return false;
}

/* Return whether the node has a neighbour in other memory, and both refer to each other: next and
 * previous element of a list; parent and child of a tree. */
static bool has_neighbour(const memory *m, const candidate *c, uint64_t node) {
    uint64_t value;
    for (uint64_t at = node; at < node + LINKS * WORD && at + WORD <= end_of(c); at += WORD) {
        if (!read_word(m, at, &value))
            continue;
        value &= ~COLOUR;
        if (value && value % WORD == 0 && (value < c->start || value >= end_of(c)) && has_link_to(m, value, node))
            return true;
    }
    return false;
}

/* Return whether `value` refers to another block of the same size, at this offset. */
static bool is_same_place(const blocks *b, const candidate *c, uint64_t offset, uint64_t value) {
    uint32_t found = block_find(b, value);
    if (found == NONE || size_of(b, found) != c->size)
        return false;
    uint64_t start = block_address(b, found);
    return start != c->start && value - start == offset;
}

/* Return whether the node belongs to a singly linked list of blocks of one size. Either its first
 * word refers to the same offset in another block, or the word at this offset in the block with the
 * pointer refers to the node. The low bits of these words may be flags. */
static bool is_in_chain(const memory *m, const blocks *b, uint32_t source, const candidate *c, uint64_t node) {
    uint64_t value, offset = node - c->start;
    if (node + WORD > end_of(c))
        return false;
    if (read_word(m, node, &value) && is_same_place(b, c, offset, value & ~FLAGS))
        return true;
    if (source == NONE || size_of(b, source) != c->size)
        return false;
    return read_word(m, block_address(b, source) + offset, &value) && (value & ~FLAGS) == node;
}

/* `source`: the block with the pointer, if it is possibly lost; else NONE.
 *
 * The last node of a singly linked list is recognised by the node before it. That node is possibly
 * lost, because only interior pointers refer to it. Other blocks with the pointer prove nothing:
 * two blocks of one size may have a pointer at the same offset by chance.
 *
 * The low bits of the pointer may also be flags, as in a pointer to a bucket of cds_lfht, or the
 * colour in a pointer to a parent. */
int link_at(const memory *m, const blocks *b, uint32_t source, const candidate *c) {
    uint64_t node = c->pointer & ~FLAGS;
    if (node <= c->start || (node - c->start) % WORD)
        return NOTHING;
    return has_neighbour(m, c, node) || is_in_chain(m, b, source, c, node) ? LINK : NOTHING;
}
