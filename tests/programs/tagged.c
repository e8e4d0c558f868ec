/* Blocks that only pointers with a tag in their top byte refer to, as in a program built with HWASan. For AArch64.
 * With an argument, the tags are malloc's own (GLIBC_TUNABLES=glibc.mem.tagging=3), and there are some thousand such families of blocks, of
 * two threads. Prints "KIND ADDRESS" of each block and "ready", and waits. */
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MOST 1000
static void *volatile roots[MOST];
static int own;

static void *tagged(void *p, unsigned tag) { return own ? p : (void *)((uintptr_t)p | (uintptr_t)tag << 56); }

__attribute__((noinline)) static void *make(const char *kind, size_t size) {
    char *p = malloc(size);
    memset(p, 0, malloc_usable_size(p));
    printf("%s %#lx\n", kind, ~(unsigned long)p); /* the complement, so that the buffer of stdout contains no pointer */
    return p;
}

__attribute__((noinline)) static void build(size_t number) {
    void **held = make("reachable", 100), **child = make("reachable", 200), *inside = make("possible", 300 + number * number % 200000),
         **lost = make("definite", 400 + 31 * number);
    roots[number] = tagged(held, 0x5a);
    held[3] = tagged(child, 0xff);
    child[5] = tagged((char *)inside + 9, 0x01);
    lost[2] = tagged(make("indirect", 500 + number), 0x80);
    memcpy((char *)child + 160, "words\0\0g", 8); /* text whose seventh byte is 0: it is not a pointer, whatever its eighth byte is */
}

/* Overwrite what earlier calls have left on the stack and in registers. */
__attribute__((noinline)) static void wipe(void) {
    volatile char dead[1 << 16];
    for (size_t i = 0; i < sizeof dead; i++) dead[i] = 0;
    __asm__ volatile("movi v0.2d, #0; movi v1.2d, #0; movi v2.2d, #0; movi v3.2d, #0; movi v4.2d, #0; movi v5.2d, #0; movi v6.2d, #0;"
                     "movi v7.2d, #0; movi v16.2d, #0; movi v17.2d, #0; movi v18.2d, #0; movi v19.2d, #0; movi v20.2d, #0" : : : "memory");
}

static void *work(void *unused) {
    for (size_t i = 1; i < MOST / 2; i++) build(i);
    return unused;
}

int main(int argc, char **argv) {
    pthread_t thread;
    (void)argv;
    own = argc > 1;
    if (!own && prctl(PR_SET_TAGGED_ADDR_CTRL, PR_TAGGED_ADDR_ENABLE, 0, 0, 0)) return 1;
    build(0);
    if (own) {
        if (pthread_create(&thread, NULL, work, NULL) || pthread_join(thread, NULL)) return 1;
        for (size_t i = MOST / 2; i < MOST; i++) build(i);
    }
    wipe();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
