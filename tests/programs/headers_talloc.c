/* talloc's blocks begin with a header of 96 bytes, by which they are chained; the program has pointers behind it. Prints how many blocks
 * there are and how many were stolen from their parent and forgotten, then "ready". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <talloc.h>
#include <unistd.h>

struct item {
    char *name;
};

static struct item *volatile items[1 << 16];

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 1000, lost = 50;
    void *volatile top = talloc_new(NULL);
    for (int i = 0; i < count; i++) {
        items[i] = talloc(top, struct item);
        items[i]->name = talloc_asprintf(items[i], "item number %d", i);
    }
    for (int i = 0; i < lost; i++) memset(talloc_size(NULL, 300), 'x', 300);
    char dead[4096];
    memset(dead, 0, sizeof dead);
    __asm__ volatile("" : : "r"(dead) : "memory");
    printf("%zu %d\nready\n", talloc_total_blocks(top), lost);
    fflush(stdout);
    pause();
}
