/* Memory that is leaked, held, free but not returned, and of no allocator, so many MiB of each:
 *
 *   combined LEAKED HELD FREED UNREAD
 *
 * LEAKED: blocks of 1.5 MiB of which the first quarter is written to, and no pointer is kept. HELD: a list of 2,000-byte blocks.
 * FREED: 2,000-byte blocks that are freed but for the last. UNREAD: a bump allocator's mapping, whose cells refer to one another.
 * It prints "leaked BYTES RESIDENT", "held BYTES BLOCKS", "freed BYTES", "unread BYTES" and "ready". */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB (1l << 20)

struct node {
    struct node *next;
    char text[1984];
} *g_list;
struct cell {
    struct cell *previous;
    long number;
} *g_last;
char *g_pin; /* stays in use at the end of the heap */

static long usable(void *block) { return (long)malloc_usable_size(block); }

__attribute__((noinline)) static void leak(long mib) {
    long bytes = 0, resident = 0;
    for (long i = 0; i < mib * 2 / 3; i++) {
        char *volatile block = malloc(3 * MIB / 2);
        memset(block, 'L', 3 * MIB / 8);
        bytes += usable(block);
        resident += 3 * MIB / 8;
        block = NULL;
    }
    printf("leaked %ld %ld\n", bytes, resident);
}

__attribute__((noinline)) static void hold(long mib) {
    long bytes = 0, count = 0;
    while (bytes < mib * MIB) {
        struct node *made = malloc(sizeof *made);
        memset(made, 'H', sizeof *made);
        made->next = g_list;
        g_list = made;
        bytes += usable(made);
        count++;
    }
    printf("held %ld %ld\n", bytes, count);
}

__attribute__((noinline)) static void release(long mib) {
    long count = mib * MIB / 2000, bytes = 0;
    char **all = mmap(NULL, (size_t)(count + 1) * sizeof *all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (long i = 0; i < count; i++) {
        all[i] = memset(malloc(2000), 'F', 2000);
        bytes += usable(all[i]);
    }
    g_pin = malloc(2000);
    for (long i = 0; i < count; i++) free(all[i]);
    munmap(all, (size_t)(count + 1) * sizeof *all);
    printf("freed %ld\n", bytes);
}

__attribute__((noinline)) static void bump(long mib) {
    if (mib) {
        char *heap = mmap(NULL, (size_t)(mib * MIB), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (long at = 0; at < mib * MIB; at += (long)sizeof(struct cell)) {
            struct cell *made = (struct cell *)(heap + at);
            made->previous = g_last;
            made->number = at;
            g_last = made;
        }
    }
    printf("unread %ld\n", mib * MIB);
}

__attribute__((noinline)) static void wipe(void) {
    volatile char stack[30000];
    memset((void *)stack, 0, sizeof stack);
    __asm__ volatile("" : : "r"(stack) : "memory"); /* keeps GCC from removing the array */
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    leak(atol(argv[1])); /* first: otherwise it would reuse freed memory */
    hold(atol(argv[2]));
    release(atol(argv[3]));
    bump(atol(argv[4]));
    wipe();
    puts("ready");
    for (;;) pause();
}
