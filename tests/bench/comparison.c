/* The program with which docs/comparison.md compares tools. It allocates ARGV[1] blocks of 16 to 527 bytes, keeps every tenth in a table, and
   frees the others but one in a hundred, which it forgets together with a block that only this one refers to. It prints the number of
   forgotten blocks, the blocks in use, and the milliseconds that this took, then ends, or waits if there is a third argument. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct record {
    struct record *next;
    char *text;
};

static struct record *table[1 << 16];

static __attribute__((noinline)) char *copy_text(size_t size) { return memset(malloc(size), 'x', size); }

static __attribute__((noinline)) struct record *make_record(size_t size) {
    struct record *made = calloc(1, sizeof *made);
    made->text = copy_text(size);
    return made;
}

static __attribute__((noinline)) void forget(size_t size) { make_record(size)->next = NULL; }

static __attribute__((noinline)) void keep(long number, size_t size) {
    struct record *made = make_record(size), **slot = &table[number % (1 << 16)];
    made->next = *slot;
    *slot = made;
}

int main(int argc, char **argv) {
    long count = argc > 1 ? atol(argv[1]) : 1000000, forgotten = 0, kept = 0;
    struct timespec begun, ended;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (long number = 0; number < count / 2; number++) {
        size_t size = 16 + (size_t)(number * 2654435761u % 512);
        if (number % 100 == 7) {
            forget(size);
            forgotten++;
        } else if (number % 10 == 0) {
            keep(number, size);
            kept++;
        } else {
            struct record *made = make_record(size);
            free(made->text);
            free(made);
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    printf("%ld records of 2 blocks forgotten, %ld kept, %.0f ms\nready\n", forgotten, kept,
           (double)(ended.tv_sec - begun.tv_sec) * 1e3 + (double)(ended.tv_nsec - begun.tv_nsec) / 1e6);
    fflush(stdout);
    if (argc > 2)
        for (;;)
            pause();
}
