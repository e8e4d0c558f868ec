/* A module for CPython whose function `stop` makes blocks with the interpreter's allocators, prints the expected result for each
 * (one line for each block, as truth.c does), prints "ready" and waits for ever.
 *
 * Requests of up to 512 bytes are pymalloc's, rounded up to 16; larger ones the process's malloc's. An object that the garbage collector
 * knows stands 16 bytes into its block. */
#include "truth.h"
#include "pymalloc_api.h"

#define HEADER 16 /* PyGC_Head */

static void *volatile held[2000];
static unsigned holders;
static struct {
    hidden block;
    size_t size;
    int domain;
} leaving[1000];
static unsigned leaving_count;

static uint64_t usable(hidden block, size_t size) {
    return size <= 512 ? (size + 15) & ~(uint64_t)15 : malloc_usable_size(reveal(block));
}

static NOINLINE hidden obtain(size_t size, int object_domain) {
    hidden made = hide(object_domain ? PyObject_Malloc(size) : PyMem_Malloc(size));
    if (!~made) abort();
    fill(reveal(made), usable(made, size)); /* all of it: its former content may have been pointers */
    return made;
}

static NOINLINE int is_zero(hidden block, size_t size) {
    const volatile char *at = reveal(block);
    while (size && !at[size - 1]) size--;
    return !size;
}

/* Allocate the blocks that the interpreter has freed, and a pool of memory that was never used: the
 * interpreter's dictionaries, lists and frames may contain stale pointers to the freed blocks. */
static NOINLINE void plug(size_t size, size_t count, size_t fresh) {
    static void *volatile plugs;
    for (size_t zeros = 0; count && zeros < fresh; count--) {
        hidden block = hide(PyObject_Malloc(size));
        zeros = is_zero(block, size) ? zeros + 1 : 0;
        fill(reveal(block), usable(block, size));
        *(void *volatile *)reveal(block) = plugs;
        plugs = reveal(block);
    }
}

static NOINLINE void take_old_places(void) {
    plug(512, 20000, 2100); /* more than an arena */
    plug(1500, 3000, 3000);
    for (size_t size = 16; size <= 1520; size += 16) plug(size, size <= 512 ? 20000 : 20, 16384 / size);
}

static NOINLINE void say(hidden block, size_t size, const char *kind, hidden leader, const char *category) {
    note_line(~block, usable(block, size), size, "in-use", kind, leader ? ~leader : 0, category, 0);
}

static void put(hidden block, size_t offset, hidden target, size_t into) {
    *(volatile uint64_t *)((char *)reveal(block) + offset) = ~target + into;
}

static void hold_it(hidden block, size_t into) { held[holders++] = (char *)reveal(block) + into; }

/* Blocks of one size: lost; held by their start or middle; a lost pair; a lost cycle; freed; held only by freed blocks. */
static NOINLINE void shapes(size_t size, int domain) {
    hidden single = obtain(size, domain), kept = obtain(size, domain);
    say(single, size, "definite", single, "single");
    hold_it(kept, 0);
    say(kept, size, "reachable", 0, "held");
    if (size < 32) return;
    hidden middle = obtain(size, domain), first = obtain(size, domain), second = obtain(size, domain);
    hold_it(middle, 8);
    say(middle, size, "possible", 0, "interior");
    put(first, 8, second, 0);
    say(first, size, "definite", first, "pair");
    say(second, size, "indirect", first, "pair");
    hidden low = obtain(size, domain), high = obtain(size, domain);
    put(low, 0, high, 0);
    put(high, 16, low, 0);
    hidden leader = ~low < ~high ? low : high;
    say(low, size, low == leader ? "definite" : "indirect", leader, "cycle");
    say(high, size, high == leader ? "definite" : "indirect", leader, "cycle");
    hidden gone = obtain(size, domain), orphan = obtain(size, domain);
    put(gone, 16, orphan, 0);
    leaving[leaving_count].block = gone;
    leaving[leaving_count].size = size;
    leaving[leaving_count++].domain = domain;
    say(orphan, size, "definite", orphan, "behind-freed");
}

/* Objects whose last reference is lost, and objects that only C code holds. */
static NOINLINE void objects(void) {
    for (int64_t length = 20; length < 1000; length += 140) {
        size_t size = 33 + (size_t)length;
        hidden lost = hide(PyBytes_FromStringAndSize(NULL, length)), kept = hide(PyBytes_FromStringAndSize(NULL, length));
        fill((char *)reveal(lost) + 32, usable(lost, size) - 32);
        fill((char *)reveal(kept) + 32, usable(kept, size) - 32);
        say(lost, size, "definite", lost, "lost-bytes");
        hold_it(kept, 0);
        say(kept, size, "reachable", 0, "held-bytes");
    }
    for (int64_t items = 26; items < 200; items += 30) { /* shorter tuples come from a free list; 3.14 has one word more */
        for (int way = 0; way < 3; way++) {
            object *tuple = PyTuple_New(items);
            if (way) PyObject_GC_UnTrack(tuple);
            hidden block = hide((char *)tuple - HEADER);
            size_t size = HEADER + 24 + 8 * (size_t)items;
            tuple = NULL;
            if (way == 0) say(block, size, "definite", block, "tracked-tuple"); /* only the collector's list refers to it */
            if (way == 1) say(block, size, "definite", block, "lost-tuple");
            if (way == 2) hold_it(block, HEADER);
            if (way == 2) say(block, size, "reachable", 0, "held-tuple");
        }
    }
}

/* Last, so that nothing reuses the freed blocks. */
static NOINLINE void release(void) {
    for (unsigned at = 0; at < leaving_count; at++) {
        size_t size = leaving[at].size;
        if (size <= 512) note_line(~leaving[at].block, usable(leaving[at].block, size), size, "free", "none", 0, "freed", 0);
        if (leaving[at].domain)
            PyObject_Free(reveal(leaving[at].block));
        else
            PyMem_Free(reveal(leaving[at].block));
    }
}

static NOINLINE void build(void) {
    take_old_places();
    for (int round = 0; round < 2; round++)
        for (size_t size = 1; size < 1500; size += size < 600 ? 9 : 400) shapes(size, round);
    objects();
    release();
}

static NOINLINE void wait_for_ever(void) {
    static const hidden nothing[IN_REGISTERS + 1];
    scrub();
    stop(nothing, 1);
}

static object *stop_here(object *module, object *none) {
    (void)module, (void)none;
    build();
    wait_for_ever();
    return NULL;
}

static method methods[] = {{"stop", stop_here, TAKES_NOTHING, NULL}, {NULL, NULL, 0, NULL}};
static module_definition definition = {.base = {1, NULL}, .name = "pymalloc_truth", .size = -1, .methods = methods};

object *PyInit_pymalloc_truth(void) { return PyModule_Create2(&definition, ABI); }
