/* Leaks blocks of 64 requested bytes in `lose` by 99 stacks, blocks of the same size in `lose_other`
 * by 3, and keeps some by a wrapper of malloc that both use. After "ready" it does a round for each
 * line of standard input, and prints the usable size of such a block as "block lost 0 SIZE", then "done". */
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOINLINE __attribute__((noinline, noclone))
#define SIZE 64
#define EACH 10 /* number of blocks of each stack */

static void *volatile kept[1000];
static int keeping;
static size_t usable;

NOINLINE static void *xmalloc(size_t size) {
    void *volatile made = malloc(size);
    memset(made, 0, malloc_usable_size(made));
    return made;
}

NOINLINE static void lose(void) {
    for (int i = 0; i < EACH; i++) {
        void *volatile lost = xmalloc(SIZE);
        usable = malloc_usable_size(lost);
        lost = NULL;
    }
}

NOINLINE static void lose_other(void) {
    for (int i = 0; i < EACH; i++) {
        void *volatile lost = xmalloc(SIZE);
        usable = malloc_usable_size(lost);
        lost = NULL;
    }
}

NOINLINE static void keep(void) {
    for (int i = 0; i < EACH && keeping < 1000; i++)
        kept[keeping++] = xmalloc(SIZE);
}

/* Each depth is a different stack. */
NOINLINE static int descend(int depth, void (*last)(void)) {
    volatile int made = 0;
    if (depth)
        made = descend(depth - 1, last) + 1;
    else
        last();
    return made;
}

NOINLINE static void wipe(void) {
    volatile char room[65536];
    memset((void *)room, 0, sizeof room);
    __asm__ volatile("" : : "r"(room) : "memory"); /* keeps GCC from removing the array */
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 1 << 12);
    printf("ready\n");
    char text[16];
    while (fgets(text, sizeof text, stdin)) {
        for (int depth = 0; depth < 99; depth++)
            descend(depth, lose);
        for (int depth = 0; depth < 3; depth++)
            descend(depth, lose_other);
        descend(0, keep);
        wipe();
        printf("block lost 0 %zu\ndone\n", usable);
    }
    return 0;
}
