/* Threads that call `event` all the time, through stacks of 4 to 19 frames, in a signal handler, too.
 * usage: busy THREADS [WORK]: prints "ready"; from then on, every tenth of a second, how many calls all threads made, and how many they would
 * make in a second of the processor's time: "CALLS RATE". WORK: additions between two calls. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
static int work;
static struct {
    _Alignas(64) volatile long calls;
} made[64];
static volatile long handled;

NOINLINE void event(volatile long *n) { *n += 1; }

NOINLINE long down(volatile long *n, int depth) {
    volatile long room[8] = {*n, depth};
    if (depth)
        return down(n, depth - 1) + room[1];
    event(n);
    return room[0];
}

static void on_alarm(int number) {
    (void)number;
    event(&handled);
}

static void *call(void *argument) {
    volatile long *n = argument, sum = 0;
    for (;;) {
        for (int i = 0; i < work; i++)
            sum += i;
        sum += down(n, (int)(*n % 16));
    }
    return NULL;
}

int main(int count, char **words) {
    int threads = count > 1 ? atoi(words[1]) : 1;
    work = count > 2 ? atoi(words[2]) : 0;
    if (threads < 1 || threads > 64)
        return 2;
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    pthread_t ids[64];
    for (int i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, call, (void *)&made[i].calls))
            return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    struct timespec last = {0, 0}, now, pause = {0, 100000000};
    for (long before = 0, sum;; before = sum) {
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
        sum = 0;
        for (int i = 0; i < threads; i++)
            sum += made[i].calls;
        double seconds = (double)(now.tv_sec - last.tv_sec) + (double)(now.tv_nsec - last.tv_nsec) / 1e9;
        printf("%ld %.0f\n", sum, (double)(sum - before) / seconds);
        last = now;
        raise(SIGALRM);
        nanosleep(&pause, NULL);
    }
}
