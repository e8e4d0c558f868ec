/* Blocks that only the thread-local storage of a library loaded with dlopen holds: libc allocates that storage itself, in the heap, and
 * refers to it from each thread's DTV. Prints the same list as truth.c.
 *
 *   cc -shared -fPIC -DLIBRARY dynamic_tls.c -o lib.so;  cc dynamic_tls.c -o program -pthread -ldl;  program ./lib.so */
#ifdef LIBRARY

__thread void *held[40];
__thread _Alignas(256) char wide[3000]; /* an alignment larger than malloc's default */

void hold_here(int at, void *p) {
    held[at] = p;
    wide[5] = 1;
}

#else

#include "truth.h"
#include <dlfcn.h>

#define THREADS 4

static void (*hold_here)(int, void *);
static hidden nothing_in[9] = {-1, -1, -1, -1, -1, -1, -1, -1, -1};
static pthread_barrier_t together;
static struct rng generators[THREADS];

static NOINLINE void work(struct rng *r) {
    struct block direct = make(r, 60), child = make(r, 1000), part = make(r, 100), lost = make(r, 100);
    hold_here(7, direct.p);
    note_reachable(direct, "dynamic-tls");
    link_to(r, direct, 0, child.p);
    note_reachable(child, "dynamic-tls");
    hold_here(30, (char *)part.p + 8);
    note_possible(part, "dynamic-tls-interior");
    note_definite(lost, "single");
}

static NOINLINE void wait_for_ever(uint64_t say) { stop(nothing_in, say); }

static void *run(void *argument) {
    pthread_barrier_wait(&together);
    work(argument);
    scrub();
    pthread_barrier_wait(&together);
    wait_for_ever(0);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t handle;
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (!library) return 2;
    *(void **)&hold_here = dlsym(library, "hold_here");
    pthread_barrier_init(&together, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) seed(&generators[i], 77777u * (unsigned)(i + 1));
    for (int i = 1; i < THREADS; i++)
        if (pthread_create(&handle, NULL, run, &generators[i])) return 2;
    pthread_barrier_wait(&together);
    work(&generators[0]);
    pthread_barrier_wait(&together);
    while (atomic_load(&stopped) < THREADS - 1) usleep(1000);
    scrub();
    wait_for_ever(1);
}

#endif
