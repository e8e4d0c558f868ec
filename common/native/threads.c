/* Threads for one call of the C engine. */
#define _POSIX_C_SOURCE 200809L /* pthread_sigmask */
#include "threads.h"

#include <pthread.h>
#include <signal.h>

#define STACK_SIZE ((size_t)256 << 10) /* the C engine's functions need a few KiB */
#define LEAST_PARTS 8u                  /* minimum number of parts for several threads */

typedef struct {
    pthread_t thread;
    void (*work)(void *, unsigned);
    void *context;
    unsigned number;
} worker;

static void *run(void *argument) {
    worker *w = argument;
    w->work(w->context, w->number);
    return NULL;
}

static unsigned start(worker *workers, unsigned wanted, void (*work)(void *, unsigned), void *context) {
    pthread_attr_t attributes;
    sigset_t all, before;
    unsigned started = 0;
    if (pthread_attr_init(&attributes))
        return 0;
    /* if this fails, the default size is used */
    (void)pthread_attr_setstacksize(&attributes, STACK_SIZE);
    sigfillset(&all);
    if (!pthread_sigmask(SIG_SETMASK, &all, &before)) { /* inherited by the new threads */
        for (; started < wanted; started++) {
            worker *w = &workers[started];
            *w = (worker){.work = work, .context = context, .number = started + 1};
            if (pthread_create(&w->thread, &attributes, run, w))
                break;
        }
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    (void)pthread_attr_destroy(&attributes);
    return started;
}

void run_on_threads(unsigned threads, void (*work)(void *context, unsigned number), void *context) {
    worker workers[MOST_THREADS];
    unsigned wanted = threads < MOST_THREADS ? threads : MOST_THREADS;
    unsigned started = wanted > 1 ? start(workers, wanted - 1, work, context) : 0;
    work(context, 0);
    for (unsigned at = 0; at < started; at++)
        (void)pthread_join(workers[at].thread, NULL);
}

typedef struct {
    uint64_t count, size;
    part_work *work;
    void *context;
    _Atomic uint64_t next; /* part */
} parts;

static void take_parts(void *context, unsigned thread) {
    parts *p = context;
    for (uint64_t first; (first = p->next++ * p->size) < p->count;)
        p->work(p->context, thread, first, p->count - first < p->size ? p->count : first + p->size);
}

void run_in_parts(unsigned threads, uint64_t count, uint64_t size, part_work *work, void *context) {
    parts p = {.count = count, .size = size, .work = work, .context = context};
    run_on_threads(count / size < LEAST_PARTS ? 1 : threads, take_parts, &p);
}
