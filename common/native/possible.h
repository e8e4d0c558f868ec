/* Possible blocks that reachable memory refers to, and what only these lead to. */
#ifndef FINDLEAKS_POSSIBLE_H
#define FINDLEAKS_POSSIBLE_H

#include "graph.h"

typedef struct {
    uint32_t index, hanging;
    uint64_t bytes; /* total size of the blocks that hang from it */
} head;

struct possible_heads {
    unsigned phase;
    bool flat; /* every possible block is a head */
    LIST(head) heads; /* ascending */
    uint64_t at;
    words stack;
    uint64_t *seen; /* a bit a block: a head, or counted under one */
};

int find_heads(graph *g, int64_t budget);
const head *head_of(const graph *g, uint32_t index); /* NULL: no head */

#endif
