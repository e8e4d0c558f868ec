/* memcheck's four heuristics for interior pointers (Valgrind 3.19, memcheck/mc_leakcheck.c) and
 * three for CPython, in one pass. Facts (from the first words of blocks) and interior references
 * are collected while scanning. They are combined before marking, or at once if the facts are
 * complete. Facts are kept until marking ends, for roots that are added meanwhile. memcheck
 * knows the requested size; the usable size exceeds it by less than SLACK. */
#include "graph.h"

#include <stdlib.h>

#define SLACK (3 * WORD)
#define HEAD (8 * WORD) /* bytes of a block that facts depend on, except inner vtables */
enum { LENGTH64 = 1, NEWARRAY = 2, MULTIPLE_INHERITANCE = 4, STDSTRING = 8, OBJECTS = 16, DICT_VALUES = 32, ITEMS = 128 };
#define OBJECT_AT(offset) (1u << (4 + (offset) / 16)) /* fact: object at offset 0, 16, 32, 48 */
#define ITEMS_BEHIND (1u << 12)                  /* fact: a list's items, after their number */
#define VALUES_AT(offset) (1u << (7 + (offset) / 8)) /* dictionary's values at 8, 16, 24, 32 */

typedef struct {
    uint64_t place, pointer; /* edge number (unused for roots), and the pointer */
    uint32_t index;
} pending;

struct heuristics {
    unsigned wanted;
    range *vtables;
    uint32_t vtable_count;
    uint64_t *types, type_mask; /* hash table of type addresses; 0: unused entry */
    uint16_t *facts;            /* of each block */
    words inner_vtables; /* words that point to a vtable, but first ones: ascending addresses */
    uint32_t first_of;   /* the block whose first word ended the last piece, or NONE */
    uint64_t first;
    LIST(pending) edges, roots;
};

void heuristics_free(heuristics *h) {
    if (!h)
        return;
    FREE_ALL(h->vtables, h->types, h->facts, h->inner_vtables.items, h->edges.items, h->roots.items, h);
}

static uint64_t *type_place(const heuristics *h, uint64_t type) {
    uint64_t place = type * 0x9E3779B97F4A7C15u >> 20 & h->type_mask;
    while (h->types[place] && h->types[place] != type)
        place = (place + 1) & h->type_mask;
    return &h->types[place];
}

/* Call before scanning. `vtables`: sorted, disjoint; `types`: of objects, their second words. */
API int fl_graph_heuristics(graph *g, unsigned wanted, const range *vtables, uint32_t vtable_count, const uint64_t *types, uint64_t count) {
    heuristics *h = g->heuristics = calloc(1, sizeof *h);
    if (!h)
        return NO_MEMORY;
    *h = (heuristics){.wanted = wanted, .first_of = NONE, .vtable_count = vtable_count, .type_mask = 63};
    while (h->type_mask < 2 * count)
        h->type_mask = h->type_mask * 2 + 1;
    h->facts = calloc((size_t)g->count + 1, sizeof *h->facts);
    h->vtables = calloc((size_t)vtable_count + 1, sizeof *h->vtables);
    h->types = calloc((size_t)h->type_mask + 1, sizeof *h->types);
    if (!h->facts || !h->vtables || !h->types)
        return NO_MEMORY;
    if (vtable_count)
        memcpy(h->vtables, vtables, vtable_count * sizeof *vtables);
    for (uint64_t at = 0; at < count; at++)
        *type_place(h, types[at]) = types[at];
    return DONE;
}

static bool is_vtable(const heuristics *h, uint64_t value) {
    return h->wanted & MULTIPLE_INHERITANCE && in_ranges(h->vtables, h->vtable_count, value);
}

static void length64(heuristics *h, uint32_t index, uint64_t size, uint64_t length) {
    if (h->wanted & LENGTH64 && size >= 8 && length <= size - 8 && size - 8 - length < SLACK)
        h->facts[index] |= LENGTH64;
}

static void first_word(heuristics *h, uint32_t index, uint64_t size, uint64_t value) {
    h->first_of = index;
    h->first = value;
    if (WORD == 8)
        length64(h, index, size, value);
    if (h->wanted & NEWARRAY && size >= WORD && value && value <= size - WORD && (size - WORD) % value < SLACK)
        h->facts[index] |= NEWARRAY;
    if (h->wanted & ITEMS && value && value <= size / WORD - 1 && size / WORD <= 2 * value + 4)
        h->facts[index] |= ITEMS_BEHIND;
    if (is_vtable(h, value))
        h->facts[index] |= MULTIPLE_INHERITANCE;
}

static void second_word(heuristics *h, uint32_t index, uint64_t size, uint64_t capacity) {
    uint64_t header = 3 * WORD + 1; /* length, capacity, reference count, and the closing NUL */
    if (WORD == 4 && h->first_of == index)
        length64(h, index, size, BIG ? h->first << 32 | capacity : capacity << 32 | h->first);
    if (h->wanted & STDSTRING && h->first_of == index && h->first <= capacity && size >= header && capacity <= size - header &&
        size - header - capacity < SLACK)
        h->facts[index] |= STDSTRING;
}

