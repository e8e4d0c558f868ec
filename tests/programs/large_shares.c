/* Fills memory outside of heaps.
 * threads: stacks of threads. memfd, shm, sysv: shared memory. described: memfd, and a leaked block for each. file: private mappings of FILE. open: only opens FILE, COUNT times.
 * variable: COUNT * 256 KiB of one variable, at most 60 MiB. code: COUNT executable mappings, to which `table` refers.
 * leaked, kept, chain: separate anonymous mappings. Nothing refers to a leaked mapping. A table in malloc's heap refers to each kept
 * mapping. In a chain, each mapping refers to the next one.
 * forgotten, indexed: COUNT files, whose names begin with FILE, each of which is mapped once. The table refers to those of "indexed".
 * zero: COUNT private mappings of /dev/zero. libraries: COUNT copies of the library FILE, which are loaded.
 * private, shared: one mapping of FILE, whose pages are written to. With shared, the program also removes FILE.
 * Usage: large_shares private|shared|threads|memfd|described|shm|sysv|file|open|variable|code|leaked|kept|chain|forgotten|indexed|zero|libraries COUNT FILE.
 * Prints "ready" and waits. */
#define _GNU_SOURCE
#include <dlfcn.h>
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
static char frames[240 * PART];
static void **table; /* addresses of the mappings of "kept" and "code" */
static void *first;  /* first mapping of the chain */

/* A mapping with pages without access on either side, so that the kernel does not merge it with others. */
__attribute__((noinline)) static void map_apart(const char *kind, int number, void ***link) {
    size_t page = 4096;
    char *around = mmap(NULL, PART + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (around == MAP_FAILED || mprotect(around + page, PART, PROT_READ | PROT_WRITE)) _exit(4);
    memset(around + page, 0, PART);
    snprintf(around + page, 64, "FRAME %d of the camera", number);
    for (size_t at = page; at < PART; at += page) around[page + at] = 1;
    if (!strcmp(kind, "kept")) table[number] = around + page + 4096;
    if (!strcmp(kind, "chain")) {
        **link = around + page;
        *link = (void **)(around + page + 64);
    }
}

__attribute__((noinline)) static void map_file(const char *path, size_t size, int flags) {
    int fd = open(path, O_RDWR);
    if (fd < 0 || ftruncate(fd, (off_t)size)) _exit(3);
    first = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (first == MAP_FAILED) _exit(4);
    memset(first, 1, size);
    close(fd);
    if (flags == MAP_SHARED) unlink(path);
}

__attribute__((noinline)) static void map_numbered_file(const char *path, int number) {
    char name[4096];
    snprintf(name, sizeof name, "%s-%d", path, number);
    int fd = open(name, O_CREAT | O_RDWR, 0600);
    if (fd < 0 || write(fd, frames, PART) != PART) _exit(3);
    char *made = mmap(NULL, PART, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (made == MAP_FAILED) _exit(4);
    volatile char sum = 0;
    for (size_t at = 0; at < PART; at += 4096) sum = (char)(sum + made[at]);
    if (table) table[number] = made + 64;
}

__attribute__((noinline)) static void load_copy(const char *path, int number) {
    char name[4096], command[8400];
    snprintf(name, sizeof name, "%s-%d.so", path, number);
    snprintf(command, sizeof command, "cp '%s' '%s'", path, name);
    if (system(command) || !dlopen(name, RTLD_NOW)) _exit(3);
}

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
    void **link = &first;
    table = calloc((size_t)number, sizeof *table);
    if (!strcmp(words[1], "private") || !strcmp(words[1], "shared")) {
        map_file(words[3], (size_t)number * PART, !strcmp(words[1], "shared") ? MAP_SHARED : MAP_PRIVATE);
        number = 0;
    }
    for (int i = 0; i < number; i++) {
        void *made = NULL;
        if (!strcmp(words[1], "leaked") || !strcmp(words[1], "kept") || !strcmp(words[1], "chain")) {
            map_apart(words[1], i, &link);
            continue;
        }
        if (!strcmp(words[1], "forgotten") || !strcmp(words[1], "indexed")) {
            if (words[1][0] == 'f') table = NULL;
            map_numbered_file(words[3], i);
            continue;
        }
        if (!strcmp(words[1], "libraries")) {
            load_copy(words[3], i);
            continue;
        }
        if (!strcmp(words[1], "variable")) {
            memset(frames + (size_t)i * PART, i + 1, PART);
            continue;
        }
        if (!strcmp(words[1], "open")) {
            if (open(words[3], O_RDONLY) < 0) return 3;
            continue;
        }
        if (!strcmp(words[1], "threads")) {
            pthread_t thread;
            pthread_attr_t small;
            pthread_attr_init(&small);
            pthread_attr_setstacksize(&small, 2 * PART);
            if (pthread_create(&thread, &small, serve, NULL)) return 3;
            continue;
        } else if (!strcmp(words[1], "code")) {
            made = table[i] = mmap(NULL, PART, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        } else if (!strcmp(words[1], "memfd") || !strcmp(words[1], "described")) {
            int fd = memfd_create("frame", 0);
            if (fd < 0 || ftruncate(fd, PART)) return 3;
            made = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            close(fd);
        } else if (!strcmp(words[1], "shm")) { /* each has a different name, which is removed immediately */
            char name[64];
            snprintf(name, sizeof name, "/findleaks-%d-frame-%d", (int)getpid(), i);
            int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
            if (fd < 0 || shm_unlink(name) || ftruncate(fd, PART)) return 3;
            made = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            close(fd);
        } else if (!strcmp(words[1], "sysv")) {
            int id = shmget(IPC_PRIVATE, PART, IPC_CREAT | 0600);
            if (id < 0) return 3;
            made = shmat(id, NULL, 0);
            shmctl(id, IPC_RMID, NULL);
        } else {
            int fd = open(!strcmp(words[1], "zero") ? "/dev/zero" : words[3], O_RDONLY);
            made = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
            close(fd);
        }
        if (made == MAP_FAILED || made == (void *)-1) return 4;
        if (memset(made, i + 1, PART) && !strcmp(words[1], "described")) *(void *volatile *)malloc(24) = made;
    }
    if (!strcmp(words[1], "threads")) pthread_barrier_wait(&all);
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
}
