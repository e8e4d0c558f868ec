/* Allocates a block and frees it, as fast as it can, with stacks of a given depth. usage: allocs DEPTH:
 * prints "ready". After each million of pairs, it prints the nanoseconds of processor time per pair. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define NOINLINE __attribute__((noinline, noclone))

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

NOINLINE static void pair(size_t size) {
    void *volatile block = malloc(size);
    free(block);
}

NOINLINE static void deep(int depth, size_t size) {
    volatile char room[32];
    room[0] = (char)depth;
    if (depth)
        deep(depth - 1, size);
    else
        pair(size);
    room[1] = room[0];
}

int main(int count, char **words) {
    int depth = count > 1 ? atoi(words[1]) : 8;
    setvbuf(stdout, NULL, _IOLBF, 1 << 12);
    puts("ready");
    for (;;) {
        double before = now();
        for (int i = 0; i < 1000000; i++)
            deep(depth, 48);
        printf("%.2f\n", (now() - before) / 1e6);
    }
}
