/* A leaf function waits in pause(), and then reads what rdi and r8 point to, and not what rsi and r9 do.
   Prints an address a line, then "ready": "held" and "lost" blocks, whose addresses are in rdi and rsi alone; "second" and "third", which
   a list from a global variable holds, in r8 and r9.
   usage: reread [known]: rdi and rsi have the addresses of the list's blocks too, and nothing is lost */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct node {
    struct node *next;
    char more[88];
};

struct node *first;
static uintptr_t hidden[4]; /* complements of addresses: rdi, rsi, r8, r9 */

void wait_with(const uintptr_t *hidden);
__asm__(".text\n.globl wait_with\n.type wait_with, @function\nwait_with:\n.cfi_startproc\n"
        "mov 8(%rdi), %rsi; not %rsi; mov 16(%rdi), %r8; not %r8; mov 24(%rdi), %r9; not %r9\n"
        "mov (%rdi), %rdi; not %rdi\n"
        "1: mov $34, %eax\n syscall\n mov (%rdi), %rax\n mov (%r8), %rax\n jmp 1b\n"
        ".cfi_endproc\n.size wait_with, .-wait_with\n");

static void __attribute__((noinline)) keep(int place, const char *what, struct node *volatile block) {
    hidden[place] = ~(uintptr_t)block;
    printf("%s %p\n", what, (void *)block);
    block = NULL;
}

static void __attribute__((noinline)) make(int known) {
    first = calloc(1, sizeof *first);
    first->next = calloc(1, sizeof *first);
    first->next->next = calloc(1, sizeof *first);
    keep(2, "second", first->next);
    keep(3, "third", first->next->next);
    if (known) {
        hidden[0] = hidden[2];
        hidden[1] = hidden[3];
    } else {
        keep(0, "held", calloc(1, 300));
        keep(1, "lost", calloc(1, 400));
    }
}

/* Overwrite what make() and stdio have left on the stack. */
static void __attribute__((noinline)) sweep(void) {
    volatile char waste[1 << 15];
    for (unsigned i = 0; i < sizeof waste; i++) waste[i] = 0;
}

int main(int argc, char **argv) {
    (void)argv;
    make(argc > 1);
    puts("ready");
    fflush(stdout);
    sweep();
    wait_with(hidden);
}
