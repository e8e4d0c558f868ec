/* Loses blocks and leaves their addresses in every register and word that the next function may overwrite, then waits in pause().
   Prints "lost ADDRESS" and "held ADDRESS" a line, then "ready".
   usage: leftovers [threads waiting elsewhere: 0] */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LEFT = 40 };
static uintptr_t left[LEFT]; /* complements: no address is in memory */
static uintptr_t kept[4];

static void *wait_elsewhere(void *unused) {
    for (;;) pause();
    return unused;
}

static void __attribute__((noinline)) make(void) {
    for (int i = 0; i < LEFT; i++) {
        void *volatile block = malloc(100 + 16 * (size_t)i);
        left[i] = ~(uintptr_t)block;
        printf("lost %p\n", block);
        block = NULL;
    }
    for (int i = 0; i < 4; i++) {
        void *volatile block = malloc(2000 + 16 * (size_t)i);
        kept[i] = ~(uintptr_t)block;
        printf("held %p\n", block);
        block = NULL;
    }
    puts("ready");
    fflush(stdout);
}

/* Overwrite what make() and stdio have left on the stack. */
static void __attribute__((noinline)) sweep(void) {
    volatile char waste[1 << 15];
    for (unsigned i = 0; i < sizeof waste; i++) waste[i] = 0;
}

/* 16 words go to vector registers, 6 to general ones, 18 below the stack pointer. rbx, r12, r13 and r14 keep their values. */
void wait_with(const uintptr_t *left, const uintptr_t *kept);
__asm__(".text\n.globl wait_with\n.type wait_with, @function\nwait_with:\n.cfi_startproc\n"
        "sub $8, %rsp\n.cfi_adjust_cfa_offset 8\n"
        "mov (%rsi), %rbx; not %rbx; mov 8(%rsi), %r12; not %r12; mov 16(%rsi), %r13; not %r13; mov 24(%rsi), %r14; not %r14\n"
        ".altmacro\n"
        ".macro vector number\n mov 8*\\number(%rdi), %rax\n not %rax\n movq %rax, %xmm\\number\n movddup %xmm\\number, %xmm\\number\n .endm\n"
        ".irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n vector \\number\n .endr\n"
        ".irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17\n"
        " mov 8*(22+\\number)(%rdi), %rax\n not %rax\n mov %rax, -56-8*\\number(%rsp)\n .endr\n"
        "mov 128(%rdi), %rsi; not %rsi; mov 136(%rdi), %rdx; not %rdx; mov 144(%rdi), %r8; not %r8\n"
        "mov 152(%rdi), %r9; not %r9; mov 160(%rdi), %r10; not %r10; mov 168(%rdi), %rdi; not %rdi\n"
        "1: call pause@PLT\n jmp 1b\n"
        ".cfi_endproc\n.size wait_with, .-wait_with\n");

int main(int argc, char **argv) {
    make();
    for (int i = argc > 1 ? atoi(argv[1]) : 0; i > 0; i--) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, wait_elsewhere, NULL)) abort();
    }
    sweep();
    wait_with(left, kept);
}
