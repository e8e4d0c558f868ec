/* Growing arrays, and large allocations. */
#define _DEFAULT_SOURCE /* madvise */
#include "kernel.h"

#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

void *grow(void *array, uint64_t count, uint64_t *capacity, size_t size) {
    if (count < *capacity)
        return array;
    uint64_t wanted = *capacity + *capacity / 2 + 64;
    if (wanted > SIZE_MAX / size)
        return NULL;
    void *more = realloc(array, (size_t)wanted * size);
    if (more)
        *capacity = wanted;
    return more;
}

/* Allocate `bytes` that will be accessed at random: in huge pages where the system has them, which
 * saves page faults and TLB misses. Released with free. */
void *alloc_large(size_t bytes) {
#ifdef MADV_HUGEPAGE
    if (bytes >= 4 * HUGE_PAGE) {
        bytes = (bytes + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
        void *found = aligned_alloc(HUGE_PAGE, bytes);
        if (found)
            (void)madvise(found, bytes, MADV_HUGEPAGE); /* if refused, small pages do */
        return found;
    }
#endif
    return malloc(bytes);
}

int words_push(words *list, uint64_t item) {
    uint64_t *items = grow(list->items, list->count, &list->capacity, sizeof *items);
    if (!items)
        return NO_MEMORY;
    list->items = items;
    list->items[list->count++] = item;
    return DONE;
}

API void fl_free(void *memory) { free(memory); }

#ifndef FL_SOURCES
#define FL_SOURCES 0
#endif

/* The checksum of the sources that this was built from: engine/kernel/sources.py. */
API uint32_t fl_sources(void) { return FL_SOURCES; }
