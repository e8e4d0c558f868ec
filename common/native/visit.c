/* Visits blocks breadth first, several together so that cache misses overlap. The number of threads
 * does not change which blocks are marked. */
#include "visit.h"

#include "threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Prefetch distance ahead of the visited block: edges (FAR), groups of their targets (SOON). */
#define FAR 32u
#define SOON 16u
/* minimum number of blocks of a graph that is marked by several threads */
#define LEAST_SHARED (1u << 16)
/* minimum number of queued blocks, half of which are given to a waiting thread */
#define LEAST_GIVEN 64u
#define TURN 1024              /* blocks visited between two checks of the other threads */

int grow_queue(queue *q) {
    uint32_t size = q->items ? q->mask + 1 : 0, wanted = size ? size * 2 : 1024;
    /* A large array grows without a copy, and its pages become resident when they are used. */
    uint32_t *items = wanted ? realloc(q->items, (size_t)wanted * sizeof *items) : NULL;
    if (!items)
        return NO_MEMORY;
    for (uint32_t at = q->head; size && at != q->tail; at++) /* positions do not change */
        if (at & size)
            items[at & (wanted - 1)] = items[at & q->mask];
    q->items = items;
    q->mask = wanted - 1;
    return DONE;
}


/* One thread's part of marking. Other threads may mark the same blocks, which are then visited
 * twice. */
typedef struct {
    graph *g;
    queue *queue;
    unsigned phase;
    uint8_t kind, before;
} visitor;

static visitor visitor_of(graph *g, queue *q, unsigned phase) {
    return (visitor){g, q, phase, phase == OTHERS ? POSSIBLE : REACHABLE, phase == PROMOTE ? POSSIBLE : UNKNOWN};
}

INLINE uint8_t kind_of(const graph *g, uint32_t index) { return __atomic_load_n(node_of(g, index), __ATOMIC_RELAXED) >> KIND_SHIFT; }

/* Change a block's kind if it has the previous kind. Return 1 in that case and queue the block
 * if it has edges; else 0. */
INLINE int reach(const visitor *v, uint32_t index) {
    uint8_t *node = node_of(v->g, index), was = __atomic_load_n(node, __ATOMIC_RELAXED);
    if (was >> KIND_SHIFT != v->before)
        return 0;
    /* before writing: these wide reads would stall on the store */
    uint32_t count, first = edges_of(v->g, index, &count);
    __atomic_store_n(node, was ^ (uint8_t)((v->kind ^ v->before) << KIND_SHIFT), __ATOMIC_RELAXED);
    if (v->before != UNKNOWN)
        __atomic_store_n(&v->g->kinds[index], v->kind, __ATOMIC_RELAXED);
    return push(v->queue, first, count != 0) ? NO_MEMORY : 1;
}

/* Handle a reference of a reachable block to the interior of this one. */
INLINE void reach_inside(const visitor *v, uint32_t index) {
    uint64_t *bits = &v->g->interiors[index >> 6], mask = UINT64_C(1) << (index & 63);
    if (kind_of(v->g, index) == v->before && !(__atomic_load_n(bits, __ATOMIC_RELAXED) & mask))
        __atomic_fetch_or(bits, mask, __ATOMIC_RELAXED);
}

/* Queue some of the blocks from which marking starts; false if there are no more. */
static bool seed(const visitor *v, int *failed) {
    enum { SOME = 16 };
    graph *g = v->g;
    uint64_t all = g->count / 64 + 1, at = g->seed < all ? atomic_fetch_add(&g->seed, SOME) : all;
    uint64_t end = at >= all || all - at < SOME ? all : at + SOME;
    const uint64_t *first = v->phase == STARTS ? g->root_starts : v->phase == OTHERS ? g->root_interiors : g->promoted;
    const uint64_t *second = v->phase == STARTS ? g->reached : v->phase == OTHERS ? g->interiors : NULL;
    for (; at < end; at++)
        for (uint64_t bits = first[at] | (second ? second[at] : 0); bits; bits &= bits - 1)
            if (reach(v, (uint32_t)(at * 64) + (uint32_t)__builtin_ctzll(bits)) < 0)
                *failed = NO_MEMORY;
    return g->seed < all;
}

/* Visit queued blocks, subtracting from the budget, until it is used up or few are left. */
INLINE int visit_queued(const visitor *v, int64_t *budget, uint32_t few) {
    const graph *g = v->g;
    queue *q = v->queue;
    bool starts_only = v->phase != OTHERS;
    uint32_t far = q->head, soon = q->head;
    while (*budget > 0 && q->tail - q->head > few) {
        for (; far != q->tail && far - q->head < FAR; far++)
            __builtin_prefetch(&g->edges[q->items[far & q->mask]]);
        for (; soon != q->tail && soon - q->head < SOON; soon++) {
            const uint32_t *edge = &g->edges[q->items[soon & q->mask]];
            __builtin_prefetch(&g->groups[(*edge >> INDEX_SHIFT) / GROUP]);
            for (unsigned more = 0; !(*edge & LAST) && more < 8; more++)
                __builtin_prefetch(&g->groups[(*++edge >> INDEX_SHIFT) / GROUP]);
        }
        const uint32_t *edge = &g->edges[q->items[q->head++ & q->mask]];
        for (bool last = false; !last; edge++, --*budget) {
            uint32_t target = *edge >> INDEX_SHIFT;
            last = *edge & LAST;
            if (!starts_only || !(*edge & INTERIOR)) {
                if (reach(v, target) < 0)
                    return NO_MEMORY;
            } else {
                reach_inside(v, target);
            }
        }
    }
    return DONE;
}

