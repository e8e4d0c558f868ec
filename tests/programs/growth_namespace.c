/* Reads numbers from standard input, a line each; keeps as many blocks of glibc's malloc, and of that of a second glibc, which is in a
 * namespace of its own (dlmopen). "ready" follows. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *held[2][2000];

int main(void) {
    void *second = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
    void *(*allocate)(size_t) = second ? (void *(*)(size_t))dlsym(second, "malloc") : NULL;
    if (!allocate)
        return 1;
    long at = 0, count = 0;
    do {
        for (; count > 0; count--, at++) {
            held[0][at] = memset(malloc(40), 1, 40);
            held[1][at] = memset(allocate(100), 1, 100);
        }
        puts("ready");
        fflush(stdout);
    } while (scanf("%ld", &count) == 1);
    return 0;
}
