/* Pointers with tags in their lowest bits. Trees store the colour of a node or the kind of a child
 * in a tag: glibc 2.36 misc/tsearch.c (the lowest bit of left_node), jemalloc 5.3 rb.h (the lowest
 * bit of rbn_right_red), the XArray of Linux, LLVM's PointerIntPair. */
#include "interior_structures.h"

enum { SEARCHED = 1024 }; /* bytes of a block in which a link is looked for */

/* Return whether a block has a link with this tag to a block of the same size. */
static bool has_link(const memory *m, const blocks *b, const candidate *c, uint64_t tag) {
    uint64_t value, size = c->size < SEARCHED ? c->size : SEARCHED;
    for (uint64_t at = 0; at + WORD <= size; at += WORD) {
        if (!read_word(m, c->start + at, &value) || value % WORD != tag)
            continue;
        uint32_t target = block_find(b, value);
        if (target != NONE && block_address(b, target) + tag == value && size_of(b, target) == c->size)
            return true;
    }
    return false;
}

/* `source`: the block with the pointer; NONE: root memory.
 *
 * A pointer into text or another sequence of bytes may be odd, too. Therefore, the block must begin
 * with a number or a pointer: the upper 16 bits of its first word are 0. Also, the pointer must be
 * in a block of the same size, or the block must contain such a pointer itself, as nodes of a tree
 * do. An offset that is a multiple of 4 is not a tag, because it may be the offset of a member. */
int tagged_at(const memory *m, const blocks *b, uint32_t source, const candidate *c) {
    uint64_t tag = c->pointer - c->start, first;
    if (WORD != 8 || tag >= WORD || tag % 4 == 0 || !read_word(m, c->start, &first) || first >> 48)
        return NOTHING;
    return (source != NONE && size_of(b, source) == c->size) || has_link(m, b, c, tag) ? TAGGED_START : NOTHING;
}
