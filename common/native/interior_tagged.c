/* Pointers with tags in their lowest bits, by which trees store the colour of a node or the kind of
 * a child: glibc 2.36 misc/tsearch.c (the lowest bit of left_node), jemalloc 5.3 rb.h (the lowest
 * bit of rbn_right_red), the XArray of Linux, LLVM's PointerIntPair. */
#include "interior_structures.h"

/* A pointer that reads a text or another sequence of bytes also points to an odd address, so the
 * block must begin with a number or a pointer: the upper 16 bits of its first word are 0. Offsets
 * that are a multiple of 4 may be those of a member. */
int tagged_at(const memory *m, const candidate *c) {
    uint64_t offset = c->pointer - c->start, first;
    return WORD == 8 && offset < WORD && offset % 4 && read_word(m, c->start, &first) && !(first >> 48) ? TAGGED_START : NOTHING;
}
