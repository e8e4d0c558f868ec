/* Memory of every kind that a core must keep, in several threads with an arena each. Prints the address and size of each mapping, then
   "ready", and sleeps. argv[1]: threads; argv[2]: a file to map. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PAGE 4096L

static pthread_barrier_t all;
static void *held[64][100];
static char bss[1 << 20];

static void *work(void *given) {
    long number = (long)given;
    char name[16];
    snprintf(name, sizeof name, "worker %ld", number);
    prctl(PR_SET_NAME, name);
    for (int i = 0; i < 100; i++) {
        held[number][i] = malloc(200 + i);
        memset(held[number][i], (int)number + 1, 200 + i);
        if (i % 10 == 9) held[number][i] = 0; /* lost */
    }
    register long kept asm("r12") = 0x123400000000 + number * 0x10;
    pthread_barrier_wait(&all);
    asm volatile("movq %0, %%xmm15\n 1: mov $34, %%eax\n syscall\n jmp 1b" : : "r"(kept) : "rax", "rcx", "r11", "memory", "xmm15");
    return 0;
}

static char *map(const char *name, long size, int protection, int flags, int fd) {
    char *at = mmap(0, size, protection, flags, fd, 0);
    if (at == MAP_FAILED) {
        perror(name);
        exit(1);
    }
    printf("%s %p %ld\n", name, (void *)at, size);
    return at;
}

int main(int argc, char **argv) {
    long threads = argc > 1 ? atol(argv[1]) : 8;
    int rw = PROT_READ | PROT_WRITE;
    char *at = map("shared", 16 * PAGE, rw, MAP_SHARED | MAP_ANONYMOUS, -1);
    void **word = (void **)(at + 5 * PAGE);
    *word = malloc(777); /* held only by shared memory */
    int memory = memfd_create("tables", 0);
    if (ftruncate(memory, 1024 * PAGE)) return 1;
    at = map("memfd", 1024 * PAGE, rw, MAP_SHARED, memory);
    strcpy(at + 1000 * PAGE, "mapped");
    if (pwrite(memory, "not mapped", 10, 500 * PAGE) != 10) return 1;
    int file = open(argc > 2 ? argv[2] : "data", O_RDWR);
    at = map("written", 64 * PAGE, rw, MAP_PRIVATE, file);
    strcpy(at + 7 * PAGE, "written");
    int other = open("shared_file", O_RDWR | O_CREAT, 0600);
    if (ftruncate(other, 62 * PAGE)) return 1;
    at = map("shared_file", 64 * PAGE, rw, MAP_SHARED, other); /* two pages are beyond the end of the file */
    *(void **)(at + 9 * PAGE) = malloc(888); /* held only by the file's mapping */
    map("unwritten", 64 * PAGE, PROT_READ, MAP_PRIVATE, file);
    map("reserved", 1L << 32, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    at = map("untouched", 1L << 26, rw, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    at[1L << 25] = 1;
    at = map("sparse", 512 * PAGE, rw, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    madvise(at, 512 * PAGE, MADV_NOHUGEPAGE);
    for (long page = 0; page < 512; page += 3) at[page * PAGE] = (char)(page / 3 + 1);
    at = map("excluded", 16 * PAGE, rw, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    memset(at, 's', 16 * PAGE);
    madvise(at, 16 * PAGE, MADV_DONTDUMP);
    at = map("closed", 16 * PAGE, rw, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    memset(at, 'c', 16 * PAGE);
    mprotect(at, 16 * PAGE, PROT_NONE);
    bss[4096] = 1;
    pthread_barrier_init(&all, 0, (unsigned)threads + 1);
    for (long i = 0; i < threads; i++) {
        pthread_t id;
        pthread_create(&id, 0, work, (void *)i);
    }
    pthread_barrier_wait(&all);
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
