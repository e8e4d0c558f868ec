/* Visits blocks breadth first. */
#ifndef FINDLEAKS_VISIT_H
#define FINDLEAKS_VISIT_H

#include "graph.h"

/* Phases of marking. STARTS: mark blocks that start references reach; OTHERS: those that other
 * references reach; MARKED: done; PROMOTE: mark what possible blocks reach that turned out to be
 * reachable. */
enum { STARTS = 1, OTHERS = 2, MARKED = 3, PROMOTE = 4 };

/* visits about `budget` blocks; 1 if there are more */
int visit(graph *g, int64_t budget, unsigned phase);
int grow_queue(queue *q);

/* Without branches, because `wanted` is unpredictable. */
INLINE int push(queue *q, uint32_t item, bool wanted) {
    if ((q->tail - q->head > q->mask || !q->items) && grow_queue(q))
        return NO_MEMORY;
    q->items[q->tail & q->mask] = item;
    q->tail += wanted;
    return DONE;
}

#endif
