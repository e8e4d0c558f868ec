/* Loses blocks and leaves their addresses in registers that are not read again; holds others by registers that are. The main thread waits in
   pause(), one thread in its own read(), one in its own futex(), and one is interrupted by a signal, whose handler waits in pause().
   Prints "lost ADDRESS" and "held ADDRESS" a line, then "ready". */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 48 };

struct left {
    uintptr_t hidden[MOST]; /* complements of addresses: none is in memory */
    volatile long begun, over;
    long fd;
};

static struct left of_main, of_read, of_futex, of_spin;
static volatile pid_t ids[3];
static volatile int handling;

/* Each function gets a struct left. It sets the word at 8 * MOST as soon as all registers are set. */
void wait_with(struct left *left);
void read_with(struct left *left);
void futex_with(struct left *left);
uintptr_t spin_with(struct left *left);
__asm__(".text\n.altmacro\n"
        ".macro word at, to\n ldr x15, [x0, #8*\\at]\n mvn \\to, x15\n .endm\n"
        ".macro pair at, to\n ldr x15, [x0, #8*\\at]\n mvn x15, x15\n dup v\\to\\().2d, x15\n .endm\n"
        ".macro function name\n.globl \\name\n.type \\name, %function\n\\name:\n.cfi_startproc\n .endm\n"
        ".macro ends name\n.cfi_endproc\n.size \\name, .-\\name\n .endm\n"

        /* pause() may overwrite all but four of the registers. It is called through the procedure linkage table. */
        "function wait_with\n stp x29, x30, [sp, #-16]!\n.cfi_adjust_cfa_offset 16\n.cfi_offset 29, -16\n.cfi_offset 30, -8\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7\n pair \\n, \\n\n .endr\n"
        ".irp n, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31\n pair \\n-8, \\n\n .endr\n"
        "word 24, x1; word 25, x2; word 26, x3; word 27, x4; word 28, x5; word 29, x6; word 30, x7; word 31, x9; word 32, x10\n"
        "word 33, x11; word 34, x12; word 35, x13; word 36, x14; word 37, x18\n"
        "word 44, x19; word 45, x28; pair 46, 8; pair 47, 15\n"
        "word 38, x0; mov x15, #0; mov x8, #0\n"
        "1: bl pause\n b 1b\n ends wait_with\n"

        /* read(fd, x1, 1): x1, x9, x12 and v18 are read again. */
        "function read_with\n"
        "word 0, x3; word 1, x4; word 2, x5; word 3, x6; word 4, x7; word 5, x10; word 6, x11; word 7, x18\n"
        "pair 8, 0; pair 9, 1; pair 10, 7; pair 11, 16; pair 12, 17; pair 13, 23; pair 14, 31\n"
        "word 44, x1; word 45, x9; word 46, x12; pair 47, 18\n"
        "mov x15, #1; str x15, [x0, #8*48]; ldr x0, [x0, #8*50]; mov x14, x0\n"
        "1: mov x0, x14; mov x2, #1; mov x8, #63\n svc #0\n"
        "ldr x10, [x9]; str x10, [x12]; mov x10, v18.d[1]; ldr x11, [x10]; dup v16.2d, x11; csel x7, x9, x10, eq; b 1b\n"
        "ends read_with\n"

        /* futex(x0, FUTEX_WAIT, 0, NULL): the word is in a block. The other two arguments are not used. */
        "function futex_with\n"
        "word 0, x4; word 1, x5; word 2, x9; word 3, x13; pair 4, 2; pair 5, 30\n"
        "word 44, x12; word 45, x14; word 46, x11; word 47, x10\n"
        "mov x15, #1; str x15, [x0, #8*48]; mov x0, x12\n"
        "1: mov x1, #0; mov x2, #0; mov x3, #0; mov x8, #98\n svc #0\n"
        "ldr w9, [x14]; ldr w13, [x11, x9]; bfi x10, x13, #0, #8; str x10, [x14]; mov x0, x12; b 1b\n"
        "ends futex_with\n"

        /* A leaf function. Registers that it has not set to 0 after the loop are read by it, or may be read by its caller. */
        "function spin_with\n"
        "word 0, x1; word 1, x2; word 2, x3; word 3, x4; word 4, x16; word 5, x17; pair 6, 6; pair 7, 21\n"
        "word 44, x9; word 45, x10; pair 46, 5; pair 47, 20\n"
        "mov x15, #1; str x15, [x0, #8*48]\n"
        "1: yield\n ldr x15, [x0, #8*49]\n cbz x15, 1b\n"
        "mov x1, #0; mov w2, #0; csel x3, x1, x2, eq; ldp x4, x16, [x0]; movi v6.2d, #0; ldr d21, [x0]; ldr w17, [x0]\n"
        "mov x0, x9; add x0, x0, x10; mov x1, v5.d[0]; add x0, x0, x1; umov x1, v20.d[1]; add x0, x0, x1\n"
        "ret\n ends spin_with\n");

static void *begin(void *started) {
    long number = (long)started;
    ids[number] = (pid_t)syscall(SYS_gettid);
    if (number == 0) read_with(&of_read);
    if (number == 1) futex_with(&of_futex);
    return (void *)spin_with(&of_spin);
}

static void handle(int unused) {
    (void)unused;
    handling = 1;
    for (;;) pause();
}

static void __attribute__((noinline)) make(struct left *left, int lost) {
    for (int i = 0; i < MOST; i++) {
        if (i >= lost && i < MOST - 4) continue;
        void *volatile block = calloc(1, 100 + 16 * (size_t)i);
        left->hidden[i] = ~(uintptr_t)block;
        printf("%s %p\n", i < lost ? "lost" : "held", block);
        block = NULL;
    }
}

static void sleeps(pid_t id) {
    char path[64], line[512], *after = NULL;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)id);
    do {
        FILE *file = fopen(path, "r");
        after = file && fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
        if (file) fclose(file);
    } while (!after || after[2] != 'S');
}

/* Overwrite what make() and stdio have left on the stack. */
static void __attribute__((noinline)) sweep(void) {
    volatile char waste[1 << 15];
    for (unsigned i = 0; i < sizeof waste; i++) waste[i] = 0;
}

int main(void) {
    struct left *all[] = {&of_read, &of_futex, &of_spin};
    struct sigaction action = {.sa_handler = handle};
    pthread_t threads[3];
    int ends[2];
    if (sigaction(SIGUSR1, &action, NULL) || pipe(ends)) abort();
    of_read.fd = ends[0];
    make(&of_main, 39);
    make(&of_read, 15);
    make(&of_futex, 6);
    make(&of_spin, 8);
    sweep();
    for (long i = 0; i < 3; i++) {
        if (pthread_create(&threads[i], NULL, begin, (void *)i)) abort();
        while (!all[i]->begun) usleep(1000);
    }
    pthread_kill(threads[2], SIGUSR1);
    while (!handling) usleep(1000);
    for (int i = 0; i < 3; i++) sleeps(ids[i]);
    puts("ready");
    fflush(stdout);
    sweep();
    wait_with(&of_main);
}
