/* Leaks blocks of equal sizes that have different contents: first COUNT of one kind, then COUNT of another. It prints "ready".
 * usage: mixed_groups COUNT */
#include <netdb.h>
#include <regex.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static __attribute__((noinline)) void lose_libc_objects(int count) {
    for (int i = 0; i < count; i++) {
        regex_t *compiled = calloc(1, 64);
        if (regcomp(compiled, "^a[0-9]*$", REG_EXTENDED)) abort();
    }
    for (int i = 0; i < count; i++) {
        struct addrinfo *found, hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV}; /* three linked ones, for TCP, UDP and raw */
        if (getaddrinfo("127.0.0.1", "80", &hints, &found)) abort();
    }
}

static __attribute__((noinline)) void lose_functions(int count) {
    for (int i = 0; i < 2 * count; i++) {
        void **block = calloc(1, 248);
        block[1] = i < count ? (void *)qsort : (void *)lfind;
        __asm__ volatile("" ::"r"(block) : "memory"); /* otherwise the compiler removes the block */
    }
}

int main(int argc, char **argv) {
    char deep[1 << 16];
    int count = argc > 1 ? atoi(argv[1]) : 1;
    lose_libc_objects(count < 100 ? count : 100);
    lose_functions(count);
    memset(deep, 0, sizeof deep);
    __asm__ volatile("" ::"r"(deep) : "memory");
    printf("ready\n");
    fflush(stdout);
    for (;;) pause();
}
