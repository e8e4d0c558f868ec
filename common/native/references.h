/* References in a stretch of memory. Any thread can find them, because the search does not
 * change the graph. */
#ifndef FINDLEAKS_REFERENCES_H
#define FINDLEAKS_REFERENCES_H

#include "graph.h"

#define STRETCH 8192u /* words; with the results, they fit the first-level cache */
#define SOME 128u      /* words filtered between two checks of the batch's capacity */
#define BATCH 256u     /* candidates looked up together: misses overlap, and slots stay cached */

typedef enum { FROM_BLOCKS, FROM_ROOTS } origin;

typedef struct {
    uint32_t source; /* the block that contains the word; for a root, the index of the word */
    uint32_t edge;   /* as in graph.h */
} reference;

/* A word that contains an interior address of a block. */
typedef struct {
    uint64_t start, pointer; /* start of the block; value of the word */
} inside;

typedef struct {
    const uint8_t *data; /* the words in this process, */
    uint64_t address;    /* and their address in the target */
    uint32_t words;
    uint32_t count, insides;
    reference found[STRETCH];  /* in the order of the words */
    inside interior[STRETCH];  /* those of `found` that are INTERIOR */
    uint64_t apart[352];       /* so that stretches do not begin in the same cache sets */
} stretch;

/* Words that may be pointers, and what is known about them. */
typedef struct {
    uint32_t count;
    uint32_t places[BATCH + 4]; /* word numbers; filter_avx2 writes up to four beyond `count` */
    uint32_t indices[BATCH];
    uint64_t values[BATCH];
    uint64_t starts[BATCH];
    const slot *slots[BATCH];
} batch;

/* Data of the graph that a search needs. It is a copy, because recording threads write next to
 * the original. */
typedef struct {
    const blocks *b;
    const uint8_t *patterns; /* see fl_graph_exclude_words */
    const exclusion *exclusions;
    uint64_t low, span;
    origin from;
    uint32_t interior; /* INTERIOR, or 0 if interior references count as start references */
    bool popcnt, avx2;
} search;

search search_of(const graph *g, origin from);
/* Of `count` words from `first` on, append the indices of those whose values are between the lowest
 * and the highest block (`low` and `span`). The batch must have space for `count` more words. */
void filter_words(const search *how, const uint8_t *data, uint32_t first, uint32_t count, batch *c);
/* Fill the stretch's `found` and `interior`. */
void find_references(const search *how, stretch *s, batch *candidates);

#endif
