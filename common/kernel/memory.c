/* Growing arrays. */
#include "kernel.h"

#include <stdlib.h>

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

int words_push(words *list, uint64_t item) {
    uint64_t *items = grown(list->items, list->count, &list->capacity, sizeof *items);
    if (!items)
        return NO_MEMORY;
    list->items = items;
    list->items[list->count++] = item;
    return DONE;
}

API void fl_free(void *memory) { free(memory); }
