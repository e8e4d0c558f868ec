/* Fills memory that is no heap: stacks of threads, memfd and System V segments, private mappings of a file.
 * Usage: large_shares threads|memfd|sysv|file COUNT FILE. Prints "ready" and waits. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#define PART (256 << 10)

static pthread_barrier_t all;

__attribute__((noinline)) static void wait_for_client(void) {
    volatile char frame[PART / 4];
    for (size_t at = 0; at < sizeof frame; at += 512) frame[at] = 1;
    pthread_barrier_wait(&all);
    pause();
    frame[0] = 2;
}

static void *serve(void *ignored) {
    wait_for_client();
    return ignored;
}

int main(int count, char **words) {
    if (count < 4) return 2;
    int number = atoi(words[2]);
    pthread_barrier_init(&all, NULL, (unsigned)number + 1);
    for (int i = 0; i < number; i++) {
        void *made = NULL;
        if (!strcmp(words[1], "threads")) {
            pthread_t thread;
            pthread_attr_t small;
            pthread_attr_init(&small);
            pthread_attr_setstacksize(&small, 2 * PART);
            if (pthread_create(&thread, &small, serve, NULL)) return 3;
            continue;
        } else if (!strcmp(words[1], "memfd")) {
            int fd = memfd_create("frame", 0);
            if (fd < 0 || ftruncate(fd, PART)) return 3;
            made = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            close(fd);
        } else if (!strcmp(words[1], "sysv")) {
            int id = shmget(IPC_PRIVATE, PART, IPC_CREAT | 0600);
            if (id < 0) return 3;
            made = shmat(id, NULL, 0);
            shmctl(id, IPC_RMID, NULL);
        } else {
            int fd = open(words[3], O_RDONLY);
            made = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
            close(fd);
        }
        if (made == MAP_FAILED || made == (void *)-1) return 4;
        memset(made, i + 1, PART);
    }
    if (!strcmp(words[1], "threads")) pthread_barrier_wait(&all);
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
}
