/* Threads that wait at known places. Prints "ready" once all are there.
 *   3 threads: start -> alpha -> beta -> hold          2 threads: start -> alpha -> gamma_ -> hold
 *   1 thread: start -> down (101 times) -> hold        1 thread: start -> faulty -> [signal, on a stack of its own] handler -> hold
 *   1 thread: start -> by_frame_pointer -> code made at run time -> hold        main: main -> pthread_join …
 * usage: stacks [crash]: with the word, main calls a null pointer once all wait */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
static atomic_int waiting, ending;

NOINLINE void hold(void) {
    atomic_fetch_add(&waiting, 1);
    while (!ending)
        pause();
    waiting--;
}

NOINLINE void beta(volatile int *n) {
    char room[200];
    memset(room, *n, sizeof room);
    hold();
    *n = room[3];
}
NOINLINE void gamma_(volatile int *n) {
    hold();
    *n += 1;
}
NOINLINE void alpha(volatile int *n) {
    if (*n)
        beta(n);
    else
        gamma_(n);
    *n += 1;
}
/* each level has work left after the call, so that the compiler cannot replace the recursion by a loop */
NOINLINE void down(volatile int *n) {
    if ((*n)-- == 0)
        hold();
    else
        down(n);
    *n += 1;
}
NOINLINE void handler(int signal) {
    (void)signal;
    hold();
    waiting++;
}
NOINLINE void faulty(volatile int *n) {
    stack_t other = {.ss_sp = malloc(65536), .ss_size = 65536};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    sigaltstack(&other, NULL);
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    *n += 1;
}
#if defined(__aarch64__)
/* stp x29, x30, [sp, #-16]!; mov x29, sp; blr x0; ldp x29, x30, [sp], #16; ret */
static const unsigned char code[] = {0xfd, 0x7b, 0xbf, 0xa9, 0xfd, 0x03, 0x00, 0x91, 0x00, 0x00,
                                     0x3f, 0xd6, 0xfd, 0x7b, 0xc1, 0xa8, 0xc0, 0x03, 0x5f, 0xd6};
#elif defined(__x86_64__)
/* push rbp; mov rbp, rsp; sub rsp, 32; call *rdi; leave; ret */
static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x20, 0xff, 0xd7, 0xc9, 0xc3};
#elif defined(__i386__)
/* push ebp; mov ebp, esp; sub esp, 24; call *8(ebp); leave; ret */
static const unsigned char code[] = {0x55, 0x89, 0xe5, 0x83, 0xec, 0x18, 0xff, 0x55, 0x08, 0xc9, 0xc3};
#elif defined(__riscv)
/* addi sp, sp, -16; sd ra, 8(sp); sd fp, (sp); addi fp, sp, 16; jalr a0; ld ra, 8(sp); ld fp, (sp); addi sp, sp, 16; ret */
static const unsigned code[] = {0xff010113, 0x00113423, 0x00813023, 0x01010413, 0x000500e7, 0x00813083, 0x00013403, 0x01010113, 0x00008067};
#else
#define NO_FRAME_POINTERS /* code of these machines has no chain of frame pointers */
#endif
__attribute__((optimize("no-omit-frame-pointer"))) NOINLINE void by_frame_pointer(volatile int *n) {
#ifdef NO_FRAME_POINTERS
    hold();
#else
    char *made = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(made, code, sizeof code);
    __builtin___clear_cache(made, made + sizeof code);
    ((void (*)(void (*)(void)))(uintptr_t)made)(hold);
#endif
    *n += 1;
}

static void *start(void *argument) {
    static void (*const ways[])(volatile int *) = {alpha, alpha, alpha, alpha, alpha, down, faulty, by_frame_pointer};
    long which = (long)argument;
    volatile int n = which < 3 ? 1 : which < 5 ? 0 : 100;
    ways[which](&n);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[8];
    for (long i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, start, (void *)i);
    while (waiting < 8)
        usleep(1000);
    if (argc > 1) {
        sleep(1);
        ((void (*)(char **))(uintptr_t)(argc - 2))(argv);
    }
    puts("ready");
    fflush(stdout);
    pthread_join(threads[0], NULL);
}