/* Examine a word in a block's HEAD. The type of an object is its second word; the byte before a
 * dictionary's values is their offset in the block. */
static void head_word(heuristics *h, uint32_t index, uint64_t offset, uint64_t value) {
    uint64_t end = offset + WORD, last = BIG ? value & 255 : value >> (8 * WORD - 8);
    if (h->wanted & OBJECTS && offset % 16 == WORD && value && *type_place(h, value))
        h->facts[index] |= (uint16_t)OBJECT_AT(offset - WORD);
    if (h->wanted & DICT_VALUES && end % 8 == 0 && end <= 32 && last == end)
        h->facts[index] |= (uint16_t)VALUES_AT(end);
}

int heuristics_read_facts(graph *g, const piece *p) {
    heuristics *h = g->heuristics;
    const blocks *b = g->b;
    uint64_t base, count = piece_words(p, &base);
    if (!count || !b->count)
        return DONE;
    const uint8_t *data = p->data + (base - p->address);
    uint32_t index = block_at_or_after(b, base);
    if (index)
        index--;
    uint64_t start = block_address(b, index);
    for (;;) {
        uint64_t size = size_of(b, index), from = start > base ? start - base : 0;
        from = (from + WORD - 1) / WORD;
        uint64_t looked = h->wanted & MULTIPLE_INHERITANCE || size < HEAD ? size : HEAD;
        uint64_t span = start + looked > base ? (start + looked - base) / WORD : 0, to = span < count ? span : count;
        for (uint64_t at = from; b->states[index] == IN_USE && at < to; at++) {
            uint64_t address = base + at * WORD, value = load(data + at * WORD);
            if (address == start)
                first_word(h, index, size, value);
            else if (is_vtable(h, value) && words_push(&h->inner_vtables, address))
                return NO_MEMORY;
            if (address == start + WORD)
                second_word(h, index, size, value);
            if (address - start < HEAD)
                head_word(h, index, address - start, value);
        }
        if (++index >= b->count)
            return DONE;
        start = start_after(b, start, index);
        if (start - base >= count * WORD)
            return DONE;
    }
}

static bool has(const words *sorted, uint64_t item) {
    uint64_t at = 0;
    BISECT(at, sorted->count, middle, sorted->items[middle] < item)
    return at < sorted->count && sorted->items[at] == item;
}

/* Return whether an interior pointer at this offset counts as a start reference. Words before an
 * object belong to it: the collector's header contains references, too. The two low bits may be
 * flags. */
static bool counts(const heuristics *h, uint32_t index, uint64_t offset, uint64_t pointer) {
    unsigned facts = h->facts[index];
    if (!facts)
        return false;
    /* 3.12 marks the pointer by subtracting one */
    uint64_t object = offset & ~UINT64_C(3), values = offset % 8 == 7 ? offset + 1 : offset;
    return (facts & LENGTH64 && offset == 8) || (facts & (NEWARRAY | ITEMS_BEHIND) && offset == WORD) || (facts & STDSTRING && offset == 3 * WORD) ||
           (facts & MULTIPLE_INHERITANCE && has(&h->inner_vtables, pointer)) ||
           (object % 16 == 0 && object <= 48 && facts >> (4 + object / 16) & (0xfu >> object / 16)) ||
           (values % 8 == 0 && values >= 8 && values <= 32 && facts & VALUES_AT(values));
}

/* Handle the interior edge `place`: it is decided in *edge if the facts of the block are
 * complete, else later. */
int heuristics_edge(graph *g, uint64_t place, uint64_t start, uint64_t pointer, uint32_t *edge) {
    heuristics *h = g->heuristics;
    uint32_t index = *edge >> INDEX_SHIFT;
    if (h->wanted & MULTIPLE_INHERITANCE || start > g->scanned || g->scanned - start < HEAD)
        return PUSH(h->edges, (pending){place, pointer, index});
    if (counts(h, index, pointer - start, pointer))
        *edge &= ~INTERIOR;
    return DONE;
}

static bool settled(const graph *g, const pending *item) {
    return counts(g->heuristics, item->index, item->pointer - block_address(g->b, item->index), item->pointer);
}

/* Handle an interior reference from a root: it is decided in *edge if the graph is settled, else
 * later. */
int heuristics_root(graph *g, uint64_t pointer, uint32_t *edge) {
    pending item = {0, pointer, *edge >> INDEX_SHIFT};
    if (!g->phase)
        return PUSH(g->heuristics->roots, item);
    if (settled(g, &item))
        *edge &= ~INTERIOR;
    return DONE;
}

/* Turn the interior references that count into start references. */
void heuristics_settle(graph *g) {
    heuristics *h = g->heuristics;
    for (uint64_t at = 0; at < h->edges.count; at++)
        if (settled(g, &h->edges.items[at]))
            g->edges[h->edges.items[at].place] &= ~INTERIOR;
    memset(g->root_interiors, 0, ((size_t)g->count / 64 + 1) * sizeof *g->root_interiors);
    for (uint64_t at = 0; at < h->roots.count; at++) {
        const pending *item = &h->roots.items[at];
        set_bit(settled(g, item) ? g->root_starts : g->root_interiors, item->index);
    }
    DROP(h->edges.items);
    DROP(h->roots.items);
}
