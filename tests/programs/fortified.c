/* A program whose check of _FORTIFY_SOURCE fails in the function that its argument names.
 * With the arguments calloc, small and index, no check fails; the program crashes in another way. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile size_t length = 100;
static const char *volatile text = "a text that is longer than sixteen bytes and longer than forty";
void *volatile kept;

__attribute__((noinline, noclone)) static int read_element(const int *array, size_t index) { return array[index]; }

int main(int count, char **words) {
    char buffer[16], *block = malloc(16);
    kept = buffer;
    if (count < 2 || !block) return 2;
    if (!strcmp(words[1], "memcpy")) memcpy(block, text, length);
    if (!strcmp(words[1], "memset")) memset(buffer, 1, length);
    if (!strcmp(words[1], "sprintf")) sprintf(buffer, "%s", text);
    if (!strcmp(words[1], "read") && read(0, buffer, length) < 0) return 3;
    if (!strcmp(words[1], "calloc")) {
        long *many = calloc((size_t)1 << 60, 1);
        many[1] = 1;
    }
    if (!strcmp(words[1], "small")) *(volatile long *)length = 0;
    if (!strcmp(words[1], "index")) return read_element((int *)block, length << 28);
    puts(buffer);
    return block[0];
}
