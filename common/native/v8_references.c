/* Adds the references among V8's objects to a graph in which each object is a block.
 * ../runtimes/v8/engine.py describes the arguments. */
#include <stdlib.h>

#include "object_edges.h"

#define ROW 4u
#define BYTES UINT64_C(8) /* of a word of V8's heap */

enum { FIRST = 0, END, SKIPPED, SKIPPED_HIGH };

/* Add the strong references of an object of `size` bytes at `start`; the piece may contain only a
 * part of it. A weak reference has the tag 3. */
static int read_object(object_edges *s, const piece *p, uint32_t index, uint64_t start, uint64_t size, const uint32_t *row) {
    uint64_t skipped = row[SKIPPED] | (uint64_t)row[SKIPPED_HIGH] << 32, top = p->address + p->length;
    uint64_t last = row[END] < size ? row[END] : size, at = row[FIRST];
    int failed = DONE;
    if (start >= p->address && top - start >= BYTES) {
        uint64_t map = load64(p->data + (start - p->address));
        if ((map & 3) == 1)
            failed = refer_to_object(s, index, map - 1, NONE);
    }
    if (start + at < p->address)
        at += (p->address - (start + at) + BYTES - 1) / BYTES * BYTES;
    for (; at + BYTES <= last && start + at < top && top - (start + at) >= BYTES && !failed; at += BYTES) {
        uint64_t word = load64(p->data + (start + at - p->address)), place = at / BYTES;
        if ((word & 3) == 1 && !(place < 64 && skipped >> place & 1))
            failed = refer_to_object(s, index, word - 1, NONE);
    }
    return failed;
}

/* Add the references of the objects in a piece to the graph. Objects that start in the piece also
 * have the references of `extra`. An element of `extra` is source << 32 | target; the elements
 * ascend. Pieces ascend from call to call. */
API int fl_v8_references(graph *g, const piece *p, const uint32_t *maps, const uint32_t *rows, uint64_t row_count, const uint64_t *extra,
                         uint64_t extra_count) {
    if (p->address < g->scanned || p->length > UINT64_MAX - p->address)
        return DISORDER;
    uint64_t top = g->scanned = p->address + p->length, start = 0, next = 0;
    object_edges s = {.g = g, .made = malloc(sizeof(stretch)), .popcnt = has_popcnt()};
    if (!s.made)
        return NO_MEMORY;
    s.made->count = s.made->insides = 0;
    int failed = DONE;
    uint32_t index = block_reaching(g->b, p->address, &start);
    /* The elements of `extra` of an object that starts below the piece are already added. */
    uint64_t first = index + (uint64_t)(index < g->count && start < p->address);
    BISECT(next, extra_count, middle, extra[middle] >> 32 < first)
    for (bool more = index < g->count; more && start < top && !failed; more = next_block(g->b, &index, &start)) {
        if (maps[index] < row_count)
            failed = read_object(&s, p, index, start, size_of(g->b, index), rows + (size_t)maps[index] * ROW);
        if (start >= p->address)
            for (; next < extra_count && extra[next] >> 32 == index && !failed; next++)
                failed = refer_to_object(&s, index, 0, (uint32_t)extra[next]);
    }
    return end_object_edges(&s, failed);
}
