/* A leaf function that holds blocks in its red zone and in registers alone is interrupted by a signal, whose handler waits in pause().
   Prints "held ADDRESS" of those that it will read again, "lost ADDRESS" of the others, then "ready".
   usage: interrupted [alternate]: the handler runs on a stack of its own */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 12 };
static struct {
    uintptr_t hidden[BLOCKS]; /* complements of addresses */
    volatile int begun, over;
} shared;
static volatile int handling;
static char other_stack[1 << 16];
static int alternate;

/* Blocks with even numbers are read again after the loop, those with odd numbers are not. (The processor need not have AVX.) */
uintptr_t spin(void *shared);
__asm__(".text\n.globl spin\n.type spin, @function\nspin:\n.cfi_startproc\n"
        "mov (%rdi), %rax; not %rax; mov %rax, -16(%rsp)\n"
        "mov 8(%rdi), %rax; not %rax; mov %rax, -64(%rsp)\n"
        "mov 16(%rdi), %rax; not %rax; movq %rax, %xmm5; movddup %xmm5, %xmm5\n"
        "mov 24(%rdi), %rax; not %rax; movq %rax, %xmm6; movddup %xmm6, %xmm6\n"
        "mov 32(%rdi), %r9; not %r9\n"
        "mov 40(%rdi), %r8; not %r8\n"
        "mov 48(%rdi), %rax; not %rax; mov %rax, -128(%rsp)\n"
        "mov 56(%rdi), %rax; not %rax; mov %rax, -120(%rsp)\n"
        "mov 64(%rdi), %rcx; not %rcx\n"
        "mov 72(%rdi), %rdx; not %rdx\n"
        "mov 80(%rdi), %rax; not %rax; movq %rax, %xmm15\n"
        "mov 88(%rdi), %rax; not %rax; movq %rax, %xmm0\n"
        "xor %eax, %eax\n movl $1, 96(%rdi)\n"
        "1: pause\n cmpl $0, 100(%rdi)\n je 1b\n"
        "xor %edx, %edx; xor %r8d, %r8d; pxor %xmm0, %xmm0; movq %rdx, %xmm6; movl $0, -120(%rsp); movl $0, -116(%rsp)\n"
        "mov -16(%rsp), %rax; movq %xmm5, %rdx; add %rdx, %rax; add %r9, %rax; add -128(%rsp), %rax; add %rcx, %rax\n"
        "movq %xmm15, %rdx; add %rdx, %rax\n"
        "ret\n.cfi_endproc\n.size spin, .-spin\n");

static void handle(int unused) {
    (void)unused;
    handling = 1;
    for (;;) pause();
}

static void *work(void *unused) {
    if (alternate) {
        stack_t stack = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
        sigaltstack(&stack, NULL);
    }
    return (void *)spin(&shared) == unused ? unused : NULL;
}

static void __attribute__((noinline)) make(void) {
    for (int i = 0; i < BLOCKS; i++) {
        void *volatile block = malloc(100 + 32 * (size_t)i);
        shared.hidden[i] = ~(uintptr_t)block;
        printf("%s %p\n", i % 2 ? "lost" : "held", block);
        block = NULL;
    }
}

int main(int argc, char **argv) {
    pthread_t thread;
    struct sigaction action = {.sa_handler = handle};
    alternate = argc > 1 && !strcmp(argv[1], "alternate");
    action.sa_flags = alternate ? SA_ONSTACK : 0;
    sigaction(SIGUSR1, &action, NULL);
    make();
    volatile char waste[1 << 15];
    for (unsigned i = 0; i < sizeof waste; i++) waste[i] = 0;
    if (pthread_create(&thread, NULL, work, NULL)) abort();
    while (!shared.begun) usleep(1000);
    pthread_kill(thread, SIGUSR1);
    while (!handling) usleep(1000);
    usleep(20000);
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
