/* Visiting blocks breadth first. */
#ifndef FINDLEAKS_VISIT_H
#define FINDLEAKS_VISIT_H

#include "graph.h"

/* Reached by start references; by others; possible blocks found reachable. */
enum { STARTS = 1, OTHERS = 2, MARKED = 3, PROMOTE = 4 };

int visit(graph *g, int64_t budget, unsigned phase); /* about so many blocks; 1 if there are more */
int grow_queue(queue *q);

/* Branch-free, as `wanted` is unpredictable. */
INLINE int push(queue *q, uint32_t item, bool wanted) {
    if ((q->tail - q->head > q->mask || !q->items) && grow_queue(q))
        return NO_MEMORY;
    q->items[q->tail & q->mask] = item;
    q->tail += wanted;
    return DONE;
}

#endif
