/* Two threads that call `event` without end; the file "pause" in their folder says how many microseconds they wait in between. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

__attribute__((noinline, noclone)) void event(volatile int *n) { *n += 1; }

static volatile long pause_now;

static void *work(void *argument) {
    volatile int n = 0;
    for (;;) {
        event(&n);
        long left = pause_now + (argument ? pause_now / 3 : 0);
        long before = pause_now;
        while (left > 0 && pause_now == before) {
            long step = left < 20000 ? left : 20000;
            usleep((useconds_t)step);
            left -= step;
        }
    }
    return NULL;
}

int main(void) {
    pthread_t ids[2];
    setvbuf(stdout, NULL, _IOLBF, 0);
    pause_now = 1000000;
    puts("ready");
    for (long i = 0; i < 2; i++)
        if (pthread_create(&ids[i], NULL, work, (void *)i))
            return 1;
    for (;;) {
        FILE *file = fopen("pause", "r");
        long wanted;
        if (file) {
            if (fscanf(file, "%ld", &wanted) == 1)
                pause_now = wanted;
            fclose(file);
        }
        usleep(10000);
    }
}
