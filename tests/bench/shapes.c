/* A heap of one shape, of those that make it hard to tell who holds what. Prints its number of blocks, then aborts, so that the kernel
 * writes a core; or waits for somebody who takes one.
 * usage: shapes SHAPE BLOCKS [wait], SHAPE one of
 *   list      a doubly linked list, of which the owner has both ends
 *   parents   a random tree whose nodes point to their parents
 *   owners    lists of a thousand nodes, each of which points to its list's owner and to the owner of all
 *   digraph   three references a block, at random
 *   array     an array of them, each of which refers to a random earlier one; every third slot is empty
 *   register  the same, and only a register leads to the array
 *   lost      nothing leads to any
 *   ends      a list whose last node refers to as many blocks as it has nodes, to which another array refers, too
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct node {
    struct node *a, *b, *c;
} node;

static void *volatile held[2]; /* the only roots of the program */
static uint64_t state = 0x9E3779B97F4A7C15u;

static uint64_t below(uint64_t limit) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint64_t)(((unsigned __int128)state * limit) >> 64);
}

/* End, or wait, with `array` only in a register. */
static void stop_with(uintptr_t array, int waits) {
#if defined(__x86_64__)
    long number = waits ? SYS_pause : SYS_kill, result;
    __asm__ volatile("movq %2, %%r15\n\txorl %k2, %k2\n\tsyscall"
                     : "=a"(result), "+D"(*(long[]){getpid()}), "+r"(array)
                     : "a"(number), "S"((long)SIGABRT)
                     : "r15", "rcx", "r11", "memory");
    (void)result;
#else
    held[0] = (void *)array;
    if (waits)
        pause();
    abort();
#endif
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    const char *shape = argv[1];
    uint64_t count = strtoull(argv[2], NULL, 10);
    size_t room = (count + 1) * sizeof(node *);
    node **nodes = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); /* not a root: unmapped before the end */
    if (nodes == MAP_FAILED || count < 4)
        return 1;
    for (uint64_t at = 0; at < count; at++)
        nodes[at] = calloc(1, sizeof **nodes);
    held[0] = nodes[0];
    if (!strcmp(shape, "list")) {
        for (uint64_t at = 0; at < count; at++)
            *nodes[at] = (node){at + 1 < count ? nodes[at + 1] : NULL, at ? nodes[at - 1] : NULL, NULL};
        held[1] = nodes[count - 1];
    } else if (!strcmp(shape, "parents")) {
        for (uint64_t at = 1; at < count; at++) { /* an existing child becomes the child of the new node */
            node *parent = nodes[below(at)], *fresh = nodes[at], **place = below(2) ? &parent->a : &parent->b;
            fresh->a = *place;
            if (fresh->a)
                fresh->a->c = fresh;
            fresh->c = parent;
            *place = fresh;
        }
    } else if (!strcmp(shape, "owners")) {
        void **all = calloc(count / 1000 + 1, sizeof *all);
        for (uint64_t at = 1; at < count; at++) {
            uint64_t owner = at - at % 1000;
            *nodes[at] = (node){at % 1000 < 999 && at + 1 < count ? nodes[at + 1] : NULL, at % 1000 ? nodes[owner] : NULL, nodes[0]};
            all[at / 1000] = nodes[owner];
        }
        *nodes[0] = (node){nodes[1], NULL, (node *)all};
    } else if (!strcmp(shape, "digraph")) {
        for (uint64_t at = 0; at < count; at++)
            *nodes[at] = (node){nodes[below(count)], nodes[below(count)], nodes[below(count)]};
    } else if (!strcmp(shape, "array") || !strcmp(shape, "register")) {
        node **array = malloc(count * sizeof *array);
        for (uint64_t at = 0; at < count; at++) {
            nodes[at]->a = at ? nodes[below(at)] : NULL;
            array[at] = at % 3 ? nodes[at] : NULL;
        }
        held[0] = array;
    } else if (!strcmp(shape, "lost")) {
        held[0] = NULL;
    } else if (!strcmp(shape, "ends")) {
        uint64_t half = count / 2;
        void **one = malloc(half * sizeof *one), **other = malloc(half * sizeof *other);
        for (uint64_t at = 0; at < half; at++) {
            nodes[at]->a = at + 1 < half ? nodes[at + 1] : (node *)one;
            one[at] = other[at] = nodes[half + at];
        }
        held[1] = other;
    } else {
        return 2;
    }
    munmap(nodes, room);
    nodes = NULL;
    printf("{\"blocks\": %llu}\n", (unsigned long long)count);
    fflush(stdout);
    if (!strcmp(shape, "register")) {
        uintptr_t array = (uintptr_t)held[0];
        held[0] = NULL;
        stop_with(array, argc > 3);
    }
    if (argc > 3)
        pause();
    abort();
}
