/* Buffers that consist of a pointer, a length and a capacity, like a std::string. Prints the address of each, then "ready". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUFFERS = 20, CAPACITY = 64 };

struct buffer {
    char *text;
    size_t length, capacity;
    int file;
};

static struct buffer *volatile buffers[BUFFERS];

int main(void) {
    for (int number = 0; number < BUFFERS; number++) {
        struct buffer *made = malloc(sizeof *made);
        if (!made || !(made->text = malloc(CAPACITY))) return 1;
        made->length = (size_t)snprintf(made->text, CAPACITY, "the text of buffer number %d", number);
        made->capacity = CAPACITY;
        buffers[number] = made;
        printf("%p\n", (void *)made);
    }
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
