/* Blocks that are alternate signal stacks, and lost blocks of the same size. Prints "stack ADDRESS" and "lost ADDRESS" a line, then
   "ready". No address stays in the process.
   usage: signal_stacks THREADS LOST fresh|odd|used|none
   fresh: stacks of SIGSTKSZ bytes, no signal was handled on them; odd: of 40,000 bytes; used: of 40,000 bytes, each handled a signal;
   none: no stacks, only the loss. With -DINSIDE=N: N blocks of 4,000 bytes that only interior pointers reach. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OWN_SIZE = 40000 };
static const char *how;
static pthread_barrier_t all;

static void handle(int number) { (void)number; }

static void __attribute__((noinline)) sweep(void) {
    volatile char waste[1 << 14];
    for (unsigned i = 0; i < sizeof waste; i++) waste[i] = 0;
}

#ifndef NO_STACKS
static size_t size(void) { return strcmp(how, "fresh") ? OWN_SIZE : (size_t)SIGSTKSZ; }

static void __attribute__((noinline)) set(void) {
    stack_t stack = {.ss_sp = malloc(size()), .ss_size = size()};
    printf("stack %p\n", stack.ss_sp);
    if (sigaltstack(&stack, NULL)) exit(1);
    if (!strcmp(how, "used")) {
        struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
        sigaction(SIGUSR1, &action, NULL);
        raise(SIGUSR1);
    }
    *(volatile stack_t *)&stack = (stack_t){0};
}
#else
static size_t size(void) { return 8192; }
static void set(void) { (void)handle; }
#endif

static void *run(void *unused) {
    set();
    sweep();
    pthread_barrier_wait(&all);
    for (;;) pause();
    return unused;
}

static void __attribute__((noinline)) lose(int count) {
    for (int i = 0; i < count; i++) {
        void *volatile block = calloc(1, size());
        printf("lost %p\n", block);
        block = NULL;
    }
}

#ifdef INSIDE
static char *inside[INSIDE]; /* pointers to the inside of blocks only */
static void keep(void) {
    for (int i = 0; i < INSIDE; i++)
        if ((inside[i] = malloc(4000))) inside[i] += 104;
}
#else
static void keep(void) {}
#endif

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int threads = atoi(argv[1]);
    how = argv[3];
    keep();
    pthread_barrier_init(&all, NULL, threads + 1);
    for (int i = 0; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run, NULL)) abort();
    }
    set();
    lose(atoi(argv[2]));
    pthread_barrier_wait(&all);
    sweep();
    puts("ready");
    fflush(stdout);
    sweep();
    for (;;) pause();
}
