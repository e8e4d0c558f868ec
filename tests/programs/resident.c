/* Maps 64 MiB, touches every other of the first 1,000 pages, gives 100 of those back, tells the address, and waits. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

int main(void) {
    char *base = mmap(NULL, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED || madvise(base, 64 << 20, MADV_NOHUGEPAGE))
        return 1;
    for (long page = 0; page < 1000; page += 2)
        base[page * 4096] = 1;
    if (madvise(base, 200 * 4096, MADV_DONTNEED)) /* the first 100 of the touched pages */
        return 1;
    printf("%p %d\nready\n", (void *)base, 400 * 4096);
    fflush(stdout);
    pause();
}
