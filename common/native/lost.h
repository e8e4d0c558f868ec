/* Leaked blocks (those not marked), numbered by address ("places"), so that all arrays are
 * short. */
#ifndef FINDLEAKS_LOST_H
#define FINDLEAKS_LOST_H

#include "graph.h"

typedef struct {
    uint32_t place, cycle, hanging;
    uint64_t bytes; /* total size of the indirect blocks */
} leak_head;

typedef struct {
    uint32_t place, next, end; /* edges not yet followed */
} call;

typedef struct {
    uint32_t members; /* if LED: the number of its cycle */
    uint32_t flags;   /* REFERRED, LED */
} component;

/* The best labelled block of a component; rank 0: it has none. */
typedef struct {
    uint32_t place, rank;
} candidate;

/* A cycle of a leak head without labelled blocks: the number of this leak head, the place of the
 * block that represents it in groups, and that block's type word. */
typedef struct {
    uint32_t leak_head, shown;
    uint64_t type_word;
    uint64_t address; /* of the block `shown`; 0: not known yet */
} cycle;

typedef struct {
    uint32_t place, cycle; /* the cycle's number */
    uint64_t address;      /* of the block; set by fl_cycle_ranges */
} cycle_member;

struct lost {
    unsigned phase;
    uint32_t count;
    uint32_t *indices;  /* of each place */
    uint64_t *bits;     /* a bit for each block: it is leaked */
    uint32_t *ranks;    /* by 64 bits: the place of the first one that is set; 0: none is */
    size_t groups;      /* of 64 bits */
    uint32_t *order;    /* 0: not visited; then a number; finally COMPONENT | its component */
    uint32_t *low; /* Tarjan's lowlink; later the leak head under which the block is counted */
    uint32_t *stack;
    uint32_t stacked;
    LIST(call) calls;
    LIST(component) components;
    candidate *candidates; /* of each component; NULL without labels */
    uint32_t next_order, at;
    LIST(leak_head) leak_heads;
    LIST(cycle) cycles; /* ascending by leak head */
    LIST(cycle_member) members; /* of all cycles, ascending by place */
    uint64_t considered; /* number of members considered so far; see cycles.c */
    bool represented;    /* cycles have their representatives */
};

/* Return the first word of a block that starts in `p` (NULL: none), if it is in `types`; else 0. */
INLINE uint64_t type_word_at(const blocks *b, const piece *p, const range *types, uint32_t type_count, uint32_t index, uint64_t start) {
    if (!p || start < p->address || start - p->address >= p->length || start % WORD || p->length - (start - p->address) < WORD || size_of(b, index) < WORD)
        return 0;
    uint64_t word = load(p->data + (start - p->address));
    return word && in_ranges(types, type_count, word) ? word : 0;
}

/* Return the place of a block; NONE if it is not leaked. */
INLINE uint32_t place_of(const lost *l, uint32_t index) {
    uint64_t bits = l->bits[index >> 6], mask = UINT64_C(1) << (index & 63);
    return bits & mask ? l->ranks[index >> 6] + (uint32_t)__builtin_popcountll(bits & (mask - 1)) : NONE;
}

/* Return the cycle with this leak head, if it has no labelled block; else NULL. */
INLINE const cycle *cycle_of(const lost *l, uint32_t number) {
    uint32_t at = 0;
    BISECT(at, (uint32_t)l->cycles.count, middle, l->cycles.items[middle].leak_head < number)
    return at < l->cycles.count && l->cycles.items[at].leak_head == number ? &l->cycles.items[at] : NULL;
}

#endif
