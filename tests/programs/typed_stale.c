/* A program that prints the true type of each of its blocks. Entries have room for one level more than they use. The word there is the
 * address of a former entry, whose memory is now an order that leaked. Orders and entries have the same size, and begin with a label.
 *
 *   typed_stale ENTRIES */
#include "typed_former.h"
struct entry { struct label *label; double score; struct entry *back; struct level { struct entry *forward; uint64_t span; } levels[]; };
struct order { struct label *customer; uint64_t total; struct order *next; struct label *ship; uint64_t weight; struct label *bill; uint64_t paid; };
static struct entry *first;
static struct order *orders;
static NOINLINE void add_entries(unsigned count) {
    static struct entry *former[MOST];
    for (unsigned at = 0; at < count; at++) {
        struct entry *one = former[at] = calloc(1, sizeof *one + 2 * sizeof one->levels[0]);
        one->levels[1].forward = at ? former[at - 1] : NULL;
        keep_apart();
    }
    static void *even[MOST], *odd[MOST];
    for (unsigned at = 0; at < count; at += 2) { even[at / 2] = former[at]; odd[at / 2] = former[at + 1]; }
    release(even, count / 2, sizeof(struct entry) + 2 * sizeof(struct level));
    for (unsigned at = 0; at < count / 2; at++) {
        struct entry *made = told(malloc(sizeof *made + sizeof made->levels[0]), "struct entry");
        *made = (struct entry){.label = label(), .score = at / 3.0};
        made->levels[0] = (struct level){first, at};
        if (first) first->back = made;
        first = made;
    }
    for (unsigned at = 0; at < count / 2; at++) free(odd[at]);
    for (unsigned at = 0; at < count / 2; at++) {
        leaking = at % 3 != 0;
        struct order *made = told(refilled(sizeof *made), "struct order");
        *made = (struct order){.customer = label(), .total = 9, .bill = label()};
        if (!leaking) { made->next = orders; orders = made; }
        leaking = 0;
    }
    memset(former, 0, sizeof former); memset(even, 0, sizeof even); memset(odd, 0, sizeof odd);
    __asm__ volatile("" ::"r"(even), "r"(odd) : "memory");
}
static NOINLINE void clear_stack(void) { volatile char space[65536]; for (size_t at = 0; at < sizeof space; at++) space[at] = 0; }
int main(int argc, char **argv) {
    unsigned count = argc > 1 ? (unsigned)atoi(argv[1]) & ~1u : 200;
    count = count < MOST ? count : MOST;
    mallopt(M_MXFAST, 0);
    add_entries(count);
    clear_stack();
    puts("ready"); fflush(stdout);
    for (;;) pause();
}
