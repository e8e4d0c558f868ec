/* Maps memory for each line that it reads, and prints for each mapping "site fate address size", and "done" at the end. First "ready".
 * Pages without access keep the kernel from merging the mappings. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PART (64 << 10)
#define PAGE 4096

void *table[3000];
static int used;

static void print(const char *site, const char *fate, void *address, size_t size) {
    printf("%s %s %p %zu\n", site, fate, address, size);
}

/* A mapping whose first and last pages have no access. */
__attribute__((noinline)) static char *map(size_t size) {
    char *made = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(made + PAGE, size - 2 * PAGE, PROT_READ | PROT_WRITE);
    memset(made + PAGE, 0, PAGE);
    return made;
}

__attribute__((noinline)) void lose(void) { print("lose", "lost", map(4 * PART), 4 * PART); }
__attribute__((noinline)) void keep(void) { print("keep", "held", table[used++] = map(3 * PART), 3 * PART); }

__attribute__((noinline)) void drop(void) {
    char *made = map(2 * PART);
    munmap(made, 2 * PART);
    print("drop", "freed", made, 2 * PART);
}

/* An aligned mapping, as allocators make it: the excess at both ends is unmapped. */
__attribute__((noinline)) void align(void) {
    char *made = map(8 * PART), *aligned = made + PART;
    munmap(made, PART);
    munmap(aligned + 2 * PART, 5 * PART);
    table[used++] = aligned;
    print("align", "held", aligned, 2 * PART);
}

__attribute__((noinline)) void grow(void) {
    char *made = mmap(NULL, PART, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    table[used] = mremap(made, PART, 5 * PART, MREMAP_MAYMOVE);
    print("grow", "held", table[used++], 5 * PART);
    if (mremap(table[used - 1], 5 * PART, SIZE_MAX / 2, 0) != MAP_FAILED) _exit(4);
}

static __attribute__((noinline)) void clear_stack(void) {
    volatile char area[16384];
    memset((void *)area, 0, sizeof area);
}

int main(void) {
    char line[16];
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        void (*const all[])(void) = {lose, keep, drop, align, grow};
        for (int i = 0; i < 20; i++)
            for (int at = 0; at < 5; at++) all[at]();
        print("break", "held", sbrk(PART), PART);
        clear_stack();
        puts("done");
        fflush(stdout);
    }
    return 0;
}
