/* Scans memory for words that refer to blocks. Threads search one stretch after another.
 * References are recorded in the order of the words, so that the graph does not depend on the
 * number of threads. */
#include "scan.h"

#include "dominators.h"
#include "threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* stretches for each thread, so that none waits while another clears memory */
#define BUFFERS 32u
#define LEAST_SHARE 16u /* minimum number of stretches for a thread */

/* Memory for stretches, reused for the next piece. */
typedef struct scan {
    unsigned threads;
    batch *batches;     /* one for each thread */
    stretch *stretches; /* BUFFERS for each thread */
} scan;

void scan_free(scan *memory) {
    if (memory)
        FREE_ALL(memory->batches, memory->stretches, memory);
}

/* Allocate for at least `threads` threads; NULL if out of memory. */
static scan *scan_memory(graph *g, unsigned threads) {
    if (g->scan && g->scan->threads >= threads)
        return g->scan;
    scan_free(g->scan);
    if (!(g->scan = calloc(1, sizeof *g->scan)))
        return NULL;
    *g->scan = (scan){threads, malloc(threads * sizeof(batch)), malloc((size_t)threads * BUFFERS * sizeof(stretch))};
    if (!g->scan->batches || !g->scan->stretches) {
        scan_free(g->scan);
        g->scan = NULL;
    }
    return g->scan;
}

/* Call before scanning. exclusions[patterns[i]] gives the words of block i that are not
 * references; pattern 0 excludes none. Both arrays must outlive the scan. */
API void fl_graph_exclude_words(graph *g, const uint8_t *patterns, const exclusion *exclusions) {
    g->patterns = patterns;
    g->exclusions = exclusions;
}

/* Record an interior reference; the caller has reserved space. */
INLINE void note(graph *g, uint32_t source, uint32_t place, const inside *in) {
    uint64_t offset = in->pointer - in->start;
    g->inners.items[g->inners.count++] = (inner){source, place, offset < UINT32_MAX ? (uint32_t)offset : UINT32_MAX};
}

int record_edges(graph *g, const stretch *s) {
    if (g->noting && interiors_reserve(&g->inners, s->insides))
        return NO_MEMORY;
    while (g->edge_capacity < g->edge_count + s->count)
        if (!grow(&g->edges, g->edge_capacity, &g->edge_capacity, sizeof *g->edges))
            return NO_MEMORY;
    const inside *in = s->interior;
    uint32_t *edges = g->edges, last = g->last_source;
    uint64_t made = g->edge_count;
    for (uint32_t at = 0; at < s->count; at++) {
        uint32_t source = s->found[at].source, edge = s->found[at].edge;
        edges[made - 1] |= source != last ? LAST : 0;
        last = source;
        if (source >= g->group_end) {
            g->edge_count = made;
            if (next_group(g, source))
                return NO_MEMORY;
        }
        if (edge & INTERIOR) {
            if (g->heuristics && heuristics_edge(g, made, in->start, in->pointer, &edge))
                return NO_MEMORY;
            if (edge & INTERIOR && g->noting)
                note(g, source, (uint32_t)made, in);
            in++;
        }
        edges[made++] = edge;
        g->degrees[source - (g->group_end - GROUP)]++;
    }
    g->edge_count = made;
    g->last_source = last;
    return made > MAX_EDGES ? TOO_MANY_EDGES : DONE;
}

static int record_roots(graph *g, const stretch *s) {
    if (g->noting && interiors_reserve(&g->inners, s->insides))
        return NO_MEMORY;
    const inside *in = s->interior;
    for (uint32_t at = 0; at < s->count; at++) {
        uint32_t edge = s->found[at].edge;
        if (edge & INTERIOR) {
            if (g->heuristics && heuristics_root(g, in->pointer, &edge))
                return NO_MEMORY;
            if (edge & INTERIOR && g->noting) {
                note(g, NONE, edge >> INDEX_SHIFT, in);
                if (words_push(&g->root_words, s->address + (uint64_t)s->found[at].source * WORD))
                    return NO_MEMORY;
            }
            in++;
        }
        set_bit(edge & INTERIOR ? g->root_interiors : g->root_starts, edge >> INDEX_SHIFT);
    }
    g->seed = 0; /* if marking has begun, it reads the bits again */
    return DONE;
}

