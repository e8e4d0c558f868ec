/* Prints two blocks as lost, and holds the first (which points to the second) by a word in the place that the argument names:
 * "library" a variable of libc, "stack" the main thread's stack, "own" a variable of the program, "block" a block that it lists,
 * "nothing". The list is that of truth.c. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *volatile own;
static void **volatile block;

static void list(void *p, size_t size, const char *kind, void *leader) {
    printf("%lx %zx %zx in-use %s %lx made 0\n", (unsigned long)p, malloc_usable_size(p), size, kind, (unsigned long)leader);
}

static __attribute__((noinline)) void make(const char *where, void *volatile *slot) {
    void **first = calloc(1, 100), **second = calloc(1, 200);
    first[0] = second;
    block = calloc(1, 300);
    list(block, 300, "reachable", NULL);
    list(first, 100, "definite", first);
    list(second, 200, "indirect", first);
    if (!strcmp(where, "library")) *(void **)dlsym(RTLD_DEFAULT, "obstack_alloc_failed_handler") = first;
    if (!strcmp(where, "stack")) *slot = first;
    if (!strcmp(where, "own")) own = first;
    if (!strcmp(where, "block")) block[5] = first;
}

int main(int argc, char **argv) {
    void *volatile slot = NULL;
    volatile char scrubbed[4096];
    if (argc != 2) return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    make(argv[1], &slot);
    memset((char *)scrubbed, 0, sizeof scrubbed);
    puts("ready");
    for (;;) pause();
}
