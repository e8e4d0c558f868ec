/* Blocks that only pointers with a tag in their top byte refer to, as in a program built with HWASan. For AArch64.
 * Prints "KIND ADDRESS" of each block and "ready", and waits. */
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static void *volatile roots[3];

static void *tagged(void *p, unsigned tag) { return (void *)((uintptr_t)p | (uintptr_t)tag << 56); }

__attribute__((noinline)) static void *make(const char *kind, size_t size) {
    char *p = malloc(size);
    memset(p, 0, malloc_usable_size(p));
    printf("%s %#lx\n", kind, ~(unsigned long)p); /* the complement: no pointer is left in the buffer of stdout */
    return p;
}

__attribute__((noinline)) static void build(void) {
    void **held = make("reachable", 100), **child = make("reachable", 200), *inside = make("possible", 300), **lost = make("definite", 400);
    roots[0] = tagged(held, 0x5a);
    held[3] = tagged(child, 0xff);
    child[5] = tagged((char *)inside + 9, 0x01);
    lost[2] = tagged(make("indirect", 500), 0x80);
    memcpy((char *)child + 160, "words\0\0g", 8); /* text whose seventh byte is 0: it is no pointer, whatever the eighth is */
}

/* What calls left on the stack and in registers. */
__attribute__((noinline)) static void wipe(void) {
    volatile char dead[1 << 16];
    for (size_t i = 0; i < sizeof dead; i++) dead[i] = 0;
    __asm__ volatile("movi v0.2d, #0; movi v1.2d, #0; movi v2.2d, #0; movi v3.2d, #0; movi v4.2d, #0; movi v5.2d, #0; movi v6.2d, #0;"
                     "movi v7.2d, #0; movi v16.2d, #0; movi v17.2d, #0; movi v18.2d, #0; movi v19.2d, #0; movi v20.2d, #0" : : : "memory");
}

int main(void) {
    if (prctl(PR_SET_TAGGED_ADDR_CTRL, PR_TAGGED_ADDR_ENABLE, 0, 0, 0)) return 1;
    build();
    wipe();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
