/* First prints "ready". For each line that it reads, it maps memory by calls whose effect depends on more than the address, and
 * prints "done". */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define PART (64 << 10)
#define NOINLINE __attribute__((noinline))
enum { TURNS = 60, DONT_UNMAP = 4 };

void *table[1000];
static int used;

static char *map(void *at, size_t size, int flags) {
    return table[used++] = mmap(at, size, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
}

NOINLINE void forget_the_size(void) {
    if (munmap(map(NULL, 3 * PART, MAP_PRIVATE), 0) == 0) _exit(3); /* fails: the mapping stays */
}

NOINLINE void map_again(void) {
    char *first = map(NULL, PART, MAP_SHARED);
    if ((table[used++] = mremap(first, 0, PART, MREMAP_MAYMOVE)) == MAP_FAILED) _exit(4);
}

NOINLINE void leave_behind(void) {
    char *first = map(NULL, 2 * PART, MAP_PRIVATE);
    if ((table[used++] = mremap(first, 2 * PART, 2 * PART, MREMAP_MAYMOVE | DONT_UNMAP, NULL)) == MAP_FAILED) _exit(5);
}

/* Two mappings that one call unmaps, and a smaller one that replaces a part of both. */
NOINLINE void unmap_both(void) {
    char *space = map(NULL, 9 * PART, MAP_PRIVATE);
    munmap(space, 9 * PART);
    map(space, PART, MAP_PRIVATE | MAP_FIXED);
    map(space + PART, 4 * PART, MAP_PRIVATE | MAP_FIXED);
    munmap(space, 9 * PART);
    map(space, 2 * PART, MAP_PRIVATE | MAP_FIXED);
}

int main(void) {
    char line[16];
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        for (int turn = 0; turn < TURNS; turn++) {
            forget_the_size();
            map_again();
            leave_behind();
            sbrk(0);
            unmap_both();
        }
        puts("done");
        fflush(stdout);
    }
    return 0;
}
