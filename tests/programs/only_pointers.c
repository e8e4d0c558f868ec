/* A mapping of each kind that can hold pointers contains the only pointers to some blocks. Prints "mapping KIND ADDRESS SIZE", "block KIND
 * ADDRESS" for each block, "lost ADDRESS" for those that nothing points to, then "ready". The folder gets the mapped files. What follows on
 * the command line are the kinds to make; without any: all that the kernel has. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, SIZE = 16 * PAGE, HUGE = 2 << 20, BLOCKS = 5, KINDS = 20 };

static const int both = PROT_READ | PROT_WRITE;
static uintptr_t *mappings[KINDS]; /* as a program keeps them, to find its memory */
static int count;

static int file(const char *name, int remove) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || ftruncate(fd, SIZE)) {
        perror(name);
        exit(1);
    }
    if (remove) unlink(name);
    return fd;
}

static int shared_file(const char *kind, int remove) {
    char name[64];
    snprintf(name, sizeof name, "/dev/shm/only_pointers-%d-%s", (int)getpid(), kind);
    return file(name, remove);
}

static int memory_file(int pages) {
    int fd = memfd_create("only_pointers", 0);
    return fd >= 0 && !ftruncate(fd, pages * PAGE) ? fd : -1;
}

static void *mapped(const char *kind) {
#define IS(name) (!strcmp(kind, name))
    if (IS("private") || IS("read-only") || IS("closed") || IS("excluded") || IS("closed-excluded"))
        return mmap(0, SIZE, both, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (IS("shared") || IS("shared-excluded") || IS("shared-closed")) return mmap(0, SIZE, both, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (IS("memfd") || IS("memfd-closed")) return mmap(0, SIZE, both, MAP_SHARED, memory_file(16), 0);
    if (IS("memfd-private")) return mmap(0, SIZE, both, MAP_PRIVATE, memory_file(16), 0);
    if (IS("shm")) return mmap(0, SIZE, both, MAP_SHARED, shared_file(kind, 0), 0);
    if (IS("shm-deleted")) return mmap(0, SIZE, both, MAP_SHARED, shared_file(kind, 1), 0);
    if (IS("file-shared")) return mmap(0, SIZE, both, MAP_SHARED, file(kind, 0), 0);
    if (IS("file-deleted")) return mmap(0, SIZE, both, MAP_SHARED, file(kind, 1), 0);
    if (IS("file-private")) return mmap(0, SIZE, both, MAP_PRIVATE, file(kind, 0), 0);
    if (IS("sysv")) {
        int id = shmget(IPC_PRIVATE, SIZE, 0600);
        void *made = id >= 0 ? shmat(id, 0, 0) : MAP_FAILED;
        shmctl(id, IPC_RMID, 0);
        return made;
    }
    if (IS("secret")) {
        int fd = (int)syscall(447 /* memfd_secret */, 0);
        return fd >= 0 && !ftruncate(fd, SIZE) ? mmap(0, SIZE, both, MAP_SHARED, fd, 0) : MAP_FAILED;
    }
    if (IS("huge")) return mmap(0, HUGE, both, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (IS("huge-shared")) return mmap(0, HUGE, both, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    fprintf(stderr, "%s: no such kind\n", kind);
    exit(2);
}

static void finish(const char *kind, void *at, size_t size) {
    if (strstr(kind, "excluded")) madvise(at, size, MADV_DONTDUMP);
    if (strstr(kind, "closed")) mprotect(at, size, PROT_NONE);
    if (IS("read-only")) mprotect(at, size, PROT_READ);
}

/* The blocks of each kind have a size that no other kind has. */
static void fill(const char *kind, int number) {
    size_t size = !strncmp(kind, "huge", 4) ? HUGE : SIZE;
    void *made = mapped(kind);
    if (made == MAP_FAILED) {
        fprintf(stderr, "%s: not on this machine\n", kind);
        return;
    }
    mappings[count] = made;
    printf("mapping %s %p %zu\n", kind, made, size);
    for (int i = 0; i < BLOCKS; i++) {
        void *block = malloc(1000 + 64 * (size_t)number);
        memset(block, 0, 1000);
        mappings[count][PAGE / sizeof(uintptr_t) + (size_t)i * 3] = (uintptr_t)block;
        printf("block %s %p\n", kind, block);
    }
    finish(kind, made, size);
    count++;
}

static const char *const all[] = {"private",     "read-only", "closed",       "excluded",     "closed-excluded", "shared",       "shared-excluded",
                                  "shared-closed", "memfd",   "memfd-closed", "memfd-private", "shm",            "shm-deleted", "file-shared",
                                  "file-deleted", "file-private", "sysv",     "secret"};

static void __attribute__((noinline)) clear(void) {
    volatile char below[16384];
    for (size_t i = 0; i < sizeof below; i++) below[i] = 0;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) fill(argv[i], i);
    for (int i = 0; argc < 2 && i < (int)(sizeof all / sizeof *all); i++) fill(all[i], i + 1);
    for (int i = 0; i < 3; i++) printf("lost %p\n", malloc(600));
    clear();
    puts("ready");
    for (;;) pause();
}
