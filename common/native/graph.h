/* Reference graph of the blocks in use.
 *
 * One array has the edges of all blocks, each block's in the order of its words. An edge is the
 * index of the target, and two bits: whether it is the block's last edge, and whether it is an
 * interior reference. The kind and the number of edges of a block share a byte. 28 of these
 * bytes and the offset of their first edge fill half a cache line: visiting a block costs one
 * cache miss for this, and one for its edges. Groups that contain a block with more edges than
 * fit have explicit offsets (`wide`). */
#ifndef FINDLEAKS_GRAPH_H
#define FINDLEAKS_GRAPH_H

#include "blocks.h"

#define GROUP 28u
#define SOME_GROUPS 8192u /* groups that a thread goes through at a time */
#define KIND_SHIFT 5
#define COUNT_MASK 31u
#define OFF_LIMITS 7u /* not a kind: not in use, never visited, edges to it ignored */
#define INTERIOR 1u /* bits of an edge; the index is above them */
#define LAST 2u
#define INDEX_SHIFT 2
#define WIDE 0x80000000u   /* the group's base is an index into `wides` */

typedef struct {
    uint32_t base;
    uint8_t nodes[GROUP]; /* kind << KIND_SHIFT | number of edges */
} group_of_nodes;

typedef struct {
    uint32_t offsets[GROUP + 1];
} wide;

/* A recorded interior reference: its source and edge number (for a root: NONE and the target),
 * and its offset in the target (UINT32_MAX: that or more). */
typedef struct {
    uint32_t source, place, offset;
} inner;

typedef LIST(inner) inners;

/* Words of blocks with one pattern that are not references: see is_excluded. */
typedef struct exclusion {
    uint64_t words, links;
    uint64_t header; /* offset of the block's own links; UINT64_MAX: it has none */
    uint64_t period; /* words after which the masks repeat; 0: bit 63 is all further words */
} exclusion;

/* Return the bit of a mask for a word of a block. */
INLINE uint64_t excluded_bit(const exclusion *of, uint64_t word) {
    return UINT64_C(1) << (of->period ? word % of->period : word < 63 ? word : 63);
}

typedef struct heuristics heuristics; /* see heuristics.c */
typedef struct lost lost;   /* see lost.h */
typedef struct possible_heads possible_heads; /* see possible.h */

/* Ring buffer with the first edges of blocks to visit. Blocks without edges are not queued. */
typedef struct {
    uint32_t *items;
    uint32_t mask, head, tail;
} queue;

typedef struct graph {
    blocks *b;
    uint32_t count;
    uint8_t *kinds; /* the caller's; valid after marking and classifying */
    group_of_nodes *groups;
    LIST(wide) wides;
    uint32_t *edges; /* edges[0] is unused */
    uint64_t edge_count, edge_capacity;
    uint32_t last_source; /* source of the last edge */
    uint64_t *root_starts, *root_interiors; /* a bit a block */
    uint64_t *interiors; /* targets of interior references from reachable blocks */
    uint64_t low, span;                     /* no block starts or ends outside [low, low + span) */
    uint32_t group, group_end; /* the group being filled, and the first block after it */
    uint32_t degrees[GROUP];
    uint64_t group_base;
    uint64_t scanned;
    struct scan *scan; /* see scan.h */
    heuristics *heuristics;
    const uint8_t *patterns; /* the caller's, as are the exclusions: see fl_graph_exclude_words */
    const exclusion *exclusions;
    const uint8_t *labels; /* the caller's, as are the ranks; NULL: none; see fl_graph_set_labels */
    uint64_t label_width;
    const uint32_t *label_ranks;
    bool noting; /* interior references */
    bool counts_interiors; /* all references are start references */
    inners inners;
    words root_words; /* where those from roots are stored, in the same order */
    uint64_t *promoted; /* see interiors.c: start references from reachable blocks lead here */
    uint64_t *reached; /* see graph_connect.c: these are reachable, too */
    unsigned phase; /* of marking */
    _Atomic uint64_t seed; /* roots of lower words of bits are queued */
    queue queue;
    lost *lost;
    possible_heads *possible;
} graph;

