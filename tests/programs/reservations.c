/* Parts of reserved addresses that are in use, and stacks that leaked. Usage: reservations KIND. Prints "lost N" and "ready", and waits.
 * Kinds:
 * every_second: every second part of an arena is accessible; a variable has its base.
 * local: the same, with the base in a local variable.
 * joined: the same, and the kernel merges the first part with a large block of malloc below it.
 * block: the same, with the base and the end in a block of malloc. A variable has the address of the part that is filled next.
 * upper: the upper half of each part is accessible; a variable has the base.
 * released: all parts were in use, and every second one was made inaccessible again.
 * dropped: like released, with MADV_DONTNEED for every fourth part before.
 * guarded: the parts have guard pages between them; a variable has the base, and a table has the numbers of the parts.
 * guarded_local: like guarded, with the base in a local variable.
 * slots: like guarded, and a table has the addresses of every second part; the others are free.
 * inside: the parts are in the middle of a larger reservation, whose base is in a variable.
 * stacks: stacks of suspended coroutines; all handles except the last are lost. A handle has the base of the mapping with the guard.
 * buffers: mappings with guards, which were created one by one; every second handle is lost.
 * last_buffer: like buffers; all handles are lost, and a local variable has the address of the last buffer. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define PAGE 4096
#define PART (64 << 10)
#define COUNT 40

struct handle {
    ucontext_t context;
    char *mapping;
};

char *base, *next_part, *table[COUNT]; /* not static: the compiler would remove variables that are only written */
uint16_t numbers[COUNT];
struct arena { char *base, *end; } *arena;
struct handle *handle;
static ucontext_t back;

static int is(const char *kind, const char *name) { return !strcmp(kind, name); }

static char *reserve(size_t size) {
    char *made = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) _exit(3);
    return made;
}

static void allow(char *start, size_t size) {
    if (mprotect(start, size, PROT_READ | PROT_WRITE)) _exit(3);
    memset(start, 1, size);
}

static void forbid(char *start, size_t size) {
    if (mprotect(start, size, PROT_NONE)) _exit(3);
}

static void serve(void) {
    swapcontext(&handle->context, &back);
}

static void start_coroutine(void) {
    handle = calloc(1, sizeof *handle);
    handle->mapping = reserve(PAGE + PART);
    allow(handle->mapping + PAGE, PART);
    getcontext(&handle->context);
    handle->context.uc_stack.ss_sp = handle->mapping + PAGE;
    handle->context.uc_stack.ss_size = PART;
    makecontext(&handle->context, serve, 0);
    swapcontext(&back, &handle->context);
}

/* Make parts of a reservation accessible. Its last page never is, so that the parts do not join memory of libc. Returns its base. */
static char *use_parts(const char *kind) {
    int is_released = is(kind, "released") || is(kind, "dropped"), is_guarded = is(kind, "guarded") || is(kind, "guarded_local") || is(kind, "slots");
    size_t below = is(kind, "inside") ? 4 << 20 : 0, step = is_guarded ? PART + PAGE : 2 * PART;
    char *made = reserve(below + COUNT * step + below + PAGE), *first = made + below;
    if (is_released) allow(first, COUNT * step);
    for (int at = 0; at < COUNT; at++) {
        char *part = first + at * step + (is(kind, "upper") ? PART : 0);
        numbers[at] = (uint16_t)at;
        if (is(kind, "dropped") && at % 2) madvise(part, PART, MADV_DONTNEED);
        if (is_released) forbid(part + PART, PART);
        else allow(part, PART);
        if (is(kind, "slots") && at % 2 == 0) table[at] = part;
        if (is(kind, "block")) next_part = part;
    }
    return made;
}

/* Every `step`th handle is kept. Returns the last buffer. */
static char *use_buffers(int step) {
    char *made = NULL;
    for (int at = 0; at < COUNT; at++) {
        made = reserve(PAGE + PART) + PAGE;
        allow(made, PART);
        table[at] = at % step ? NULL : made;
    }
    return made;
}

static __attribute__((noinline)) void clear_stack(void) {
    volatile char area[65536];
    memset((void *)area, 0, sizeof area);
}

int main(int count, char **words) {
    char *volatile local = NULL;
    int lost = 0;
    if (count < 2) return 2;
    if (is(words[1], "stacks")) {
        for (int at = 0; at < COUNT; at++) start_coroutine();
        memset(&back, 0, sizeof back);
        lost = COUNT - 1;
    } else if (is(words[1], "buffers")) {
        use_buffers(2);
        lost = COUNT / 2;
    } else if (is(words[1], "last_buffer")) {
        local = use_buffers(1 << 20);
        table[0] = NULL;
        lost = COUNT - 1;
    } else if (is(words[1], "local") || is(words[1], "guarded_local")) {
        local = use_parts(words[1]);
    } else if (is(words[1], "block")) {
        arena = malloc(sizeof *arena);
        arena->base = use_parts(words[1]);
        arena->end = arena->base + COUNT * 2 * PART;
    } else {
        base = use_parts(words[1]);
        if (is(words[1], "joined")) next_part = malloc(1 << 20);
    }
    clear_stack();
    printf("lost %d\nready\n", lost);
    fflush(stdout);
    pause();
    return local != NULL;
}
