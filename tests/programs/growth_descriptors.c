/* Reads a line from standard input before each round, and opens descriptors of several kinds in the folder that the argument names. "ready"
 * follows. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

static int numbered;

static int must(int descriptor) {
    if (descriptor < 0)
        _exit(1);
    return descriptor;
}

static void open_all(const char *folder, int files, int numbers, int tcp, int pipes, int events, int memory, int timers, int polls) {
    char name[4096];
    int ends[2];
    snprintf(name, sizeof name, "%s/journal", folder);
    while (files--)
        must(open(name, O_RDWR | O_CREAT, 0600));
    while (numbers--) {
        snprintf(name, sizeof name, "%s/page-%d.bin", folder, ++numbered);
        must(open(name, O_RDWR | O_CREAT, 0600));
    }
    while (tcp--)
        must(socket(AF_INET, SOCK_STREAM, 0));
    while (pipes--)
        must(pipe(ends));
    while (events--)
        must(eventfd(0, 0));
    while (memory--)
        must(memfd_create("frame", 0));
    while (timers--)
        must(timerfd_create(CLOCK_MONOTONIC, 0));
    while (polls--)
        must(epoll_create1(0));
}

int main(int count, char **words) {
    if (count != 2)
        return 1;
    open_all(words[1], 10, 3, 5, 4, 2, 1, 20, 1);
    do {
        puts("ready");
        fflush(stdout);
        if (getchar() == EOF)
            return 0;
        open_all(words[1], 200, 80, 30, 25, 60, 70, 0, 9);
    } while (1);
}
