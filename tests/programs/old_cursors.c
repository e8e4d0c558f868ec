/* Buffers that begin with their length. It refers to LIVE of them by their start, and to LEAKED of them only by old cursors, which point
 * behind the length. It prints "ready".
 * usage: old_cursors LIVE LEAKED */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct buffer { size_t length; char data[]; };

struct buffer **live;
char **cursors;

static __attribute__((noinline)) struct buffer *make(int number) {
    size_t length = 64 + 16 * (size_t)(number % 8);
    struct buffer *made = malloc(sizeof *made + length);
    made->length = length;
    memset(made->data, 'x', length);
    return made;
}

static __attribute__((noinline)) void fill(int live_count, int leaked_count) {
    for (int i = 0; i < live_count; i++) live[i] = make(i);
    for (int i = 0; i < leaked_count; i++) cursors[i] = make(i)->data;
}

int main(int argc, char **argv) {
    char deep[1 << 16];
    int live_count = argc > 1 ? atoi(argv[1]) : 400, leaked_count = argc > 2 ? atoi(argv[2]) : 80;
    live = calloc((size_t)live_count + 1, sizeof *live);
    cursors = calloc((size_t)leaked_count + 1, sizeof *cursors);
    fill(live_count, leaked_count);
    memset(deep, 0, sizeof deep);
    __asm__ volatile("" ::"r"(deep) : "memory");
    printf("ready\n");
    fflush(stdout);
    for (;;) pause();
}
