/* The loops over objects of managed runtimes, for native.c: Go, the JVM and V8. */
#ifndef FINDLEAKS_FUZZ_MANAGED_OBJECTS_H
#define FINDLEAKS_FUZZ_MANAGED_OBJECTS_H

#include "../../common/native/go_types.h"
#include "../../common/native/java_objects.h"

#include <stdlib.h>

/* Go's types: of the bytes that the input gives, each 8 KiB is a page of objects with pointers. */
static void go_objects(const blocks *b, const piece *p, uint64_t count, uint32_t made) {
    uint64_t addresses[2] = {BASE + 64, BASE + 128}, sizes[3] = {8, 16, 48}, arenas[1] = {BASE >> 26 << 26}, below[128] = {0, 8}, state[3] = {0};
    uint32_t pointees[2] = {2, NONE}, elements[2] = {NONE, 1}, first[4] = {0, 1, 3, 6}, offsets[6] = {0, 0, 8, 0, 16, 16};
    uint32_t targets[6] = {5, 0, 3, 2, 4, 3};
    uint8_t pointers[3] = {1, 1, 2}, kinds[6] = {0, 3, 2, 1, 4, 5}, *classes = malloc(8192);
    uint64_t width = made % 3 ? 2 : 4; /* bytes of a type */
    uint8_t *types = malloc(width * (size_t)(made + 1));
    uint64_t *queue = malloc(8 * (size_t)(made + 1));
    memset(classes, 12, 8192);
    memset(types, 0xff, width * (size_t)(made + 1));
    go_types known = {addresses, pointees, elements, 2, sizes, pointers, first, offsets, kinds, targets, 3, arenas, classes, 1, below, made % 2};
    while (state[0] < count || state[1] < state[2])
        if (fl_go_types(b, p, count, &known, types, width, queue, state, 64))
            break;
    free_all((void *const[]){classes, types, queue}, 3);
}

/* Pointers in Go's objects. The input's bytes are both the spans and the bitmaps of the arena. */
static void go_pointer_maps(const piece *p, uint64_t count, uint32_t made) {
    const uint64_t starts[4] = {BASE, BASE + 512, BASE + 1024, BASE + 2048}, ends[4] = {BASE + 512, BASE + 1024, BASE + 2048, BASE + 8192};
    const uint64_t sizes[4] = {24, 512, 1024, 40000}, addresses[2] = {BASE + 64, BASE + 128}, strides[2] = {24, 680}, words[2] = {2, 84};
    const uint64_t masks[2] = {0, 1}, arenas[1] = {BASE >> 26 << 26}, entries[1] = {BASE};
    const uint32_t large[4] = {NONE, NONE, NONE, made % 2 ? 1 : NONE};
    const uint8_t classes[4] = {6, 40, 46, 0}, bits[12] = {2, 0xff, 0x55, 1, 0, 9, 3, 0x80, 7, 1, 2, 3};
    uint8_t out[8192] = {0};
    go_pointers known = {starts, ends, sizes, large, classes, 4, addresses, strides, words, masks, bits, 2, arenas, entries, 1, 0};
    for (known.form = 0; known.form < 3; known.form++)
        (void)fl_go_pointers(p, count, &known, BASE + made % 512 * 8, BASE + 8192, out);
}

/* Records of a heap dump, for a buffer that is often full. Fields may be beyond the end of an object. */
static void java_records(const blocks *b, const piece *p, uint64_t count, const java_heap *h, const uint8_t *numbers,
                         uint64_t width) {
    const uint64_t ids[4] = {1, 2, 0, 3};
    const uint8_t elements[4] = {0, 9, 2, 0};
    const uint32_t first[5] = {0, 3, 3, 3, 3}, fields[6] = {16, 2, 22, 10, UINT32_MAX, 11};
    uint64_t next = 0, length;
    uint8_t out[256];
    for (uint64_t at = 0; at < count; at++)
        while (fl_java_records(b, &p[at], h, numbers, width, ids, elements, first, fields, &next, out, sizeof out, &length))
            next += !length;
    if (p->length >= 24)
        fl_java_values(h, p->data, 3, 11, out);
}

