/* Blocks that only the kernel refers to, and lost ones. Prints "held WHAT ADDRESS" and "lost WHAT ADDRESS" a line, "rings COUNT", then
   "ready", and waits in epoll_wait. No address stays in memory: the program keeps none, and sweeps its stack. */
#define _GNU_SOURCE
#include <linux/io_uring.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { EACH = 5, FLAG = 1 };
static int epoll;

static void *block(const char *kind, const char *what) {
    void *volatile made = malloc(200);
    memset(made, 'b', 200);
    printf("%s %s %p\n", kind, what, made);
    return made;
}

static void must(int failed, const char *what) {
    if (failed) {
        perror(what);
        exit(1);
    }
}

static void add(uint64_t data, int then) {
    int fd[2];
    must(pipe(fd), "pipe");
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = data};
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, fd[0], &event), "epoll_ctl");
    if (then) must(epoll_ctl(epoll, then, fd[0], &event), "epoll_ctl");
}

static void __attribute__((noinline)) make(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    must(sigprocmask(SIG_BLOCK, &set, NULL), "sigprocmask");
    epoll = epoll_create1(0);
    for (int i = 0; i < EACH; i++) {
        add((uintptr_t)block("held", "epoll"), 0);
        add((uintptr_t)block("held", "flagged") | FLAG, 0);
        add((uintptr_t)block("lost", "deleted"), EPOLL_CTL_DEL);
        timer_t timer;
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1, .sigev_value.sival_ptr = block("held", "timer")};
        must(timer_create(CLOCK_MONOTONIC, &event, &timer), "timer_create");
        union sigval value = {.sival_ptr = block("held", "signal")};
        must(sigqueue(getpid(), SIGRTMIN, value), "sigqueue");
        value.sival_ptr = block("held", "directed");
        must(pthread_sigqueue(pthread_self(), SIGRTMIN, value), "pthread_sigqueue");
        block("lost", "plain");
    }
    struct io_uring_params parameters = {0};
    long ring = syscall(SYS_io_uring_setup, 4, &parameters);
    printf("rings %d\n", ring >= 0);
    if (ring >= 0) {
        void *volatile buffer = malloc(200);
        struct iovec one = {buffer, 200};
        int registered = !syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &one, 1);
        printf("%s buffer %p\n", registered ? "held" : "lost", buffer);
        one.iov_base = buffer = NULL;
    }
    puts("ready");
    fflush(stdout);
}

static void __attribute__((noinline)) sweep(void) {
    volatile char waste[1 << 16];
    for (unsigned i = 0; i < sizeof waste; i++) waste[i] = 0;
}

int main(void) {
    make();
    sweep();
    struct epoll_event event;
    for (;;) epoll_wait(epoll, &event, 1, -1);
}
