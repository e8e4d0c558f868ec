// 2000 timers of libuv in one block, C++ objects with two handles, loops on a stack and in a larger block, and structures that are
// similar to a closed handle and to a request, and that own blocks. Prints "ready".
#include <cstdio>
#include <cstdlib>
#include <pthread.h>
#include <unistd.h>
#include <uv.h>

enum { TIMERS = 2000, SESSIONS = 30, JOBS = 20, ALIKE = 40, BYTES = 1000 };

struct Base {
    virtual ~Base() {}
    long number = 1;
};
struct Session : Base {
    uv_timer_t timer;
    uv_tcp_t tcp;
};
struct Worker {
    long number;
    char name[64];
    uv_loop_t loop;
};
struct Settings { // the words of a handle: data, loop, type, close_cb, handle_queue, u, next_closing, flags
    void *data;
    uv_loop_t *loop;
    int kind;
    void *unused, *first, *second, *more[4], *third;
    int options;
    long rest;
};
struct Job { // the words of a request: data, type, reserved, loop
    void *data;
    int kind;
    long numbers[6];
    uv_loop_t *loop;
    long rest[4];
};

uv_timer_t *timers;
Session *sessions[SESSIONS];
Worker *worker;
Settings *settings[ALIKE];
Job *jobs[ALIKE];
static pthread_barrier_t added;

static void tick(uv_timer_t *timer) { (void)timer; }

static void __attribute__((noinline)) fill(uv_loop_t *loop) {
    timers = (uv_timer_t *)calloc(TIMERS, sizeof *timers);
    for (int number = 0; number < TIMERS; number++) {
        uv_timer_init(loop, &timers[number]);
        uv_timer_start(&timers[number], tick, 3600000, 0);
    }
    for (Session *&one : sessions) {
        one = new Session;
        uv_timer_init(loop, &one->timer);
        uv_tcp_init(loop, &one->tcp);
    }
    for (int number = 0; number < ALIKE; number++) {
        Settings *one = settings[number] = (Settings *)calloc(1, sizeof *one);
        one->loop = loop;
        one->kind = UV_TIMER;
        one->first = malloc(BYTES), one->second = malloc(BYTES), one->third = malloc(BYTES);
        one->options = number % 2 ? 2 : 3; // flags of closed handles
        jobs[number] = (Job *)calloc(1, sizeof(Job));
        jobs[number]->loop = loop;
        jobs[number]->kind = number % 2 ? UV_WORK : UV_GETADDRINFO;
    }
}

// The loop runs when it calls this function.
static void enter(uv_timer_t *) { pthread_barrier_wait(&added); }

// Runs a loop with JOBS handles uv_idle_t. None is active; a timer keeps the loop waiting.
static void run(uv_loop_t *loop) {
    uv_loop_init(loop);
    uv_timer_t timer, later;
    uv_timer_init(loop, &timer);
    uv_timer_start(&timer, enter, 0, 0);
    uv_timer_init(loop, &later);
    uv_timer_start(&later, tick, 3600000, 0);
    for (int number = 0; number < JOBS; number++) uv_idle_init(loop, (uv_idle_t *)calloc(1, sizeof(uv_idle_t)));
    uv_run(loop, UV_RUN_DEFAULT);
}

static void *run_on_stack(void *) {
    uv_loop_t loop;
    run(&loop);
    return nullptr;
}

static void *run_worker(void *) {
    worker = new Worker;
    run(&worker->loop);
    return nullptr;
}

static void __attribute__((noinline)) sweep() {
    volatile char waste[1 << 16];
    for (unsigned at = 0; at < sizeof waste; at++) waste[at] = 0;
}

int main() {
    pthread_t threads[2];
    pthread_barrier_init(&added, nullptr, 3);
    fill(uv_default_loop());
    pthread_create(&threads[0], nullptr, run_on_stack, nullptr);
    pthread_create(&threads[1], nullptr, run_worker, nullptr);
    pthread_barrier_wait(&added);
    sweep();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
