/* Blocks of many sizes, of which all but some are freed, whatever the malloc: prints "block ADDRESS BYTES" for those that are left, "ready",
 * and waits. All were written to. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT 30000

static char *blocks[COUNT];
static char out[1 << 16];

int main(void) {
    unsigned seed = 5;
    setvbuf(stdout, out, _IOFBF, sizeof out); /* a buffer that is not from malloc */
    for (int at = 0; at < COUNT; at++) {
        size_t size = at % 100 ? 40 + (seed = seed * 1103515245 + 12345) / 65536 % 2000 : 100000;
        blocks[at] = malloc(size);
        memset(blocks[at], 0x5a, size);
    }
    for (int at = 0; at < COUNT; at++) {
        if (at / 1000 % 10 && at % 997)
            free(blocks[at]);
        else
            printf("block %p %zu\n", (void *)blocks[at], malloc_usable_size(blocks[at]));
    }
    puts("ready");
    fflush(stdout);
    pause();
}