/* Follow about `budget` references; return 1 if blocks are left to visit. */
static int visit_alone(const visitor *v, int64_t budget) {
    int failed = DONE;
    for (bool seeds = true; budget > 0 && !failed;) {
        while (seeds && v->queue->tail - v->queue->head < FAR && !failed)
            seeds = seed(v, &failed);
        if (!failed && v->queue->tail == v->queue->head)
            return DONE;
        if (!failed)
            failed = visit_queued(v, &budget, seeds ? FAR - 1 : 0);
    }
    return failed ? failed : 1;
}

/* Threads that mark together. When a thread waits, the others put half of their queued blocks
 * into `pool`, and the waiting thread takes blocks from there. */
typedef struct {
    graph *g;
    unsigned phase;
    pthread_mutex_t lock; /* protects the following fields */
    pthread_cond_t change;
    LIST(uint32_t) pool;
    unsigned members;
    bool done;
    _Atomic unsigned waiting;
    _Atomic int64_t budget;
    _Atomic int failed;
} team;

static void locked(team *t) { (void)pthread_mutex_lock(&t->lock); }
static void unlocked(team *t) { (void)pthread_mutex_unlock(&t->lock); }

/* Put all queued blocks except `kept` into the pool. */
static void give(team *t, queue *q, uint32_t kept) {
    locked(t);
    while (q->tail - q->head > kept && !t->failed)
        if (PUSH(t->pool, q->items[q->head++ & q->mask]))
            t->failed = NO_MEMORY;
    (void)pthread_cond_broadcast(&t->change);
    unlocked(t);
}

/* Wait for blocks in the pool and queue some; false if there will be none. */
static bool take(team *t, queue *q) {
    enum { SOME = 512 };
    locked(t);
    t->waiting++;
    while (!t->pool.count && !t->done && t->budget > 0 && !t->failed) {
        if (t->waiting == t->members) {
            t->done = true;
            (void)pthread_cond_broadcast(&t->change);
        } else {
            (void)pthread_cond_wait(&t->change, &t->lock);
        }
    }
    t->waiting--;
    for (unsigned taken = 0; taken < SOME && t->pool.count && !t->failed; taken++)
        if (push(q, t->pool.items[--t->pool.count], true))
            t->failed = NO_MEMORY;
    unlocked(t);
    return q->tail != q->head;
}

static void visit_some(team *t, const visitor *v) {
    bool seeds = true;
    while (t->budget > 0 && !t->failed) {
        int64_t some = TURN;
        int failed = DONE;
        queue *q = v->queue;
        while (seeds && q->tail - q->head < FAR && !failed)
            seeds = seed(v, &failed);
        if (!failed && q->tail == q->head && !take(t, q))
            return;
        if (!failed)
            failed = visit_queued(v, &some, seeds ? FAR - 1 : 0);
        if (failed)
            t->failed = failed;
        t->budget -= TURN - some;
        if (t->waiting && q->tail - q->head > LEAST_GIVEN)
            give(t, q, (q->tail - q->head) / 2);
    }
}

static void join_team(void *context, unsigned thread) {
    team *t = context;
    queue own = {NULL, 0, 0, 0};
    visitor v = visitor_of(t->g, thread ? &own : &t->g->queue, t->phase);
    locked(t);
    t->members++;
    unlocked(t);
    visit_some(t, &v);
    locked(t);
    t->members--;
    (void)pthread_cond_broadcast(&t->change); /* threads that wait see that the budget is used up */
    unlocked(t);
    if (thread) /* the queue of the graph is kept for the next call */
        give(t, v.queue, 0);
    free(own.items);
}

static int visit_together(graph *g, int64_t budget, unsigned phase) {
    team t = {.g = g, .phase = phase, .budget = budget};
    (void)pthread_mutex_init(&t.lock, NULL);
    (void)pthread_cond_init(&t.change, NULL);
    run_on_threads(g->b->threads, join_team, &t);
    for (uint64_t at = 0; at < t.pool.count && !t.failed; at++)
        if (push(&g->queue, t.pool.items[at], true))
            t.failed = NO_MEMORY;
    free(t.pool.items);
    (void)pthread_cond_destroy(&t.change);
    (void)pthread_mutex_destroy(&t.lock);
    return t.failed ? t.failed : g->queue.tail != g->queue.head || g->seed <= g->count / 64;
}

int visit(graph *g, int64_t budget, unsigned phase) {
    const visitor alone = visitor_of(g, &g->queue, phase);
    return g->b->threads > 1 && g->count >= LEAST_SHARED ? visit_together(g, budget, phase) : visit_alone(&alone, budget);
}
