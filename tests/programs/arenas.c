/* Free memory in several arenas of glibc: `arenas FIRST OTHERS THREADS`.
 *
 * The first thread allocates and frees FIRST MiB of blocks, each other thread OTHERS MiB. Each keeps its last block, and none ends. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *pins[256];
static long sizes[256];
static pthread_barrier_t made, all_freed;

static void *run(void *word) {
    long number = (long)word, count = sizes[number] * (1l << 20) / 2000;
    char **all = malloc((size_t)count * sizeof *all);
    for (long i = 0; i < count; i++) all[i] = memset(malloc(2000), 'A', 2000);
    pthread_barrier_wait(&made); /* every thread has its own arena now */
    for (long i = 0; i + 1 < count; i++) free(all[i]);
    pins[number] = all[count - 1];
    free(all);
    pthread_barrier_wait(&all_freed);
    for (;;) pause();
    return word;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    long threads = atol(argv[3]);
    pthread_barrier_init(&made, NULL, (unsigned)threads);
    pthread_barrier_init(&all_freed, NULL, (unsigned)threads + 1);
    for (long i = 0; i < threads; i++) {
        pthread_t thread;
        sizes[i] = atol(argv[i ? 2 : 1]);
        if (pthread_create(&thread, NULL, run, (void *)i)) return 1;
    }
    pthread_barrier_wait(&all_freed);
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
