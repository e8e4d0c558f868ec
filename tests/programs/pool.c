/* A program with an allocator of its own: a pool of 64 blocks of 48 bytes, of which a bitmap says which are used. Some blocks of the pool
 * are held by a global variable, some by another block, some by nothing. Prints "ADDRESS KIND" of each used block, then "ready".
 *
 * With the argument "keeps" the pool is of blocks of 256 KiB, all of which were written to; all but the first four are
 * free again. Prints how many bytes these are, "kept BYTES". */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define COUNT 64

struct pool {
    char magic[8];
    uint64_t block, count, used;
    char *base;
};

static struct pool pool = {"POOLv1", 48, COUNT, 0, 0};
static void *volatile held[COUNT];

static void *take(int index) {
    pool.used |= UINT64_C(1) << index;
    return pool.base + 48 * index;
}

static int keeps(void) {
    size_t size = 256 << 10;
    pool.block = size;
    pool.base = mmap(NULL, size * COUNT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(pool.base, 'K', size * COUNT);
    for (int at = 0; at < 4; at++) {
        pool.used |= UINT64_C(1) << at;
        held[at] = pool.base + size * at;
    }
    printf("kept %zu\nready\n", size * (COUNT - 4));
    fflush(stdout);
    return pause();
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "keeps")) return keeps();
    pool.base = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int at = 0; at < COUNT; at += 3) {
        void **block = take(at);
        const char *kind = "definite";
        if (at % 2) {
            held[at] = block;
            kind = "reachable";
        }
        if (at % 4 == 0 && at + 1 < COUNT) {
            block[2] = take(at + 1);
            printf("%#lx indirect\n", (unsigned long)block[2]);
        }
        printf("%#lx %s\n", (unsigned long)block, kind);
    }
    puts("ready");
    fflush(stdout);
    pause();
}
