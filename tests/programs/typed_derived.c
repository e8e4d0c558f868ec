/* A program that prints the true type of each of its blocks: structs that begin with a base struct. glibc does not split a free chunk if
 * the rest would be too small, so a base struct may have a block as large as its derived struct. The words after it are those of a former
 * derived struct, and fit this type.
 *
 *   typed_derived OBJECTS */
#include "typed_former.h"
struct item { struct item *next; uint64_t number; struct label *label; };
struct special { struct item item; struct label *extra; struct item *twin; };
struct record { struct record *next; struct label *label; uint64_t first, second, third; };
struct copy { struct record record; struct label *other; struct item *item; };
static struct { struct item *items; struct record *records; struct label *labels; } all;
static void *specials[MOST], *copies[MOST];
/* Allocate blocks with the content of derived structs. Their labels are those of all objects. */
static NOINLINE void leave_content(unsigned count) {
    for (unsigned at = 0; at < count; at++) {
        uint64_t *block = specials[at] = malloc(sizeof(struct special));
        memset(block, 0, sizeof(struct special));
        block[3] = at % 3 ? (uint64_t)(uintptr_t)all.labels : 0;
        keep_apart();
        block = copies[at] = malloc(sizeof(struct copy));
        memset(block, 0, sizeof(struct copy));
        block[5] = (uint64_t)(uintptr_t)all.labels;
        keep_apart();
    }
}
static NOINLINE void free_all(void **blocks, unsigned count) { for (unsigned at = 0; at < count; at++) { free(blocks[at]); blocks[at] = NULL; } }
static NOINLINE void add_item(unsigned number) {
    struct item *made;
    if (number % 2) made = told(malloc(sizeof *made), "struct item");
    else {
        struct special *one = told(malloc(sizeof *one), "struct special");
        *one = (struct special){.extra = all.labels};
        made = &one->item;
    }
    *made = (struct item){leaking ? NULL : all.items, number, all.labels};
    if (!leaking) all.items = made;
}
static NOINLINE void add_record(unsigned number) {
    struct record *made;
    if (number % 3) made = told(malloc(sizeof *made), "struct record");
    else {
        struct copy *one = told(malloc(sizeof *one), "struct copy");
        *one = (struct copy){.other = all.labels, .item = all.items};
        made = &one->record;
    }
    *made = (struct record){leaking ? NULL : all.records, all.labels, number, 7, number * 3};
    if (!leaking) all.records = made;
}
static NOINLINE void clear_stack(void) { volatile char space[65536]; for (size_t at = 0; at < sizeof space; at++) space[at] = 0; }
int main(int argc, char **argv) {
    unsigned count = argc > 1 ? (unsigned)atoi(argv[1]) : 200;
    count = count < MOST ? count : MOST;
    mallopt(M_MXFAST, 0);
    for (unsigned at = 0; at < 20; at++) { struct label *made = label(); made->alias = all.labels; all.labels = made; }
    leave_content(count);
    free_all(specials, count);
    for (unsigned at = 0; at < count; at++) { leaking = at % 5 == 2; add_item(at); }
    free_all(copies, count);
    for (unsigned at = 0; at < count; at++) { leaking = at % 5 == 2; add_record(at); }
    leaking = 0;
    clear_stack();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
