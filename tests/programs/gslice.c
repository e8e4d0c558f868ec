/* Chunks of GLib's slice allocator of many sizes: held by a table, lost, and freed. Prints "held SIZE ADDRESS", "lost …" and "freed …" a line,
   then "ready". Threads that wait have magazines of their own, and one that ended has none. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void *g_slice_alloc(size_t size); /* from libglib-2.0.so.0, whose headers are not needed */
void g_slice_free1(size_t size, void *chunk);

enum { EACH = 40, STEP = 24, SIZES = 42, ALL = SIZES * EACH };
void *volatile held[ALL];
static void *freed[ALL];
static int halted[2];

static void *made(const char *kind, size_t size) {
    void *volatile chunk = g_slice_alloc(size);
    memset(chunk, 'c', size);
    printf("%s %zu %p\n", kind, size, chunk);
    return chunk;
}

/* Of three chunks, one is held, one is lost, and one is freed at the end, in another order. */
static void __attribute__((noinline)) make(void) {
    for (int number = 0; number < ALL; number++) {
        size_t size = 8 + STEP * (number % SIZES);
        held[number] = made("held", size);
        made("lost", size);
        freed[number] = made("freed", size);
    }
    for (int number = ALL - 1; number >= 0; number--) g_slice_free1(8 + STEP * (number % SIZES), freed[number]);
    memset(freed, 0, sizeof freed);
}

static void *thread(void *waits) {
    for (int number = 0; number < 30; number++) {
        void *one = waits ? made("freed", 40) : g_slice_alloc(40), *other = g_slice_alloc(200);
        g_slice_free1(40, one);
        g_slice_free1(200, other);
    }
    char end;
    if (waits && write(halted[1], "", 1) == 1)
        while (read(0, &end, 0) == 0) pause();
    return NULL;
}

static void __attribute__((noinline)) sweep(void) {
    volatile char waste[1 << 16];
    for (unsigned i = 0; i < sizeof waste; i++) waste[i] = 0;
}

int main(void) {
    pthread_t one;
    char end;
    make();
    if (pipe(halted) || pthread_create(&one, NULL, thread, NULL) || pthread_join(one, NULL)) return 1;
    for (int number = 0; number < 3; number++)
        if (pthread_create(&one, NULL, thread, halted) || read(halted[0], &end, 1) != 1) return 1;
    sweep();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
