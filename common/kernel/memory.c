/* Growing arrays, and large ones. */
#define _DEFAULT_SOURCE /* madvise */
#include "kernel.h"

#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

void *grown(void *array, uint64_t count, uint64_t *capacity, size_t size) {
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

/* Memory for `free`, of `bytes` that are all going to be used, at random: in large pages where the system has them to give, which spares
 * both the faults and most of the misses of address translation. */
void *roomy(size_t bytes) {
#ifdef MADV_HUGEPAGE
    if (bytes >= 4 * HUGE_PAGE) {
        bytes = (bytes + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
        void *found = aligned_alloc(HUGE_PAGE, bytes);
        if (found)
            (void)madvise(found, bytes, MADV_HUGEPAGE); /* refused: small pages will do */
        return found;
    }
#endif
    return malloc(bytes);
}

int words_push(words *list, uint64_t item) {
    uint64_t *items = grown(list->items, list->count, &list->capacity, sizeof *items);
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
