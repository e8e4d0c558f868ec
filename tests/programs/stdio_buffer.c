/* Leaks COUNT blocks of 64 bytes. Freed blocks that are buffers of files now still contain their addresses. Prints "ready". */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TABLE = 1024 /* bytes of a buffer of a file in /proc */, EACH = TABLE / sizeof(void *) };

static FILE *files[64];
static void **tables[64];

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 0, used = (count + EACH - 1) / EACH;
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int file = 0; file < used; file++) {
        files[file] = fopen("/proc/self/comm", "r");
        tables[file] = malloc(TABLE);
    }
    for (int number = 0; number < count; number++)
        memset(tables[number / EACH][number % EACH] = malloc(64), 1, 64);
    for (int file = 0; file < used; file++)
        free(tables[file]);
    memset(tables, 0, sizeof tables);
    for (int file = 0; file < used; file++)
        fgetc(files[file]); /* allocates the buffer, and reads a few bytes */
    puts("ready");
    pause();
}
