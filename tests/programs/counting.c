/* Threads that call `event` through known stacks, inside and outside of scopes, and print the number of calls.
 * usage: counting THREADS: prints "ready", waits for a file "go" in its folder, makes its calls, prints them as "FRAMES COUNT OUTSIDE"
 * (innermost function first), then "done". For a file "again" it calls `event` once more, and prints "alive". For a file
 * "crash" it calls `event`, and ends by SIGSEGV. For a file "end" it calls `event`, and ends. */
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
#define BIG 3000
enum { ALPHA = 20, SCOPED = 15, NESTED = 10, ROOMS = 12, BIGS = 7 };

NOINLINE void event(volatile int *n) { *n += 1; }
NOINLINE void enter_scope(volatile int *depth) { *depth += 1; }
NOINLINE void leave_scope(volatile int *depth) { *depth -= 1; }

NOINLINE void alpha(volatile int *n) {
    event(n);
    *n += 1;
}

/* Recursion, with the saved registers of each level different at each call. */
NOINLINE int beta(volatile int *n, int depth) {
    if (depth)
        return beta(n, depth - 1) + *n;
    event(n);
    return *n;
}

/* A frame of variable size, which is unwound by its frame pointer. */
NOINLINE void room(volatile int *n, int size) {
    volatile char *space = alloca((size_t)size * 16 + 16);
    space[0] = (char)size;
    event(n);
    *n += space[0];
}

/* Two stacks whose innermost 3,000 bytes are the same. */
NOINLINE void big(volatile int *n) {
    volatile char space[BIG];
    memset((char *)space, 1, BIG);
    event(n);
    *n += space[BIG / 2];
}
NOINLINE void left(volatile int *n) {
    big(n);
    *n += 1;
}
NOINLINE void right(volatile int *n) {
    big(n);
    *n += 2;
}

static int threads;

static void *work(void *argument) {
    int times = 1 + (int)(long)argument;
    volatile int n = 0, depth = 0;
    for (int i = 0; i < ALPHA * times; i++)
        alpha(&n);
    for (int i = 0; i < SCOPED * times; i++) {
        enter_scope(&depth);
        alpha(&n);
        leave_scope(&depth);
    }
    for (int i = 0; i < NESTED * times; i++) {
        enter_scope(&depth);
        enter_scope(&depth);
        leave_scope(&depth);
        beta(&n, 2);
        leave_scope(&depth);
    }
    for (int i = 0; i < ROOMS * times; i++)
        room(&n, i % 5);
    for (int i = 0; i < BIGS * times; i++) {
        left(&n);
        right(&n);
        right(&n);
    }
    return NULL;
}

static void wait_for(const char *file) {
    while (access(file, F_OK))
        usleep(10000);
}

int main(int count, char **words) {
    pthread_t ids[64];
    volatile int n = 0;
    threads = count > 1 ? atoi(words[1]) : 1;
    if (threads < 1 || threads > 64)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    wait_for("go");
    for (long i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, work, (void *)i))
            return 1;
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    int times = threads * (threads + 1) / 2;
    printf("event;alpha;work %d %d\n", (ALPHA + SCOPED) * times, ALPHA * times);
    printf("event;beta;beta;beta;work %d 0\n", NESTED * times);
    printf("event;room;work %d %d\n", ROOMS * times, ROOMS * times);
    printf("event;big;left;work %d %d\n", BIGS * times, BIGS * times);
    printf("event;big;right;work %d %d\n", 2 * BIGS * times, 2 * BIGS * times);
    puts("done");
    for (;;) {
        usleep(10000);
        if (!access("again", F_OK) && !unlink("again")) {
            event(&n);
            enter_scope(&n);
            leave_scope(&n);
            puts("alive");
        }
        if (!access("end", F_OK)) {
            alpha(&n);
            return 7;
        }
        if (!access("crash", F_OK)) {
            alpha(&n);
            *(volatile int *)(long)(n - n) = 1;
        }
    }
}
