/* Walks structures level by level along links (hash chains, trees): see ../engine/links.py. */
#include "native.h"

#include <stdlib.h>

enum { SOUND, UNREADABLE, MET_TWICE, TOO_MANY_NODES, TOO_DEEP };
#define AHEAD 24u
#define BATCH 16u
#define RUN 100000u /* nodes of a level whose links are followed one link at a time */

typedef struct link_walk {
    const uint64_t *offsets; /* the caller's */
    uint64_t links, most, deepest, tags;
    words nodes;                        /* all nodes, in order of discovery, without duplicates */
    uint64_t first, end, level, at; /* the current run, its level's end, the next node */
    uint64_t link, depth, trouble;
    uint64_t *met, met_mask; /* hash set of the nodes; 0: unused entry */
} link_walk;

INLINE uint64_t met_place(const link_walk *w, uint64_t node) {
    uint64_t mixed = node * 0x9E3779B97F4A7C15u;
    return (mixed ^ mixed >> 32) & w->met_mask;
}

static void put(link_walk *w, uint64_t node) {
    uint64_t place = met_place(w, node);
    while (w->met[place])
        place = (place + 1) & w->met_mask;
    w->met[place] = node;
}

/* Resize the hash set to `places`, at most half of which are used. */
static int rehash(link_walk *w, uint64_t places) {
    uint64_t *made = calloc(places, sizeof *made);
    if (!made)
        return NO_MEMORY;
    free(w->met);
    w->met = made;
    w->met_mask = places - 1;
    for (uint64_t at = 0; at < w->nodes.count; at++) {
        if (at + AHEAD < w->nodes.count)
            __builtin_prefetch(&w->met[met_place(w, w->nodes.items[at + AHEAD])], 1);
        put(w, w->nodes.items[at]);
    }
    return DONE;
}

/* Add a node (0: none). Sets `trouble` if it was added before. */
static int meet(link_walk *w, uint64_t node) {
    if (!node)
        return DONE;
    uint64_t place = met_place(w, node);
    for (; w->met[place]; place = (place + 1) & w->met_mask)
        if (w->met[place] == node) {
            w->trouble = MET_TWICE;
            return DONE;
        }
    if (w->nodes.count >= w->most) {
        w->trouble = TOO_MANY_NODES;
        return DONE;
    }
    w->met[place] = node;
    if (words_push(&w->nodes, node))
        return NO_MEMORY;
    return 2 * w->nodes.count > w->met_mask ? rehash(w, 2 * (w->met_mask + 1)) : DONE;
}

API void fl_links_free(link_walk *w) {
    FREE_ALL(w->nodes.items, w->met, w);
}

/* Create a walk from these heads, with at most `most` nodes and `deepest` levels (0: any
 * number). `tags`: bits of a link that are not part of the address. */
API link_walk *fl_links_new(const uint64_t *heads, uint64_t count, const uint64_t *offsets, uint64_t links, uint64_t most, uint64_t deepest, uint64_t tags) {
    link_walk *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->offsets = offsets;
    w->links = links;
    w->most = most;
    w->deepest = deepest;
    w->tags = tags;
    uint64_t places = 1024;
    while (places / 4 < count) /* a head is only the first node of its chain */
        places *= 2;
    int failed = rehash(w, places);
    for (uint64_t at = 0; at < count && !failed && !w->trouble; at++) {
        if (at + AHEAD < count)
            __builtin_prefetch(&w->met[met_place(w, heads[at + AHEAD])], 1);
        failed = meet(w, heads[at]);
    }
    if (failed) {
        fl_links_free(w);
        return NULL;
    }
    w->link = links; /* start with an empty run: next_pass begins the first level */
    return w;
}

/* Continue with the next link, run or level. Returns false at the end. */
static bool next_pass(link_walk *w) {
    if (w->link < w->links)
        w->link++;
    if (w->link >= w->links) {
        if (w->end == w->level) {
            if (w->level == w->nodes.count)
                return false;
            if (w->deepest && ++w->depth > w->deepest) {
                w->trouble = TOO_DEEP;
                return false;
            }
            w->level = w->nodes.count;
        }
        w->first = w->end;
        w->end = w->level - w->first < RUN ? w->level : w->first + RUN;
        w->link = 0;
    }
    w->at = w->first;
    return true;
}

static void prefetch(const link_walk *w, const piece *pieces, uint64_t count) {
    uint64_t later = w->at + AHEAD < w->nodes.count ? w->nodes.items[w->at + AHEAD] + w->offsets[w->link] : 0;
    const piece *p = later ? piece_holding(pieces, count, later) : NULL;
    if (p && later - p->address < p->length)
        __builtin_prefetch(p->data + (later - p->address));
}

/* Follow about `budget` links: 1 if there are more. */
API int fl_links_walk(link_walk *w, const piece *pieces, uint64_t count, int64_t budget) {
    while (!w->trouble) {
        if (w->at == w->end || w->link >= w->links) {
            if (!next_pass(w))
                return 0;
            continue;
        }
        if (budget <= 0)
            return 1;
        uint64_t found[BATCH], batch = 0;
        bool absent = false;
        for (; batch < BATCH && w->at < w->end; w->at++, budget--) {
            uint8_t word[WORD];
            prefetch(w, pieces, count);
            absent = !copy_out(pieces, count, (w->nodes.items[w->at] + w->offsets[w->link]) & HIGHEST, WORD, word);
            if (absent)
                break;
            found[batch] = load(word) & ~w->tags;
            __builtin_prefetch(&w->met[met_place(w, found[batch++])]);
        }
        for (uint64_t at = 0; at < batch && !w->trouble; at++)
            if (meet(w, found[at]))
                return NO_MEMORY;
        if (absent && !w->trouble)
            w->trouble = UNREADABLE;
    }
    return 0;
}

/* Return the nodes, which the caller frees with fl_free, and why the walk ended early, or SOUND. */
API uint64_t fl_links_done(link_walk *w, words *nodes) {
    *nodes = w->nodes;
    w->nodes = (words){NULL, 0, 0};
    w->first = w->end = w->level = w->at = 0;
    w->link = w->links;
    return w->trouble;
}
