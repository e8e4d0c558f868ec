/* Adds references between starts of objects to a graph in which each object is a block. */
#ifndef FINDLEAKS_OBJECT_EDGES_H
#define FINDLEAKS_OBJECT_EDGES_H

#include "scan.h"

typedef struct {
    uint64_t address; /* the object that the reference points to; not used if `target` is known */
    uint32_t source, target; /* indices of objects; `target` is NONE until it is looked up */
} pending;

typedef struct {
    graph *g;
    stretch *made;
    pending waiting[BATCH];
    uint32_t count;
    bool popcnt;
} object_edges;

/* Look up the targets of the waiting references, and add these to the graph. All slots are
 * prefetched first, so that cache misses overlap. */
INLINE int look_up_objects_as(object_edges *s) {
    const blocks *b = s->g->b;
    const slot *slots[BATCH];
    for (uint32_t at = 0; at < s->count; at++) {
        slots[at] = s->waiting[at].target == NONE ? slot_of(b, s->waiting[at].address) : NULL;
        __builtin_prefetch(slots[at]);
    }
    for (uint32_t at = 0; at < s->count; at++) {
        const pending *one = &s->waiting[at];
        uint64_t start = one->address; /* does not change if the target is known */
        uint32_t target = one->target == NONE ? block_before(b, slots[at], one->address, &start) : one->target;
        if (target < b->count && start == one->address && target != one->source)
            s->made->found[s->made->count++] = (reference){one->source, target << INDEX_SHIFT};
    }
    s->count = 0;
    if (s->made->count + BATCH <= STRETCH)
        return DONE;
    int failed = record_edges(s->g, s->made);
    s->made->count = 0;
    return failed;
}

static int look_up_objects_plain(object_edges *s) { return look_up_objects_as(s); }
POPCNT static int look_up_objects_popcnt(object_edges *s) { return look_up_objects_as(s); }
static inline int look_up_objects(object_edges *s) { return (s->popcnt ? look_up_objects_popcnt : look_up_objects_plain)(s); }

/* Add a reference of an object. Sources ascend from call to call. */
static inline int refer_to_object(object_edges *s, uint32_t source, uint64_t address, uint32_t target) {
    s->waiting[s->count++] = (pending){address, source, target};
    return s->count == BATCH ? look_up_objects(s) : DONE;
}

/* Add the references that still wait. `failed` is the result so far. */
static inline int end_object_edges(object_edges *s, int failed) {
    if (!failed)
        failed = look_up_objects(s);
    if (!failed)
        failed = record_edges(s->g, s->made);
    free(s->made);
    return failed;
}

#endif
