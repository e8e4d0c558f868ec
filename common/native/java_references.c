/* Adds the references among Java objects to a graph in which each object is a block.
 * ../runtimes/jvm/engine.py describes the arguments. */
#include <stdlib.h>

#include "java_objects.h"
#include "object_edges.h"

typedef struct {
    object_edges edges;
    const piece *p;
    const java_heap *h;
} searching;

static int refer(searching *s, uint32_t source, uint64_t address, uint32_t target) {
    return refer_to_object(&s->edges, source, address, target);
}

/* Read the array of `count` references at `address`. The piece may contain only a part of it. */
static int read_references(searching *s, uint32_t source, uint64_t address, uint64_t count) {
    const java_heap *h = s->h;
    uint64_t size = h->oop_bytes, top = s->p->address + s->p->length, skipped = 0;
    if (address < s->p->address)
        skipped = (s->p->address - address + size - 1) / size;
    int failed = DONE;
    for (uint64_t at = address + skipped * size; skipped < count && !failed && at < top && top - at >= size; skipped++, at += size) {
        const uint8_t *data = s->p->data + (at - s->p->address);
        uint64_t value = size == 4 ? load32(data) : load64(data);
        if (value)
            failed = refer(s, source, java_address(h, value), NONE);
    }
    return failed;
}

/* Add a reference to an address without a color. If an object was moved from there, also add
 * references to its new addresses. */
static int refer_plainly(searching *s, uint32_t source, uint64_t address) {
    uint64_t young = find_moved(&s->h->young, address), old = find_moved(&s->h->old, address);
    int failed = refer(s, source, address, NONE);
    if (young && !failed)
        failed = refer(s, source, young, NONE);
    return old && !failed ? refer(s, source, old, NONE) : failed;
}

/* Refer to each address in `count` words at `address`. */
static int read_words(searching *s, uint32_t source, uint64_t address, uint64_t count) {
    uint64_t top = s->p->address + s->p->length, skipped = 0;
    if (address < s->p->address)
        skipped = (s->p->address - address + WORD - 1) / WORD;
    int failed = DONE;
    for (uint64_t at = address + skipped * WORD; skipped < count && !failed && at < top && top - at >= WORD; skipped++, at += WORD)
        failed = refer_plainly(s, source, load(s->p->data + (at - s->p->address)));
    return failed;
}

static bool is_present(const piece *p, uint64_t address, uint64_t size) {
    return address >= p->address && address - p->address <= p->length && p->length - (address - p->address) >= size;
}

/* Read the words of a stack in an object. Each word, or half of a word, may be a reference. */
static int read_chunk(searching *s, uint32_t index, uint64_t start, const uint32_t *class) {
    const piece *p = s->p;
    uint64_t size = size_of(s->edges.g->b, index), held = size > class[1] ? (size - class[1]) / WORD : 0, first = 0;
    if (is_present(p, start + class[2], 4) && is_present(p, start + class[3], 4)) {
        uint64_t present = load32(p->data + (start + class[2] - p->address));
        held = present < held ? present : held;
        first = load32(p->data + (start + class[3] - p->address));
        first = first < held ? first : held;
    }
    uint64_t address = start + class[1] + first * WORD, count = held - first;
    int failed = read_references(s, index, address, count * (WORD / s->h->oop_bytes));
    bool has_plain_words = s->h->oop_bytes != WORD || s->h->colors == JAVA_BELOW;
    return failed || !has_plain_words ? failed : read_words(s, index, address, count);
}

/* Read the references of an object. If the length of an array is not in the piece, it is computed
 * from the size of the object. */
static int read_object(searching *s, uint32_t index, uint64_t start, uint32_t number) {
    const java_heap *h = s->h;
    const uint32_t *class = h->classes + (size_t)number * CLASS_ROW;
    int failed = DONE;
    if (class[0] == JAVA_OBJECTS) {
        uint64_t size = size_of(s->edges.g->b, index), most = size > class[1] ? (size - class[1]) / h->oop_bytes : 0;
        if (is_present(s->p, start + h->length_at, 4)) {
            uint64_t length = load32(s->p->data + (start + h->length_at - s->p->address));
            most = length < most ? length : most;
        }
        return read_references(s, index, start + class[1], most);
    }
    for (uint32_t at = h->map_first[number]; at < h->map_first[number + 1] && !failed; at++)
        failed = read_references(s, index, start + h->maps[2 * (size_t)at], h->maps[2 * (size_t)at + 1]);
    if (class[0] == JAVA_FIXED && class[2] && !failed)
        failed = read_chunk(s, index, start, class);
    if (class[0] == JAVA_MIRROR && !failed && is_present(s->p, start + class[2], 4)) {
        uint64_t size = size_of(s->edges.g->b, index), most = size > class[3] ? (size - class[3]) / h->oop_bytes : 0;
        uint64_t count = load32(s->p->data + (start + class[2] - s->p->address));
        failed = read_references(s, index, start + class[3], count < most ? count : most);
    }
    return failed;
}

/* Add the references of the objects in a piece to the graph. Objects that start in the piece also
 * refer to the mirror of their class, and have the references of `extra`. An element of `extra` is
 * source << 32 | target; the elements ascend. Pieces ascend from call to call. */
API int fl_java_references(graph *g, const piece *p, const java_heap *h, const uint8_t *numbers, uint64_t width, const uint32_t *mirrors,
                           const uint64_t *extra, uint64_t extra_count) {
    if (p->address < g->scanned || p->length > UINT64_MAX - p->address)
        return DISORDER;
    uint64_t top = g->scanned = p->address + p->length, start = 0, next = 0;
    searching s = {.edges = {.g = g, .made = malloc(sizeof(stretch)), .popcnt = has_popcnt()}, .p = p, .h = h};
    if (!s.edges.made)
        return NO_MEMORY;
    s.edges.made->count = s.edges.made->insides = 0;
    int failed = DONE;
    uint32_t index = block_reaching(g->b, p->address, &start);
    /* The elements of `extra` of an object that starts below the piece are already added. */
    uint64_t first = index + (uint64_t)(index < g->count && start < p->address);
    BISECT(next, extra_count, middle, extra[middle] >> 32 < first)
    for (bool more = index < g->count; more && start < top && !failed; more = next_block(g->b, &index, &start)) {
        uint32_t number = type_number(numbers, width, index);
        if (number >= h->class_count)
            continue;
        failed = read_object(&s, index, start, number);
        if (start < p->address || failed)
            continue;
        for (; next < extra_count && extra[next] >> 32 == index && !failed; next++)
            failed = refer(&s, index, 0, (uint32_t)extra[next]);
        if (mirrors[number] != NONE && !failed)
            failed = refer(&s, index, 0, mirrors[number]);
    }
    return end_object_edges(&s.edges, failed);
}
