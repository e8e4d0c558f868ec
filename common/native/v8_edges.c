/* Lists the references among V8's objects as edges of a heap snapshot.
 * ../runtimes/v8/engine.py describes the arguments. */
#include "blocks.h"

#define ROW 4u
#define BYTES UINT64_C(8) /* of a word of V8's heap */
#define NAME_BITS 28
#define ELEMENT 1u /* types of edges */
#define HIDDEN 4u
#define NODE_FIELDS 7u

enum { FIRST = 0, END, SKIPPED, SKIPPED_HIGH };
enum { NEXT = 0, OFFSET = 1, MADE = 2 };

/* Return the strong reference in a word of an object, `at` bytes after its start, as the number of
 * a node; NONE if there is none. */
static uint32_t node_at(const blocks *b, const piece *p, uint64_t start, uint64_t at, const uint32_t *row, const uint32_t *nodes) {
    uint64_t skipped = row[SKIPPED] | (uint64_t)row[SKIPPED_HIGH] << 32, found = 0;
    if (at && (at < row[FIRST] || at + BYTES > row[END] || (at / BYTES < 64 && skipped >> at / BYTES & 1)))
        return NONE;
    uint64_t word = load64(p->data + (start + at - p->address));
    if ((word & 3) != 1 || word - 1 == start)
        return NONE;
    uint32_t target = block_before(b, slot_of(b, word - 1), word - 1, &found);
    return target < b->count && found == word - 1 ? nodes[target] : NONE;
}

/* Write the edges of the objects in a piece to `out`, three numbers each, and add them to `counts`.
 * The next word to read is state[OFFSET] bytes after the start of object state[NEXT]. state[MADE]
 * gets the number of edges. Return whether `out`, with space for `room` edges, is full. */
API int fl_v8_edges(const blocks *b, const piece *p, const uint32_t *shapes, const uint32_t *rows, const uint32_t *firsts,
                    const uint32_t *names, const uint8_t *tails, uint64_t shape_count, const uint32_t *nodes, uint64_t *state, uint32_t *counts,
                    uint32_t *out, uint64_t room) {
    uint64_t start = 0, top = p->address + p->length;
    uint32_t index = block_reaching(b, p->address, &start);
    state[MADE] = 0;
    if (top < p->address)
        return 0;
    for (bool more = index < b->count; more && start < top; more = next_block(b, &index, &start)) {
        if (index < state[NEXT] || nodes[index] == NONE || shapes[index] >= shape_count)
            continue;
        uint32_t shape = shapes[index];
        uint64_t size = size_of(b, index), at = index == state[NEXT] ? state[OFFSET] : 0;
        if (start + at < p->address)
            at += (p->address - (start + at) + BYTES - 1) / BYTES * BYTES;
        for (; at + BYTES <= size && start + at < top && top - (start + at) >= BYTES; at += BYTES) {
            uint32_t node = node_at(b, p, start, at, rows + (size_t)shape * ROW, nodes), place = (uint32_t)(at / BYTES);
            if (node == NONE)
                continue;
            if (state[MADE] == room) {
                state[NEXT] = index;
                state[OFFSET] = at;
                return 1;
            }
            uint32_t entry = place < firsts[shape + 1] - firsts[shape] ? names[firsts[shape] + place] : 0;
            uint32_t *edge = out + 3 * state[MADE]++;
            edge[0] = entry ? entry >> NAME_BITS : tails[shape] && place >= 2 ? ELEMENT : HIDDEN;
            edge[1] = entry ? entry & ((UINT32_C(1) << NAME_BITS) - 1) : edge[0] == ELEMENT ? place - 2 : place;
            edge[2] = node * NODE_FIELDS;
            counts[index]++;
        }
        state[NEXT] = index;
        state[OFFSET] = at;
    }
    return 0;
}
