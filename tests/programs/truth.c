/* A program that prints for each of its blocks what a leak detector must report.
 *
 *   truth THREADS SEED SCALE [OPTIONS]
 *
 * writes one line a block to standard output (all numbers hexadecimal),
 *   address usable requested state kind leader category
 * then "ready", and waits for ever. OPTIONS are letters: h more than 64 MiB of blocks a thread, so that arenas get further heaps; b the
 * program break is blocked half-way, so that the main arena goes on in mappings; s the program moves the break itself; d threads
 * have stacks of the default size; t free memory is given back to the kernel (malloc_trim); f a mapping of the program's own looks like
 * malloc's; m the main thread's stack and registers hold nothing; l so, and return from main (for LeakSanitizer); a the malloc is another
 * than glibc's; e that malloc makes a key of its own when it is first called, which must be one of the first 32.
 *
 * Each thread makes every category in its own arena; the categories that hold pointers in odd places are in holders.h. */
#include "truth.h"
#include "truth_shapes.h"
#include "truth_frees.h"
#include "truth_holders.h"

static pthread_barrier_t together, leaving;
static unsigned thread_count, scale;
static const char *tunables = "";
static int option_heaps, option_blocked, option_sbrk, option_return, option_bare, option_default, option_trim, option_fake, option_early;

static void *(*volatile own_malloc)(size_t) = malloc; /* a compiler may remove direct calls of malloc */

static void meet(void) { pthread_barrier_wait(&together); }

/* More large blocks than fit into one heap: every third is held by the next one, the others are lost. */
static NOINLINE void many_heaps(struct thread *me) {
    void *volatile *held = &me->global[GLOBAL_HEAPS];
    for (int i = 0; i < 1000; i++) {
        struct block b = {calloc(1, 100000), 100000, 0};
        if (i % 3 == 0) {
            *(void *volatile *)b.p = *held;
            *held = b.p;
            note_reachable(b, "heaps-list");
        } else {
            note_definite(b, "heaps-single");
        }
    }
}

/* Another mapping follows the program break, so that the main arena cannot grow there any more. */
static NOINLINE void block_break(void) {
    char *end = sbrk(0);
    end = (char *)(((uintptr_t)end + 4095) & ~(uintptr_t)4095);
    if (mmap(end, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != end) abort();
}

/* Only one thread may allocate here: sbrk and malloc must not be used by several threads at the same time. */
static NOINLINE void disturb_break(struct thread *me) {
    for (unsigned i = 0; i <= scale; i++) {
        reachable_shapes(&me->rng);
        lost_shapes(&me->rng);
        if (option_sbrk && sbrk(4096 * (1 + (intptr_t)i)) == (void *)-1) abort();
        if (option_blocked && i == 0) block_break();
    }
}

static NOINLINE void build(struct thread *me) {
    struct rng *r = &me->rng;
    for (unsigned i = 0; i < scale; i++) {
        reachable_shapes(r);
        possible_shapes(r);
        lost_shapes(r);
        mmapped_shapes(r, option_fake);
    }
    held_shapes(me, r, option_bare && me->index == 0);
    if (option_heaps) many_heaps(me);
    for (unsigned i = 0; i < scale; i++) prepare_frees(me, r);
}

/* Blocks that were freed before main: frames of main's callers may still refer to them. Blocks that reuse their memory must be held. */
static NOINLINE void take_what_was_freed(void) {
    for (size_t size = 1; size <= 1024; size += size < 128 ? 8 : 64)
        for (int i = 0; i < 3; i++) {
            struct block b = {calloc(1, size), size, 0};
            if (!b.p) abort();
            memset(b.p, 0, malloc_usable_size(b.p)); /* overwrite former content after the requested size */
            root(b.p);
            note_reachable(b, "startup");
        }
}

static void live(struct thread *me) {
    meet();
    if (me->index == 0 && (option_sbrk || option_blocked)) disturb_break(me);
    meet();
    if (!option_return && !truth_other && !strstr(tunables, "tcache_count=0")) learn_key();
    meet();
    build(me);
    give(me, &me->rng);
    meet();
    take(me, &threads[(me->index + 1) % thread_count], &me->rng);
    meet(); /* from here on, nothing allocates except the call that sorts the bins */
    free_to_bins(me);
    meet();
    free_to_caches(me);
    free_others(&threads[(me->index + 1) % thread_count]);
    meet();
#ifdef __GLIBC__
    if (option_trim && me->index == 0) malloc_trim(0);
#endif
}

static void *worker(void *argument) {
    struct thread *me = argument;
    live(me);
    scrub();
    leave_on_dead_stack(me);
    hold(me, 0);
    return NULL;
}

static void *leaver(void *argument) {
    struct thread *me = argument;
    pthread_barrier_wait(&leaving); /* both threads exist at the same time: otherwise the second would reuse the stack of the first */
    leave_and_exit(me, &me->rng);
    return NULL;
}

static NOINLINE void start(pthread_t *at, void *(*run)(void *), struct thread *me) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (!option_default) pthread_attr_setstacksize(&attributes, 512 << 10);
    if (pthread_create(at, &attributes, run, me)) abort();
    pthread_attr_destroy(&attributes);
}

int main(int argc, char **argv) {
    static pthread_t handles[MAX_THREADS + LEAVERS];
    if (argc < 4) return 2;
    thread_count = (unsigned)atoi(argv[1]);
    scale = (unsigned)atoi(argv[3]);
    if (thread_count < 1 || thread_count > MAX_THREADS) return 2;
    for (const char *o = argc > 4 ? argv[4] : ""; *o; o++) {
        option_heaps |= *o == 'h';
        option_blocked |= *o == 'b';
        option_sbrk |= *o == 's';
        option_default |= *o == 'd';
        option_trim |= *o == 't';
        option_fake |= *o == 'f';
        option_bare |= *o == 'm' || *o == 'l';
        option_return |= *o == 'l';
        truth_other |= *o == 'a';
        option_early |= *o == 'e';
    }
    if (getenv("GLIBC_TUNABLES")) tunables = getenv("GLIBC_TUNABLES");
    if (option_early) free(own_malloc(1));
    make_keys();
    for (unsigned i = 0; i < MAX_THREADS + LEAVERS; i++) {
        threads[i].index = i;
        seed(&threads[i].rng, 0x9e3779b97f4a7c15u * ((uint64_t)atoi(argv[2]) * 1000 + i + 1));
    }
    /* Before any block exists: a new thread inherits registers of its creator, and keeps them in its first frame. */
    pthread_barrier_init(&together, NULL, thread_count);
    for (unsigned i = 1; i < thread_count; i++) start(&handles[i], worker, &threads[i]);

    pthread_barrier_init(&leaving, NULL, LEAVERS);
    for (unsigned i = MAX_THREADS; i < MAX_THREADS + LEAVERS; i++) start(&handles[i], leaver, &threads[i]);
    for (unsigned i = MAX_THREADS; i < MAX_THREADS + LEAVERS; i++) {
        pthread_join(handles[i], NULL);
        handles[i] = 0; /* musl unmaps such a thread's stack, and blocks may then be at the address in this handle */
    }
    if (truth_other) take_what_was_freed();
    live(&threads[0]);
    scrub();
    if (option_return) {
        while (atomic_load(&stopped) < (int)thread_count - 1) usleep(1000);
        scrub();
        clear_vectors();
        FORGET_SAVED();
        return 0;
    }
    while (atomic_load(&stopped) < (int)thread_count - 1) usleep(1000);
    scrub();
    leave_on_dead_stack(&threads[0]);
    hold(&threads[0], 1);
}
