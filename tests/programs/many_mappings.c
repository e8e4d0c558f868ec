// Thousands of mappings: every second page of one area has other rights, so that no two join. Each second one of those that can be
// written holds a block. Prints "HOW ADDRESS" of each block, HOW being part or lost.
// usage: many_mappings COUNT
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096u

static char *area;

int main(int count, char **words) {
    uintptr_t pages = count > 1 ? strtoul(words[1], NULL, 10) : 1000;
    area = mmap(NULL, (pages + 2) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uintptr_t *hidden = calloc(pages, sizeof *hidden);
    if (area == MAP_FAILED || !hidden)
        return 1;
    for (uintptr_t at = 0; at < pages; at += 2) {
        char *block = malloc(200);
        if (!block || mprotect(area + at * PAGE, PAGE, PROT_READ | PROT_WRITE))
            return 2;
        hidden[at] = ~(uintptr_t)block;
        if (at % 4 == 0)
            ((char **)(area + at * PAGE))[at / 2 % 512] = block;
    }
    for (uintptr_t at = 0; at < pages; at += 2)
        printf("%s %#lx\n", at % 4 ? "lost" : "part", ~(unsigned long)hidden[at]);
    puts("ready");
    fflush(stdout);
    return pause();
}
