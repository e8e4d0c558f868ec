// A large mapping of which 4,000 pages, at even distances, were written to; each second one holds a block. Prints "HOW ADDRESS" of
// each block, HOW being held or lost.
// usage: sparse BYTES
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGES 4000u

static uintptr_t hidden[PAGES];
static char *area;

int main(int count, char **words) {
    uintptr_t size = count > 1 ? strtoul(words[1], NULL, 10) : 1 << 30, step = size / PAGES / 4096 * 4096;
    area = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area == MAP_FAILED)
        return 1;
    madvise(area, size, MADV_NOHUGEPAGE);
    for (uintptr_t at = 0; at < PAGES; at++) {
        char *block = malloc(200);
        if (!block)
            return 2;
        hidden[at] = ~(uintptr_t)block;
        ((char **)(area + step * at))[at % 512] = at % 2 ? block : (char *)1;
    }
    for (uintptr_t at = 0; at < PAGES; at++)
        printf("%s %#lx\n", at % 2 ? "held" : "lost", ~(unsigned long)hidden[at]);
    puts("ready");
    fflush(stdout);
    return pause();
}
