/* A program that prints the true type of each of its blocks: structs that begin with a base struct of the same size class. Their content
 * does not determine which of them a block has, but the blocks to which the members of the base refer have only one possible type.
 *
 *   typed_inherited OBJECTS */
#include "typed_former.h"
struct brush { uint64_t colour, width; struct brush *fallback; };
struct style { struct brush *fill, *stroke; uint64_t flags[5]; };
struct listener { struct listener *next; uint64_t event[9]; };
struct shape { struct shape *next; struct style *style; uint64_t number; };
struct circle { struct shape shape; uint64_t radius; };
struct square { struct shape shape; struct listener *listeners; };
struct link { struct link *next, *prev; };
struct task { struct link link; uint64_t due[9]; struct brush *brush; };
struct timer { struct link link; uint64_t due[8]; struct brush *brush; struct listener *listener; };
static struct { struct shape *shapes; struct link links; } all;
static NOINLINE struct brush *brush(uint64_t colour) {
    struct brush *made = told(calloc(1, sizeof *made), "struct brush");
    *made = (struct brush){colour, colour % 7, NULL};
    return made;
}
static NOINLINE struct style *style(uint64_t number) {
    struct style *made = told(calloc(1, sizeof *made), "struct style");
    *made = (struct style){.fill = brush(number), .stroke = number % 2 ? brush(number * 3) : NULL, .flags = {number}};
    return made;
}
static NOINLINE struct listener *listener(uint64_t number) {
    struct listener *made = told(calloc(1, sizeof *made), "struct listener");
    made->event[0] = number;
    return made;
}
static NOINLINE void add_shape(uint64_t number) {
    struct shape *made;
    if (number % 3 == 0)
        made = told(calloc(1, sizeof *made), "struct shape");
    else if (number % 3 == 1) {
        struct circle *one = told(calloc(1, sizeof *one), "struct circle");
        one->radius = number;
        made = &one->shape;
    } else {
        struct square *one = told(calloc(1, sizeof *one), "struct square");
        one->listeners = listener(number);
        made = &one->shape;
    }
    *made = (struct shape){leaking ? NULL : all.shapes, style(number), number};
    if (!leaking) all.shapes = made;
}
static NOINLINE void add_task(uint64_t number) {
    struct link *made;
    if (number % 2) {
        struct task *one = told(calloc(1, sizeof *one), "struct task");
        one->due[8] = number;
        one->brush = brush(number);
        made = &one->link;
    } else {
        struct timer *one = told(calloc(1, sizeof *one), "struct timer");
        one->brush = brush(number);
        one->listener = listener(number);
        made = &one->link;
    }
    if (leaking) return;
    *made = (struct link){all.links.next, &all.links};
    if (made->next) made->next->prev = made;
    all.links.next = made;
}
static NOINLINE void clear_stack(void) { volatile char space[65536]; for (size_t at = 0; at < sizeof space; at++) space[at] = 0; }
int main(int argc, char **argv) {
    unsigned count = argc > 1 ? (unsigned)atoi(argv[1]) : 200;
    for (unsigned at = 0; at < count; at++) { leaking = at % 5 == 2; add_shape(at); add_task(at); }
    leaking = 0;
    clear_stack();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
