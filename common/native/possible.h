/* Possible blocks to which reachable memory refers, and the blocks that are reachable only
 * through them. */
#ifndef FINDLEAKS_POSSIBLE_H
#define FINDLEAKS_POSSIBLE_H

#include "graph.h"

typedef struct {
    uint32_t index, hanging;
    uint64_t bytes; /* total size of the blocks counted under it */
} head;

struct possible_heads {
    unsigned phase;
    bool flat; /* every possible block is a head */
    LIST(head) heads; /* ascending */
    uint64_t at;
    words stack;
    uint64_t *seen; /* a bit for each block: it is a head, or counted under one */
};

int find_heads(graph *g, int64_t budget);
const head *head_of(const graph *g, uint32_t index); /* NULL if the block is not a head */

#endif
