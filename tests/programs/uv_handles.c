/* Handles of libuv: open timers and sockets in the default loop, wake-ups in a loop of its own, closed timers of which some are freed,
   and requests that are complete and not freed. Each handle is in a larger structure. Prints "ready". */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <uv.h>

enum { TIMERS = 1200, SOCKETS = 40, CLOSED = 50, FREED = 30, REQUESTS = 25, WAKES = 20 };

typedef struct {
    uv_timer_t timer;
    char data[100];
} client;

uv_loop_t *own; /* not static: the compiler must store it */

static void tick(uv_timer_t *timer) { (void)timer; }
static void wake(uv_async_t *async) { (void)async; }
static void release(uv_handle_t *handle) { free(handle); }

static void __attribute__((noinline)) fill(uv_loop_t *loop) {
    for (int number = 0; number < TIMERS + CLOSED + FREED; number++) {
        client *one = calloc(1, sizeof *one);
        uv_timer_init(loop, &one->timer);
        uv_timer_start(&one->timer, tick, 3600000 + number % 7, 0);
        if (number >= TIMERS) uv_close((uv_handle_t *)&one->timer, number < TIMERS + CLOSED ? NULL : release);
    }
    for (int number = 0; number < SOCKETS; number++) uv_tcp_init(loop, calloc(1, sizeof(uv_tcp_t)));
    for (int number = 0; number < REQUESTS; number++) uv_fs_stat(loop, calloc(1, sizeof(uv_fs_t)), "/etc", NULL);
    own = malloc(sizeof *own);
    uv_loop_init(own);
    for (int number = 0; number < WAKES; number++) uv_async_init(own, calloc(1, sizeof(uv_async_t)), wake);
    uv_run(loop, UV_RUN_NOWAIT);
}

static void __attribute__((noinline)) sweep(void) {
    volatile char waste[1 << 16];
    for (unsigned at = 0; at < sizeof waste; at++) waste[at] = 0;
}

int main(void) {
    fill(uv_default_loop());
    sweep();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
