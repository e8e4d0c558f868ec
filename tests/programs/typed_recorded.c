/* A program that prints the true type of each of its blocks. Only the functions on the stacks of their allocations show the types of most
 * blocks: nothing refers to them but void pointers, and their members are numbers.
 *
 *   typed_recorded OBJECTS */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

struct sample { double low, high; long count; };
struct job { long number, due; };
struct token { long uses, limit; };
struct event { struct event *next; long number; };
struct frame { unsigned char *pixels; long width, height; };
enum { SLOTS = 1024 };
static void *slots[SLOTS];
static struct event *events;

static void tell(void *block, int leaks, const char *type) { printf("%lx %s %s\n", (unsigned long)block, leaks ? "leaked" : "reachable", type); }

static NOINLINE struct sample *new_sample(long number) {
    struct sample *made = calloc(1, sizeof *made);
    *made = (struct sample){0.5, 1.5, number};
    return made;
}

static NOINLINE struct job *new_job(long number) {
    struct job *made = calloc(1, sizeof *made);
    *made = (struct job){number, 7};
    return made;
}

static NOINLINE struct token *new_token(long number) {
    struct token *made = calloc(1, sizeof *made);
    *made = (struct token){number, 9};
    return made;
}

/* The pixels have the size of a frame, and are allocated by the same function. */
static NOINLINE struct frame *new_frame(void) {
    struct frame *made = calloc(1, sizeof *made);
    *made = (struct frame){calloc(1, sizeof *made), 4, 6};
    tell(made->pixels, 1, "unsigned char[]");
    return made;
}

/* The type of the result does not name the type of the block. */
static NOINLINE void *new_event(void) { return calloc(1, sizeof(struct event)); }

static NOINLINE void build(int count) {
    for (int at = 0; at < count; at++) {
        tell(new_sample(at), 1, "struct sample");
        tell(new_frame(), 1, "struct frame");
        tell(slots[2 * at % SLOTS] = new_job(at), 0, "struct job");
        tell(slots[(2 * at + 1) % SLOTS] = new_token(at), 0, "struct token");
        struct event *one = new_event();
        one->number = at;
        if (at % 3) one->next = events, events = one;
        tell(one, at % 3 == 0, "struct event");
    }
}

static NOINLINE void clear_stack(void) {
    volatile char space[16384];
    for (size_t at = 0; at < sizeof space; at++) space[at] = 0;
}

int main(int argc, char **argv) {
    build(argc > 1 ? atoi(argv[1]) : 100);
    clear_stack();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
