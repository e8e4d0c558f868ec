/* Blocks, and a thread that reads the clock without pause, to measure its longest stop. usage: standing BLOCKS BYTES.
 * Prints "ready". For a line "clear" it resets the measurement; for "gap" it prints the longest gap in microseconds. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static volatile long longest;

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void *watch(void *unused) {
    for (long last = now();;) {
        long at = now();
        if (at - last > longest)
            longest = at - last;
        last = at;
    }
    return unused;
}

int main(int count, char **words) {
    if (count < 3)
        return 2;
    long blocks = atol(words[1]), size = atol(words[2]);
    void **held = malloc(sizeof *held * (size_t)blocks);
    for (long i = 0; held && i < blocks; i++) {
        held[i] = malloc((size_t)size);
        if (held[i])
            memset(held[i], 1, (size_t)size);
    }
    pthread_t id;
    if (pthread_create(&id, NULL, watch, NULL))
        return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    for (char line[64]; fgets(line, sizeof line, stdin);) {
        if (line[0] == 'g')
            printf("%ld\n", longest / 1000);
        else
            puts("cleared");
        longest = line[0] == 'g' ? longest : 0;
    }
    return held == NULL;
}
