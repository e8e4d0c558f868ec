/* Memory of every kind that a copy of a process must have right. Its folder gets a file "data" of 3 pages and a half. Prints the address of
 * each mapping, then "ready". For a file "grow" it takes more memory, writes to it, and prints "grown ADDRESS". */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 512 };

static void *map(const char *name, size_t size, int protection, int flags, int fd, off_t offset) {
    void *made = mmap(NULL, size, protection, flags, fd, offset);
    if (made == MAP_FAILED)
        exit(1);
    printf("%s %p %zu\n", name, made, size);
    return made;
}

/* Every page has a different text; of `step` pages, only one is written. */
static void fill(char *at, long pages, long step, int seed) {
    for (long page = 0; page < pages; page += step)
        for (int i = 0; i < PAGE; i += 512)
            snprintf(at + page * PAGE + i, 64, "%d page %ld at %d", seed, page, i);
}

int main(void) {
    const int both = PROT_READ | PROT_WRITE, anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
    char block[PAGE];
    setvbuf(stdout, NULL, _IOLBF, 0);
    int data = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600), gone = open("gone", O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int i = 0; i < 7; i++) {
        memset(block, 'a' + i, sizeof block);
        if (write(data, block, PAGE / 2) != PAGE / 2 || write(gone, block, PAGE) != PAGE)
            return 1;
    }
    fill(map("dense", PAGES * PAGE, both, anonymous, -1, 0), PAGES, 1, 1);
    fill(map("sparse", PAGES * PAGE, both, anonymous, -1, 0), PAGES, 3, 2);
    fill(map("reserved", 64L << 30, both, anonymous | MAP_NORESERVE, -1, 0), (64L << 30) / PAGE, (1L << 30) / PAGE, 3);
    char *locked = map("locked", 16 * PAGE, both, anonymous, -1, 0);
    fill(locked, 16, 1, 4);
    mprotect(locked, 16 * PAGE, PROT_NONE);
    fill(map("shared", 64 * PAGE, both, MAP_SHARED | MAP_ANONYMOUS, -1, 0), 64, 5, 5);
    map("constant", 4 * PAGE, PROT_READ, MAP_PRIVATE, data, 0);
    char *changed = map("changed", 4 * PAGE, both, MAP_PRIVATE, data, 0);
    snprintf(changed + PAGE, 64, "changed here");
    char *written = map("written", 4 * PAGE, both, MAP_SHARED, data, 0);
    snprintf(written + 2 * PAGE, 64, "written to the file");
    map("beyond", 16 * PAGE, both, MAP_SHARED, data, 0);
    char *deleted = map("deleted", 7 * PAGE, both, MAP_PRIVATE, gone, 0);
    snprintf(deleted + 3 * PAGE, 64, "changed and deleted");
    map("offset", 2 * PAGE, PROT_READ, MAP_PRIVATE, gone, 5 * PAGE);
    unlink("gone");
    puts("ready");
    for (;;) {
        usleep(5000);
        if (!access("grow", F_OK) && !unlink("grow")) {
            fill(map("grown", 4 * PAGES * PAGE, both, anonymous, -1, 0), 4 * PAGES, 1, 6);
            fill(locked + 0, 0, 1, 0);
        }
    }
}