int graph_settle(graph *g); /* end the construction: no more edges */
int next_group(graph *g, uint32_t index);
int heuristics_read_facts(graph *g, const piece *p);
int heuristics_edge(graph *g, uint64_t place, uint64_t start, uint64_t pointer, uint32_t *edge);
int heuristics_root(graph *g, uint64_t pointer, uint32_t *edge);
void heuristics_settle(graph *g);
void heuristics_free(heuristics *h);
void lost_free(lost *l);
void possible_free(possible_heads *p);
void interiors_free(graph *g);
int interiors_reserve(inners *list, uint64_t more); /* make space for `more` items */
uint32_t interior_target(const graph *g, const inner *item);
void accept_interior(graph *g, const inner *item, uint32_t target);

/* An array with one bit for each block: allocated with allocate_zeros, and freed. */
INLINE size_t bit_bytes(const graph *g) { return ((size_t)g->count / 64 + 1) * sizeof(uint64_t); }

INLINE void drop_bits(const graph *g, uint64_t **bits) {
    free_zeros(*bits, bit_bytes(g));
    *bits = NULL;
}

INLINE bool bit(const uint64_t *bits, uint32_t index) { return bits[index >> 6] >> (index & 63) & 1; }
INLINE void set_bit(uint64_t *bits, uint32_t index) { bits[index >> 6] |= UINT64_C(1) << (index & 63); }

/* Return the number of the block's type in a managed runtime; NONE if it has none. */
INLINE uint32_t label_of(const graph *g, uint32_t index) { return g->labels ? type_number(g->labels, g->label_width, index) : NONE; }

/* Whether the word `at` bytes into block `source`, which refers to `offset` in block `target`,
 * is excluded as a reference. For the masks, see excluded_bit. A word counts as a link only if it
 * refers to the links of the target block. Otherwise it is data, because the source block may still
 * contain a part of an earlier object. The two low bits of a link may be flags. */
INLINE bool is_excluded(const uint8_t *patterns, const exclusion *exclusions, uint32_t source, uint64_t at, uint32_t target, uint64_t offset) {
    const exclusion *of = patterns && patterns[source] ? &exclusions[patterns[source]] : NULL;
    if (!of)
        return false;
    uint64_t bit = excluded_bit(of, at / WORD);
    return of->words & bit || (of->links & bit && exclusions[patterns[target]].header == (offset & ~UINT64_C(3)));
}

INLINE uint8_t *node_of(const graph *g, uint32_t index) { return &g->groups[index / GROUP].nodes[index % GROUP]; }
INLINE bool is_used(const graph *g, uint32_t index) { return *node_of(g, index) >> KIND_SHIFT != OFF_LIMITS; }

/* Return eight bytes of a group, while another thread may be marking single bytes of it. C11
 * does not define atomic accesses of different sizes to the same bytes; processors with
 * eight-byte words do. Callers use only the base and the numbers of edges, which no longer
 * change by then: the result is the same whichever kinds the read sees. */
INLINE uint64_t node_bytes(const uint8_t *at) {
    typedef uint64_t __attribute__((may_alias)) bytes;
    return __atomic_load_n((const bytes *)(const void *)at, __ATOMIC_RELAXED);
}

INLINE uint32_t edges_of(const graph *g, uint32_t index, uint32_t *count) {
    static const uint64_t masks[8] = {
        0x1f1f1f1f1f1f1f1f, 0x1f1f1f1f1f1f1f1f, 0x1f1f1f1f1f1f1f1f, 0x1f1f1f1f1f1f1f1f, 0, 0, 0, 0,
    };
    const group_of_nodes *group = &g->groups[index / GROUP];
    uint32_t within = index % GROUP;
    if (group->base & WIDE) {
        const uint32_t *offsets = g->wides.items[group->base & ~WIDE].offsets + within;
        *count = offsets[1] - offsets[0];
        return offsets[0];
    }
    *count = __atomic_load_n(&group->nodes[within], __ATOMIC_RELAXED) & COUNT_MASK;
    /* Sum the counts in bytes 4 up to 4 + within of the group: four of at most 31 fit a byte. */
    const uint8_t *bytes = (const uint8_t *)group, *mask = (const uint8_t *)masks + 28 - within;
    uint64_t sums = (node_bytes(bytes) & eight_bytes(mask)) >> 32;
    sums += (node_bytes(bytes + 8) & eight_bytes(mask + 8)) + (node_bytes(bytes + 16) & eight_bytes(mask + 16)) +
            (node_bytes(bytes + 24) & eight_bytes(mask + 24));
    sums = (sums & UINT64_C(0x00FF00FF00FF00FF)) + (sums >> 8 & UINT64_C(0x00FF00FF00FF00FF));
    return group->base + (uint32_t)((sums * UINT64_C(0x0001000100010001)) >> 48);
}

#endif