static int record_root_edges(dominators *d, const stretch *s) {
    for (uint32_t at = 0; at < s->count; at++)
        hold(d, s->found[at].edge >> INDEX_SHIFT, root_at(d, s->address + (uint64_t)s->found[at].source * WORD));
    return DONE;
}

/* Memory to scan, in stretches. */
typedef struct {
    graph *g;
    dominators *d; /* NULL: for the graph */
    search how;
    const uint8_t *data;
    uint64_t address, words, stretches, buffers;
    uint32_t *edges; /* where the graph's edges will be recorded, and their estimated number */
    uint64_t edges_wanted;
    /* The next stretch to search; all stretches before `recorded` are recorded. */
    _Atomic uint64_t next, recorded;
    /* by stretch number; NULL: not searched yet */
    _Atomic(const stretch *) filled[MOST_THREADS * BUFFERS];
    _Atomic int failed;
    _Atomic unsigned waiting;
    pthread_mutex_t lock;
    pthread_cond_t change;
} scanning;

static void look_through(scanning *j, uint64_t number, stretch *s, batch *candidates) {
    uint64_t first = number * STRETCH;
    s->data = j->data + first * WORD;
    s->address = j->address + first * WORD;
    s->words = j->words - first < STRETCH ? (uint32_t)(j->words - first) : STRETCH;
    find_references(&j->how, s, candidates);
}

static int record(const scanning *j, const stretch *s) {
    return j->how.from == FROM_BLOCKS ? record_edges(j->g, s) : j->d ? record_root_edges(j->d, s) : record_roots(j->g, s);
}

static void wake(scanning *j) {
    if (!j->waiting)
        return;
    (void)pthread_mutex_lock(&j->lock); /* a thread that is about to wait has checked before */
    (void)pthread_cond_broadcast(&j->change);
    (void)pthread_mutex_unlock(&j->lock);
}

/* Record stretches that are filled. Only one thread does this: otherwise the graph's cache lines
 * would move between processors. */
static void record_filled(scanning *j) {
    const stretch *s;
    for (uint64_t number = j->recorded; (s = j->filled[number % j->buffers]) && !j->failed; j->recorded = ++number) {
        for (uint32_t at = 0; at < s->count; at += 8)
            __builtin_prefetch(&s->found[at]);
        int failed = record(j, s);
        if (failed)
            j->failed = failed;
        j->filled[number % j->buffers] = NULL;
    }
    wake(j);
}

static bool may_go_on(const scanning *j, unsigned thread, uint64_t recorded) {
    return j->recorded >= recorded || j->failed || (!thread && j->filled[j->recorded % j->buffers]);
}

/* Wait until `recorded` stretches are recorded; thread 0 records meanwhile. False if the scan
 * ends. */
static bool wait_for(scanning *j, unsigned thread, uint64_t recorded) {
    while (j->recorded < recorded && !j->failed) {
        if (!thread)
            record_filled(j);
        if (may_go_on(j, thread, recorded))
            continue;
        (void)pthread_mutex_lock(&j->lock);
        j->waiting++;
        while (!may_go_on(j, thread, recorded))
            (void)pthread_cond_wait(&j->change, &j->lock);
        j->waiting--;
        (void)pthread_mutex_unlock(&j->lock);
    }
    return !j->failed;
}

