/* Lost blocks (left by marking), numbered by address ("places"), so that all arrays are short. */
#ifndef FINDLEAKS_LOST_H
#define FINDLEAKS_LOST_H

#include "graph.h"

typedef struct {
    uint32_t place, cycle, hanging;
    uint64_t bytes; /* total size of the indirect blocks */
} leader;

typedef struct {
    uint32_t place, next, end; /* edges not yet followed */
} call;

typedef struct {
    uint32_t members, flags; /* REFERRED, LED */
} component;

struct lost {
    unsigned phase;
    uint32_t count;
    uint32_t *indices;  /* of each place */
    uint64_t *bits;     /* a bit a block: it is lost */
    uint32_t *ranks;    /* of each 64 bits: the place of the first */
    uint32_t *order;    /* 0: not visited; then a number; at last COMPONENT | its component */
    uint32_t *low; /* Tarjan's lowlink; later the leader that the place is under */
    uint32_t *stack;
    uint32_t stacked;
    LIST(call) calls;
    LIST(component) components;
    uint32_t next_order, at;
    LIST(leader) leaders;
};

/* NONE if it is not lost. */
INLINE uint32_t place_of(const lost *l, uint32_t index) {
    uint64_t bits = l->bits[index >> 6], mask = UINT64_C(1) << (index & 63);
    return bits & mask ? l->ranks[index >> 6] + (uint32_t)__builtin_popcountll(bits & (mask - 1)) : NONE;
}

#endif
