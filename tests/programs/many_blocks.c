// Many blocks of 4,000 bytes, all written to; every tenth is lost, and the others form a list.
// usage: many_blocks COUNT
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char **list;

int main(int count, char **words) {
    unsigned long blocks = count > 1 ? strtoul(words[1], NULL, 10) : 1000;
    for (unsigned long at = 0; at < blocks; at++) {
        char **block = malloc(4000);
        if (!block)
            return 1;
        memset(block, 1, 4000);
        block[0] = NULL;
        if (at % 10) {
            block[0] = (char *)list;
            list = block;
        }
    }
    puts("ready");
    fflush(stdout);
    return pause();
}