static void scan_some(void *context, unsigned thread) {
    scanning *j = context;
    if (thread == 1 && j->edges_wanted) /* harmless if the edges are moved meanwhile */
        ready_pages(j->edges, j->edges_wanted * sizeof *j->edges);
    stretch *own = &j->g->scan->stretches[thread * BUFFERS];
    /* by buffer: the stretch that must be recorded before it is reused */
    uint64_t at = 0, needed[BUFFERS] = {0};
    for (uint64_t number; (number = j->next++) < j->stretches; at = (at + 1) % BUFFERS) {
        uint64_t window = number < j->buffers ? 0 : number - j->buffers + 1;
        if (!wait_for(j, thread, window > needed[at] ? window : needed[at]))
            return;
        look_through(j, number, &own[at], &j->g->scan->batches[thread]);
        needed[at] = number + 1;
        j->filled[number % j->buffers] = &own[at];
        if (thread)
            wake(j);
        else
            record_filled(j);
    }
    if (!thread) /* other threads may wait for that */
        (void)wait_for(j, thread, j->stretches);
}

static int scan_words(graph *g, const uint8_t *data, uint64_t address, uint64_t count, origin from, dominators *d) {
    scanning j = {.g = g, .d = d, .how = search_of(g, from), .data = data, .address = address, .words = count};
    j.stretches = count / STRETCH + (count % STRETCH != 0);
    uint64_t most = j.stretches / LEAST_SHARE ? j.stretches / LEAST_SHARE : 1;
    unsigned threads = g->b->threads < most ? g->b->threads : (unsigned)most;
    if (!scan_memory(g, threads))
        return NO_MEMORY;
    j.buffers = (uint64_t)threads * BUFFERS;
    j.edges = g->edges + g->edge_count;
    /* space for a reference in one word of four: there are rarely more */
    if (from == FROM_BLOCKS)
        j.edges_wanted = count / 4 < g->edge_capacity - g->edge_count ? count / 4 : g->edge_capacity - g->edge_count;
    if (threads > 1) {
        (void)pthread_mutex_init(&j.lock, NULL);
        (void)pthread_cond_init(&j.change, NULL);
        run_on_threads(threads, scan_some, &j);
        (void)pthread_cond_destroy(&j.change);
        (void)pthread_mutex_destroy(&j.lock);
        return j.failed;
    }
    int failed = DONE;
    for (uint64_t number = 0; number < j.stretches && !failed; number++) {
        look_through(&j, number, g->scan->stretches, g->scan->batches);
        failed = record(&j, g->scan->stretches);
    }
    return failed;
}

static int scan_piece(graph *g, const piece *p, origin from, dominators *d) {
    uint64_t address, count = piece_words(p, &address);
    return scan_words(g, count ? p->data + (address - p->address) : NULL, address, count, from, d);
}

API int fl_scan_blocks(graph *g, const piece *p) {
    if (p->address < g->scanned)
        return DISORDER;
    g->scanned = p->length < UINT64_MAX - p->address ? p->address + p->length : UINT64_MAX;
    if (g->heuristics && heuristics_read_facts(g, p))
        return NO_MEMORY;
    return scan_piece(g, p, FROM_BLOCKS, NULL);
}

/* Free memory if the graph is settled: then no further scan follows. */
static int scanned_roots(graph *g, int result) {
    if (g->phase) {
        scan_free(g->scan);
        g->scan = NULL;
    }
    return result;
}

API int fl_scan_roots(graph *g, const piece *p) { return scanned_roots(g, scan_piece(g, p, FROM_ROOTS, NULL)); }

/* `data`: words as the target has them. */
API int fl_root_words(graph *g, const uint8_t *data, uint64_t count) {
    return scanned_roots(g, scan_words(g, data, 0, count, FROM_ROOTS, NULL));
}

API int fl_dominators_scan(dominators *d, const piece *p, const uint64_t *bounds, const uint32_t *owners, uint64_t bound_count) {
    d->bounds = bounds;
    d->owners = owners;
    d->bound_count = bound_count;
    d->bound = 0;
    d->otherwise = NO_ROOT;
    return scanned_roots(d->g, scan_piece(d->g, p, FROM_ROOTS, d));
}

API int fl_dominators_words(dominators *d, const uint8_t *data, uint64_t count, uint32_t root) {
    d->bound_count = d->bound = 0;
    d->otherwise = root;
    return scanned_roots(d->g, scan_words(d->g, data, 0, count, FROM_ROOTS, d));
}
