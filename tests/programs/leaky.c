/* Leaks the blocks that main's comments list. For tests that need any core or process, with few exact numbers.
   usage: leaky [blocks held: 1000] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct node {
    struct node *next;
    long value;
};

struct node *held; /* a list, not a leak */

static void __attribute__((noinline)) lose(void) {
    for (int i = 0; i < 50; i++) { /* 50 single blocks of 40 usable bytes */
        char *text = malloc(40);
        strcpy(text, "GET /lost HTTP/1.1");
        __asm__ volatile("" ::"r"(text) : "memory");
    }
    for (int i = 0; i < 5; i++) { /* 5 leak heads of 104 usable bytes; 2 blocks are reachable from each head */
        struct node *head = NULL;
        for (int j = 0; j < 3; j++) {
            struct node *one = calloc(1, 100);
            one->next = head;
            head = one;
        }
        __asm__ volatile("" ::"r"(head) : "memory");
    }
}

/* Overwrites what earlier calls have left on the stack and in registers. */
static void __attribute__((noinline)) wipe(void) {
    char deep[1 << 16];
    memset(deep, 0, sizeof deep);
    __asm__ volatile("" ::"r"(deep) : "memory");
    __asm__ volatile("xor %%eax, %%eax\n xor %%ecx, %%ecx\n xor %%esi, %%esi\n xor %%edi, %%edi\n xor %%r8d, %%r8d\n xor %%r9d, %%r9d\n"
                     "xor %%r10d, %%r10d\n xor %%r11d, %%r11d\n pxor %%xmm0, %%xmm0\n pxor %%xmm1, %%xmm1\n pxor %%xmm2, %%xmm2"
                     ::: "rax", "rcx", "rsi", "rdi", "r8", "r9", "r10", "r11", "xmm0", "xmm1", "xmm2");
}

int main(int argc, char **argv) {
    long count = argc > 1 ? atol(argv[1]) : 1000;
    for (long i = 0; i < count; i++) {
        struct node *one = malloc(sizeof *one);
        one->next = held;
        one->value = i;
        held = one;
    }
    lose();
    wipe();
    if (write(1, "ready\n", 6) != 6)
        return 1;
    for (;;)
        pause();
}
