/* Blocks that a thread itself holds (thread-local storage, keys, stack, registers), and blocks to which only dead stack refers. */
#ifndef TRUTH_HOLDERS_H
#define TRUTH_HOLDERS_H
#include "truth.h"
#include "truth_shapes.h"

#define KEYS 40 /* struct pthread has 32 values of a thread; further values are in a block that libc allocates */

static pthread_key_t keys[KEYS];
static __thread void *volatile tls_zero[3];
static __thread void *volatile tls_data[3] = {(void *)&roots[0], (void *)&roots[1], (void *)&roots[2]};

static void make_keys(void) {
    for (int i = 0; i < KEYS; i++)
        if (pthread_key_create(&keys[i], NULL)) abort();
}

/* `bare`: the thread's stack and registers must hold no block (its function returns, or could return). */
static NOINLINE void held_shapes(struct thread *me, struct rng *r, int bare) {
    struct block b = make_any(r), c = make_any(r), low = make_any(r), high = make_any(r), child = make_any(r), part = make_any(r);
    tls_zero[1] = b.p;
    note_reachable(b, "tls");
    tls_data[2] = c.p;
    note_reachable(c, "tls");
    tls_zero[2] = (void *)interior(r, part);
    note_possible(part, "tls-interior");
    pthread_setspecific(keys[3], low.p);
    note_reachable(low, "specific-first");
    pthread_setspecific(keys[KEYS - 2], high.p);
    note_reachable(high, "specific-second");
    link_to(r, high, 0, child.p);
    note_reachable(child, "specific-second");
    if (bare) return;
    for (int i = 0; i < IN_REGISTERS; i++) {
        struct block in = make_any(r), next = make_any(r);
        link_to(r, in, 0, next.p);
        me->in[i] = hide(in.p);
        note_reachable(in, "register");
        note_reachable(next, "register");
    }
    struct block below = make_any(r);
    me->in[BELOW_STACK] = hide(below.p);
    if (RED_ZONE)
        note_reachable(below, "red-zone");
    else
        note_definite(below, "below-stack");
    for (int i = 0; i < 4; i++) {
        struct block on = make_any(r);
        me->held[i] = i < 3 ? hide(on.p) : hide(interior(r, on));
        if (i < 3)
            note_reachable(on, "stack");
        else
            note_possible(on, "stack-interior");
    }
    for (int i = 0; i < 8; i++) {
        struct block dead = make_any(r), next = make_any(r);
        link_to(r, dead, 0, next.p);
        me->dead[i] = i % 2 ? hide(dead.p) : hide(interior(r, dead));
        note_definite(dead, "dead-stack");
        note_indirect(next, dead, "dead-stack");
    }
}

/* Pointers in a frame far below later frames; the rest of the frame is not written. */
static NOINLINE void leave_on_dead_stack(struct thread *me) {
    volatile uintptr_t frame[1024];
    for (int i = 0; i < 8; i++) frame[i] = me->dead[i] ? ~me->dead[i] : 0;
    __asm__ volatile("" : : "r"(frame) : "memory");
}

/* The frame in which a thread waits, with pointers. */
static NOINLINE void hold(struct thread *me, unsigned say) {
    volatile uintptr_t frame[4];
    for (int i = 0; i < 4; i++) frame[i] = me->held[i] ? ~me->held[i] : 0;
    __asm__ volatile("" : : "r"(frame) : "memory");
    stop(me->in, say);
}

/* ---- threads that end ---------------------------------------------------------------------------------------------- */

/* libc reuses the stack of an ended thread for the next one, with the old content of the stack and of thread-local storage. */
static NOINLINE void leave_and_exit(struct thread *me, struct rng *r) {
    volatile uintptr_t frame[1024];
    struct block on_stack = make_any(r), next = make_any(r), in_tls = make_any(r), specific = make_any(r), held = make_any(r);
    for (int i = 0; i < 1024; i++) frame[i] = 0;
    link_to(r, on_stack, 0, next.p);
    note_definite(on_stack, "exited-stack");
    note_indirect(next, on_stack, "exited-stack");
    note_definite(in_tls, "exited-tls");
    note_definite(specific, "exited-specific");
    note_definite(make_any(r), "exited-single");
    note_reachable(held, "exited-global");
    me->global[GLOBAL_LEAVER] = held.p;
    frame[300] = frame[500] = (uintptr_t)on_stack.p;
    tls_zero[0] = in_tls.p;
    pthread_setspecific(keys[1], specific.p);
    __asm__ volatile("" : : "r"(frame) : "memory");
}

#endif
