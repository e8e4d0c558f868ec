/* Threads for one call of the kernel. */
#define _POSIX_C_SOURCE 200809L /* pthread_sigmask */
#include "threads.h"

#include <pthread.h>
#include <signal.h>

#define STACK_SIZE ((size_t)256 << 10) /* the kernel's functions need a few KiB */

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
    (void)pthread_attr_setstacksize(&attributes, STACK_SIZE); /* else the default serves */
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