/* Java objects: a word's low bits select the class. References among those that are found. */
static void java_objects(const piece *p, uint64_t count, uint64_t limit) {
    uint64_t keys[16], totals[8] = {0}, state[8] = {BASE, limit, limit, 0, 0, 0, limit % 3 ? 0 : 24}, starts[MOST], sizes[MOST], moved[2 * MOST], extra[2] = {0, UINT64_C(1) << 32};
    uint32_t hashed[16], classes[16] = {0, 24, 0, 0, 1, 16, 1, 0, 2, 16, 2, 0, 3, 16, 20, 24};
    uint32_t first[5] = {0, 1, 1, 1, 2}, maps[4] = {16, 2, 8, UINT32_MAX}, mirrors[4] = {NONE, 0, NONE, UINT32_MAX - 1}, found[MOST];
    uint8_t none[MOST] = {0}, marks[4] = {1, 0, 1, 0}, kinds[MOST] = {0}, numbers[4 * MOST];
    uint64_t width = limit % 5 ? 2 : 4;
    for (uint32_t at = 0; at < 16; at++) {
        keys[at] = at < 12 ? at + 1 : 0;
        hashed[at] = at % 5;
    }
    /* References are compressed, or have colors above or below the address. */
    uint64_t colors = limit / 8 % 3, before[2] = {BASE, BASE + 64}, now[2] = {BASE + 64, BASE + 8};
    java_moves moves = {before, now, 2};
    java_heap h = {8, 4, 28, 12, 8, keys, hashed, 15, classes, 4, colors ? 8 : 4, BASE, 3, colors, BASE - 1, limit % 4, moves, moves, first, maps};
    blocks *b = fl_blocks_new(3, 1);
    uint64_t made = 0;
    for (uint64_t at = 0; at < count; at++)
        if (p[at].address <= state[0] && !fl_java_objects(&p[at], &h, state, starts + made, sizes + made, numbers + made * width, width, MOST - made, totals, limit % 7 < 3 ? moved : NULL))
            made += state[3];
    fl_append(b, starts, sizes, none, made);
    fl_seal(b);
    graph *g = fl_graph_new(b, kinds);
    for (uint64_t at = 0; at < count; at++)
        fl_java_references(g, &p[at], &h, numbers, width, mirrors, extra, 2);
    java_records(b, p, count, &h, numbers, width);
    fl_java_select(numbers, width, made, marks, found);
    while (fl_mark(g, 7) == 1) {
    }
    fl_graph_free(g);
    fl_blocks_free(b);
}

/* V8's objects: a word's low bits select the map, and a walk stops at damaged ones. */
static void v8_objects(const piece *p, uint64_t count) {
    uint64_t keys[16], totals[10] = {0}, firsts[5] = {0}, state[8] = {0}, targets[8], starts[16], sizes[16], extra[2] = {1, UINT64_C(3) << 32 | 5};
    uint32_t numbers[16], owners[8], maps[16], rows[75] = {0, 24, 8, 0, 4, 0, UINT32_MAX, 1, 0, 0, 0, 0, 8, 16, 0, 1, 16, 8, 12, 4, 0, 0x3ff, 1, 8, 0, 0,
                                                           0, 8, 0, 0, 1, 16, 8, 8, 2, 1, UINT32_MAX, 6, 4, 12, 2, 0, 0, 0, 0, 2, 0, 8, 0, 4, 0,
                                                           UINT32_MAX, 1, 0, 0, 0, 1, 0, 0, 0, 3, 0, 8, 0, 4, 0, UINT32_MAX, 1, 0, 0, 0, 0, 0, 0, 0};
    const uint32_t words[20] = {8, UINT32_MAX, 0, 0, 8, 24, 4, 0, 16, UINT32_MAX, 0, 1, UINT32_MAX, UINT32_MAX, 0, 0, 8, 8, 0, 0};
    for (uint32_t at = 0; at < 16; at++) {
        keys[at] = at < 12 ? at + 1 : 0;
        numbers[at] = at % 6;
    }
    for (uint64_t at = 0; at < count; at++)
        for (uint64_t start = 0; start < p[at].length; start += 40) {
            state[0] = p[at].address + start;
            state[1] = p[at].address + p[at].length;
            state[3] = start % 3 * 16;
            fl_v8_objects(&p[at], keys, numbers, 15, rows, 5, totals, firsts, state, targets, starts, sizes, owners, maps, 8, 16);
            blocks *b = fl_blocks_new(3, 1);
            uint8_t states[16] = {0}, kinds[16];
            if (!fl_append(b, starts, sizes, states, state[7])) {
                fl_seal(b);
                graph *g = fl_graph_new(b, kinds);
                uint64_t place[3] = {0};
                uint32_t firsts[6] = {0, 2, 2, 3, 3, 3}, names[3] = {1, 1u << 28 | 7, 0}, nodes[16], counts[16] = {0}, edges[9];
                for (uint32_t at_node = 0; at_node < 16; at_node++)
                    nodes[at_node] = at_node % 5 ? at_node : NONE;
                for (uint64_t piece = 0; piece < count; piece++) {
                    fl_v8_references(g, &p[piece], maps, words, 5, extra, 2);
                    while (fl_v8_edges(b, &p[piece], maps, words, firsts, names, states, 5, nodes, place, counts, edges, 3)) {
                    }
                }
                while (fl_mark(g, 7) == 1) {
                }
                fl_graph_free(g);
            }
            fl_blocks_free(b);
        }
}

#endif
