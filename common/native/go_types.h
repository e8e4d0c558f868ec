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

typedef struct go_pointers {
    /* ascending spans; by span: bytes of a slot, number of the type of its only object (or NONE) */
    const uint64_t *starts, *ends, *sizes;
    const uint32_t *large;
    const uint8_t *classes;
    uint64_t span_count;
    /* ascending addresses of types; by type: bytes of a value, words that its mask describes, first
     * byte of the mask in `bits` */
    const uint64_t *addresses, *strides, *words, *masks;
    const uint8_t *bits;
    uint64_t type_count;
    /* ascending addresses of arenas, and of their heapArenas; see the forms in go_pointers.c */
    const uint64_t *arenas, *entries;
    uint64_t arena_count, form;
} go_pointers;

#endif
