/* Data of threads that musl and glibc store differently: a main thread with so much thread-local storage that ld.so allocates it by malloc;
 * threads that ended and were not joined, whose stacks stay mapped; detached ones. Prints the same list as truth.c.
 *
 *   musl_threads */
#include "truth.h"

#define ENDED 3

static __thread void *volatile held[600]; /* more than musl can store in its own data */
static pthread_t handles[ENDED];
static struct rng generators[ENDED + 2] = {{{11}}, {{22}}, {{33}}, {{44}}, {{55}}};
static hidden returned[ENDED];
static hidden nothing_in[9] = {-1, -1, -1, -1, -1, -1, -1, -1, -1};
static atomic_int gone;

/* Only the stack and the thread-local storage of an ended thread hold it; the thread's result has not been joined. */
static NOINLINE void leave(struct rng *r, int at) {
    volatile uint64_t frame[1024];
    struct block on_stack = make_any(r), next = make_any(r), in_tls = make_any(r), result = make_any(r);
    for (int i = 0; i < 1024; i++) frame[i] = 0;
    link_to(r, on_stack, 0, next.p);
    note_definite(on_stack, "ended-stack");
    note_indirect(next, on_stack, "ended-stack");
    note_definite(in_tls, "ended-tls");
    note_reachable(result, "ended-result");
    frame[300] = (uint64_t)on_stack.p;
    held[77] = in_tls.p;
    returned[at] = hide(result.p);
    __asm__ volatile("" : : "r"(frame) : "memory");
}

static void *end(void *argument) {
    int at = (int)(intptr_t)argument;
    leave(&generators[at], at);
    void *result = reveal(returned[at]);
    returned[at] = 0;
    atomic_fetch_add(&gone, 1);
    return result;
}

static void *detached(void *argument) {
    struct rng *r = argument;
    note_definite(make_any(r), "detached-single");
    held[5] = NULL;
    atomic_fetch_add(&gone, 1);
    return NULL;
}

static NOINLINE void main_holds(struct rng *r) {
    struct block first = make_any(r), last = make_any(r), part = make_any(r), lost = make_any(r);
    held[0] = first.p;
    note_reachable(first, "main-tls");
    held[599] = last.p;
    note_reachable(last, "main-tls");
    held[300] = (char *)part.p + 9;
    note_possible(part, "main-tls-interior");
    note_definite(lost, "single");
}

static NOINLINE void wait_for_ever(void) { stop(nothing_in, 1); }

int main(void) {
    pthread_t handle;
    for (int i = 0; i < ENDED; i++)
        if (pthread_create(&handles[i], NULL, end, (void *)(intptr_t)i)) return 2;
    if (pthread_create(&handle, NULL, detached, &generators[ENDED])) return 2;
    pthread_detach(handle);
    handle = 0;
    while (atomic_load(&gone) < ENDED + 1) usleep(1000);
    usleep(50000); /* musl unmaps a detached thread's stack, and unlinks other threads, when it notices that they have ended */
    __asm__ volatile("" : : "r"(&handle) : "memory");
    main_holds(&generators[ENDED + 1]);
    scrub();
    wait_for_ever();
}
