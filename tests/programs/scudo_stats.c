/* A program that prints scudo's own statistics at the stop: SIZES of blocks in several threads, large ones, freed ones, and blocks that
 * are aligned and reallocated. It prints "ready", and waits for ever.
 *
 * The statistics go to standard error. `empty` allocates nothing of its own. */
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 3, BLOCKS = 400 };

__attribute__((weak)) void __scudo_print_stats(void); /* weak: scudo may be preloaded */

static pthread_barrier_t done;
static void *volatile held[THREADS + 1][BLOCKS];

static size_t size_of(int i) {
    static const size_t few[] = {0, 1, 15, 16, 17, 240, 1000, 4080, 20000, 70000, 131056, 131057, 200000, 1 << 20};
    return i < 14 ? few[i] : (size_t)(i * 97 % 9000);
}

static void use(void *volatile *mine) {
    for (int i = 0; i < BLOCKS; i++) {
        void *p;
        if (i % 50 == 7) {
            if (posix_memalign(&p, (size_t)64 << i % 7, size_of(i))) abort();
        } else {
            p = malloc(size_of(i));
        }
        if (i % 50 == 9) p = realloc(p, 2 * size_of(i) + 1);
        if (!p) abort();
        memset(p, 0, malloc_usable_size(p));
        mine[i] = p;
    }
    for (int i = 0; i < BLOCKS; i += 3) {
        free(mine[i]);
        mine[i] = NULL;
    }
}

static void *worker(void *argument) {
    use(argument);
    pthread_barrier_wait(&done);
    for (;;) pause();
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 2 || strcmp(argv[1], "empty") != 0) {
        pthread_t thread;
        pthread_barrier_init(&done, NULL, THREADS + 1);
        for (int i = 0; i < THREADS; i++)
            if (pthread_create(&thread, NULL, worker, (void *)held[i])) abort();
        pthread_barrier_wait(&done);
        use(held[THREADS]);
    }
    __scudo_print_stats();
    if (write(1, "ready\n", 6) != 6) abort();
    for (;;) pause();
}
