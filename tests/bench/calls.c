/* Calls `event` as fast as it can, through two stacks of 19 and 20 frames. */
#include <stdio.h>

#define NOINLINE __attribute__((noinline, noclone))
NOINLINE void event(volatile long *n) { *n += 1; }

NOINLINE long down(volatile long *n, int depth) {
    volatile long room[8] = {*n, depth};
    if (depth)
        return down(n, depth - 1) + room[1];
    event(n);
    return room[0];
}

int main(void) {
    volatile long n = 0, sum = 0;
    puts("ready");
    fflush(stdout);
    for (;;)
        sum += down(&n, (int)(n % 2) + 16);
}
