/* What Python tells of a Go program's types and heap; see ../runtimes/go/engine.py. */
#ifndef FINDLEAKS_GO_TYPES_H
#define FINDLEAKS_GO_TYPES_H

#include "native.h"

typedef struct go_types {
    /* ascending addresses of types and itabs; by address: type value (or NONE) of what an
     * interface's data refers to, and number of the type itself (or NONE) */
    const uint64_t *addresses;
    const uint32_t *pointees, *elements;
    uint64_t count;
    /* by number: bytes; 0: no pointers, 1: pointers, 2: any; first slot (one more element) */
    const uint64_t *sizes;
    const uint8_t *pointers;
    const uint32_t *first;
    /* by slot: offset, kind, type value of what it refers to */
    const uint32_t *offsets;
    const uint8_t *kinds;
    const uint32_t *targets;
    uint64_t numbers;
    /* ascending addresses of arenas; class of each of their pages; by class / 2: the largest size
     * of the next smaller class (0: unknown) */
    const uint64_t *arenas;
    const uint8_t *classes;
    uint64_t arena_count;
    const uint64_t *below;
    uint64_t has_headers;
} go_types;

#endif
