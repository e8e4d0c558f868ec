/* Types and heap of a Go program, as Python passes them; see ../runtimes/go/engine.py. */
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
    /* Spans, ascending. For each span: `sizes`: bytes of a slot; `large`: number of the type of its
     * only object, or NONE; `classes`: spanclass. */
    const uint64_t *starts, *ends, *sizes;
    const uint32_t *large;
    const uint8_t *classes;
    uint64_t span_count;
    /* Addresses of types, ascending. For each type: `strides`: bytes of a value; `words`: number of
     * words that its mask describes; `masks`: index of the mask's first byte in `bits`. */
    const uint64_t *addresses, *strides, *words, *masks;
    const uint8_t *bits;
    uint64_t type_count;
    /* Addresses of arenas, ascending. `entries`: addresses of their heapArenas. `form`: one of the
     * constants in go_pointers.c. */
    const uint64_t *arenas, *entries;
    uint64_t arena_count, form;
} go_pointers;

#endif
