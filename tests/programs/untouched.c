// Leaks anonymous mappings that were never written to. The kernel leaves such mappings out of cores. Prints the number of mappings.
// usage: untouched
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define COUNT 40
#define PART (64 << 10)

int main(void) {
    for (int at = 0; at < COUNT; at++) {
        char *part = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (part == MAP_FAILED || mprotect(part, 4096, PROT_NONE)) // the mappings do not join
            return 1;
    }
    printf("lost %d\nready\n", COUNT);
    fflush(stdout);
    return pause();
}
